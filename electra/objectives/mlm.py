"""MaskedLM: BERT's objective, the twin that every claim is compared with."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.data.batches import Batch
from electra.model.encoder import Encoder
from electra.model.pair import Discriminator, Generator
from electra.model.shape import EncoderShape
from electra.objectives.corruption import Masked, Vocabulary, mask_tokens, masked_counts
from electra.objectives.measures import Loss, Tally, quotient
from electra.objectives.objective import Objective
from electra.objectives.settings import MaskedLMConfig


class MaskedLM(Objective):
    """One encoder predicts the words that were hidden from it."""

    def __init__(self, config: MaskedLMConfig, *, encoder: EncoderShape, vocabulary: Vocabulary,
                 unigrams: Tensor) -> None:
        super().__init__(vocabulary=vocabulary, unigrams=unigrams)
        self.config = config
        self.encoder = Generator(Encoder(encoder, vocabulary=vocabulary.size))

    def forward(self, batch: Batch, rng: torch.Generator | None = None) -> Loss:
        masked = mask_tokens(batch, self.config.masking, self.vocabulary, rng)
        guesses = self.encoder(masked.ids, batch.types, batch.real, masked.positions)
        scored = masked_counts(batch.step_lengths, self.config.masking, length=batch.ids.shape[1]).sum()
        mlm = word_losses(guesses, masked).sum() / scored
        return Loss(mlm, {"mlm": mlm.detach()})

    @torch.no_grad()
    def measure(self, batch: Batch, rng: torch.Generator | None = None) -> Tally:
        masked = mask_tokens(batch, self.config.masking, self.vocabulary, rng)
        guesses = self.encoder(masked.ids, batch.types, batch.real, masked.positions)
        return Tally(word_tallies(guesses, masked, self.unigrams))

    def networks(self) -> dict[str, Discriminator | Generator]:
        return {"encoder": self.encoder}


def word_losses(logits: Tensor, masked: Masked) -> Tensor:
    """[B, P] how surprised the guesser was by each hidden word; zero at the places that do not count."""
    losses = F.cross_entropy(logits.flatten(0, 1).float(), masked.originals.flatten(), reduction="none")
    return losses.view_as(masked.originals) * masked.scored


def word_tallies(logits: Tensor, masked: Masked, unigrams: Tensor) -> dict[str, Tensor]:
    """Loss and accuracy of the guesses, beside those of a guesser that copies what it is shown and otherwise knows only
    how frequent each word is: some chosen positions keep their token, so that copying alone scores their share."""
    shown = masked.ids.gather(1, masked.positions) == masked.originals
    return {
        "mlm_loss": quotient(word_losses(logits, masked), masked.scored),
        "mlm_accuracy": quotient(logits.argmax(-1) == masked.originals, masked.scored),
        "trivial_mlm_loss": quotient(-unigrams.log()[masked.originals] * ~shown, masked.scored),
        "trivial_mlm_accuracy": quotient(shown | (masked.originals == unigrams.argmax()), masked.scored),
    }
