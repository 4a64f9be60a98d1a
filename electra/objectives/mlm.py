"""MaskedLM: BERT's objective, the twin that every claim is compared with."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.data.batches import Batch
from electra.model.encoder import Encoder
from electra.model.pair import Discriminator, Generator
from electra.model.shape import EncoderShape
from electra.objectives.corruption import Masked, Vocabulary, mask_tokens, masked_in_step, sample
from electra.objectives.measures import Loss, Tally, quotient
from electra.objectives.objective import Objective
from electra.objectives.settings import MaskedLMConfig


class MaskedLM(Objective):
    """One encoder predicts the words that were hidden from it."""

    def __init__(
        self,
        config: MaskedLMConfig,
        *,
        encoder: EncoderShape,
        vocabulary: Vocabulary,
        unigrams: Tensor,
    ) -> None:
        super().__init__(vocabulary=vocabulary, unigrams=unigrams)
        self.config = config
        self.encoder = Generator(Encoder(encoder, vocabulary=vocabulary.size))

    def forward(self, batch: Batch, rng: torch.Generator | None = None) -> Loss:
        masked = mask_tokens(
            batch, self.config.masking, self.vocabulary, rng, unigrams=self.unigrams
        )
        guesses = guess_words(self.encoder, batch, masked, rng)
        mlm = guesses.losses.sum() / masked_in_step(batch, self.config.masking)
        return Loss(mlm, {"mlm": mlm.detach()})

    @torch.no_grad()
    def measure(self, batch: Batch, rng: torch.Generator | None = None) -> Tally:
        masked = mask_tokens(
            batch, self.config.masking, self.vocabulary, rng, unigrams=self.unigrams
        )
        guesses = self.encoder(
            masked.input_ids, batch.token_type_ids, batch.attention_mask, masked.positions
        )
        return Tally(word_tallies(guesses, masked, self.unigrams))

    def networks(self) -> dict[str, Discriminator | Generator]:
        return {"encoder": self.encoder}


class Guesses(NamedTuple):
    """What a network makes of the words that were hidden from it."""

    losses: Tensor  # [B, P] how surprised it is by each; zero at the places that do not count
    sampled: Tensor | None  # [B, P] one word each, drawn from what it believes
    logits: Tensor | None  # [B, P, V] what it believes, where that was ever in memory
    hidden: Tensor  # [B, P, D] what its encoder made of each place


def guess_words(
    network: Generator,
    batch: Batch,
    masked: Masked,
    rng: torch.Generator | None,
    *,
    hidden: Tensor | None = None,
    temperature: float | None = None,
    disallow_correct: bool = False,
    keep_logits: bool = False,
) -> Guesses:
    """Guess every hidden word, and sample one for each when a temperature says how, the right one
    too unless that is disallowed. On a GPU, [B, P, V] is the largest thing of a step by far, and a
    loss and a sample can do without it (but for that). `hidden` is what the network's encoder made
    of the masked text, where somebody asked it before.
    """
    device = batch.input_ids.device
    hidden = network.at(
        network.encoder(masked.input_ids, batch.token_type_ids, batch.attention_mask)
        if hidden is None
        else hidden,
        masked.positions,
    )
    predicted = network.transform(hidden)
    if (
        keep_logits
        or disallow_correct
        or not network.fused
        or not torch.is_autocast_enabled(device.type)
    ):
        logits = network.words(predicted)
        sampled = (
            None
            if temperature is None
            else sample(
                logits,
                temperature=temperature,
                banned=masked.originals if disallow_correct else None,
                rng=rng,
            )
        )
        return Guesses(word_losses(logits, masked), sampled, logits, hidden)
    from electra.kernels.linear_cross_entropy import fused_linear_cross_entropy
    from electra.kernels.low_precision import COPIES_ON_PARAMETERS

    predicted = predicted.flatten(0, 1)
    uniform = (
        None if temperature is None else torch.rand(len(predicted), device=device, generator=rng)
    )
    losses, words = fused_linear_cross_entropy(
        predicted.to(torch.get_autocast_dtype(device.type)),
        network.table,
        network.bias,
        masked.originals.flatten(),
        COPIES_ON_PARAMETERS,
        uniform=uniform,
        temperature=temperature or 1.0,
    )
    sampled = None if words is None else words.view_as(masked.originals)
    return Guesses(losses.view_as(masked.originals) * masked.scored, sampled, None, hidden)


def word_losses(logits: Tensor, masked: Masked) -> Tensor:
    """[B, P] how surprised the guesser was by each hidden word; zero at the places that do not
    count.
    """
    losses = F.cross_entropy(
        logits.flatten(0, 1).float(), masked.originals.flatten(), reduction="none"
    )
    return losses.view_as(masked.originals) * masked.scored


def word_tallies(logits: Tensor, masked: Masked, unigrams: Tensor) -> dict[str, Tensor]:
    """Loss and accuracy of the guesses, beside those of a guesser that copies what it is shown and
    otherwise knows only how frequent each word is: some chosen positions keep their token, so that
    copying alone scores their share.
    """
    shown = masked.input_ids.gather(1, masked.positions) == masked.originals
    return {
        "mlm_loss": quotient(word_losses(logits, masked), masked.scored),
        "mlm_accuracy": quotient(logits.argmax(-1) == masked.originals, masked.scored),
        "baseline_mlm_loss": quotient(-unigrams.log()[masked.originals] * ~shown, masked.scored),
        "baseline_mlm_accuracy": quotient(
            shown | (masked.originals == unigrams.argmax()), masked.scored
        ),
    }
