"""ReplaceMLM and AllTokensMLM: between BERT and ELECTRA. An encoder reads the generator's splice
and says what stood there: at the masked positions, or at every one.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from electra.data.batches import Batch
from electra.model.encoder import Encoder, initialise_glorot
from electra.model.memory import ROWS_OF_LOGITS
from electra.model.pair import Discriminator, Generator, build_generator
from electra.model.shape import EncoderShape
from electra.objectives.corruption import Vocabulary, masked_in_step
from electra.objectives.measures import Loss, Tally, quotient
from electra.objectives.mlm import guess_words, word_losses
from electra.objectives.settings import AllTokensMLMConfig, ReplaceMLMConfig
from electra.objectives.splice import Spliced, Splicing


class Restoring(Splicing):
    """What the two have in common: an encoder with a masked LM's head beside the generator."""

    config: ReplaceMLMConfig | AllTokensMLMConfig

    def __init__(
        self,
        config: ReplaceMLMConfig | AllTokensMLMConfig,
        *,
        encoder: EncoderShape,
        vocabulary: Vocabulary,
        unigrams: Tensor,
    ) -> None:
        main = Generator(Encoder(encoder, vocabulary=vocabulary.size))
        super().__init__(
            config,
            build_generator(config.generator, beside=main.encoder),
            vocabulary=vocabulary,
            unigrams=unigrams,
        )
        self.encoder = main

    def loss(self, restore: Tensor, spliced: Spliced, batch: Batch) -> Loss:
        main = Loss(self.config.encoder_weight * restore, {"restore": restore.detach()})
        return self.beside_the_generators(main, spliced.surprises, batch)

    def networks(self) -> dict[str, Discriminator | Generator]:
        return {"encoder": self.encoder, **self.generators()}


class ReplaceMLM(Restoring):
    """BERT's loss, at the masked positions alone; but the encoder reads replacements there and
    never a [MASK].
    """

    def forward(self, batch: Batch, rng: torch.Generator | None = None) -> Loss:
        spliced = self.splice(batch, rng, keep_logits=False)
        read = spliced.masked._replace(input_ids=spliced.corrupted.input_ids)
        guesses = guess_words(self.encoder, batch, read, rng)
        return self.loss(
            guesses.losses.sum() / masked_in_step(batch, self.config.masking), spliced, batch
        )

    @torch.no_grad()
    def measure(self, batch: Batch, rng: torch.Generator | None = None) -> Tally:
        spliced = self.splice(batch, rng)
        masked, input_ids = spliced.masked, spliced.corrupted.input_ids
        logits = self.encoder(
            input_ids, batch.token_type_ids, batch.attention_mask, masked.positions
        )
        return Tally(
            self.generator_tallies(spliced.guesses, masked)
            | restoration_tallies(
                word_losses(logits, masked),
                logits.argmax(-1),
                read=input_ids.gather(1, masked.positions),
                originals=masked.originals,
                scored=masked.scored,
                unigrams=self.unigrams,
            )
        )


class AllTokensMLM(Restoring):
    """p(x) = D·1[x = the token read] + (1 − D)·softmax(…)ₓ, over every token; D is a gate that
    copies.

    The gate belongs to this loss: checkpoints hold it, the exported encoder, a plain masked LM,
    does not.
    """

    def __init__(
        self,
        config: AllTokensMLMConfig,
        *,
        encoder: EncoderShape,
        vocabulary: Vocabulary,
        unigrams: Tensor,
    ) -> None:
        super().__init__(config, encoder=encoder, vocabulary=vocabulary, unigrams=unigrams)
        self.gate = nn.Linear(encoder.width, 1)
        initialise_glorot(self.gate)

    def read(self, input_ids: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """The vectors [B·T, E] that the words should have, and the gate's logits [B, T]: above zero
        means "copy".
        """
        hidden = self.encoder.encoder(input_ids, batch.token_type_ids, batch.attention_mask)
        return self.encoder.transform(hidden).flatten(0, 1), self.gate(hidden).squeeze(-1).float()

    def forward(self, batch: Batch, rng: torch.Generator | None = None) -> Loss:
        spliced = self.splice(batch, rng, keep_logits=False)
        predicted, gates = self.read(spliced.corrupted.input_ids, batch)
        surprises = surprises_everywhere(
            self.encoder, predicted, batch.input_ids.flatten()
        ).view_as(batch.input_ids)
        losses = copying_losses(surprises, gates, kept=~spliced.corrupted.replaced)
        return self.loss(
            (losses * batch.attention_mask).sum() / batch.step_lengths.sum(), spliced, batch
        )

    @torch.no_grad()
    def measure(self, batch: Batch, rng: torch.Generator | None = None) -> Tally:
        spliced = self.splice(batch, rng)
        input_ids = spliced.corrupted.input_ids
        predicted, gates = self.read(input_ids, batch)
        losses, words = [], []
        for start in range(0, len(predicted), ROWS_OF_LOGITS):
            rows = slice(start, start + ROWS_OF_LOGITS)
            logits = F.linear(predicted[rows], self.encoder.table, self.encoder.bias)
            log_chances = mixture(logits, gates.flatten()[rows], input_ids.flatten()[rows])
            losses.append(-log_chances.gather(1, batch.input_ids.flatten()[rows, None]).squeeze(1))
            words.append(log_chances.argmax(-1))
        return Tally(
            self.generator_tallies(spliced.guesses, spliced.masked)
            | restoration_tallies(
                torch.cat(losses).view_as(input_ids),
                torch.cat(words).view_as(input_ids),
                read=input_ids,
                originals=batch.input_ids,
                scored=batch.attention_mask,
                unigrams=self.unigrams,
            )
        )


def surprises_everywhere(network: Generator, predicted: Tensor, originals: Tensor) -> Tensor:
    """[N] −log softmax(…) of each original. [N, V] would be the largest thing of a step seven times
    over, so only tiles or a few rows of it exist at a time, and backward computes them again.
    """
    if network.fused and torch.is_autocast_enabled(predicted.device.type):
        from electra.kernels.linear_cross_entropy import fused_linear_cross_entropy
        from electra.kernels.low_precision import COPIES_ON_PARAMETERS

        low = predicted.to(torch.get_autocast_dtype(predicted.device.type))
        return fused_linear_cross_entropy(
            low, network.table, network.bias, originals, COPIES_ON_PARAMETERS
        )[0]
    parts = [
        slice(start, start + ROWS_OF_LOGITS) for start in range(0, len(predicted), ROWS_OF_LOGITS)
    ]
    return torch.cat(
        [
            checkpoint(
                surprises_of_rows,
                predicted[rows],
                network.table,
                network.bias,
                originals[rows],
                use_reentrant=False,
                preserve_rng_state=False,
            )
            for rows in parts
        ]
    )


def surprises_of_rows(predicted: Tensor, table: Tensor, bias: Tensor, originals: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(predicted, table, bias).float(), originals, reduction="none")


def copying_losses(surprises: Tensor, gates: Tensor, *, kept: Tensor) -> Tensor:
    """−log p(original) of the mixture, from −log softmax(…) of it: the gate helps where the
    original was kept.

    Taken in logarithms throughout: a gate that is sure either way rounds D or 1 − D to zero.
    """
    written = F.logsigmoid(-gates) - surprises
    return -torch.where(kept, torch.logaddexp(F.logsigmoid(gates), written), written)


def mixture(logits: Tensor, gates: Tensor, read: Tensor) -> Tensor:
    """log p [N, V]: the whole distribution of some rows, for measuring."""
    written = F.logsigmoid(-gates)[:, None] + logits.float().log_softmax(-1)
    copied = torch.logaddexp(F.logsigmoid(gates)[:, None], written.gather(1, read[:, None]))
    return written.scatter(1, read[:, None], copied)


def restoration_tallies(
    losses: Tensor,
    words: Tensor,
    *,
    read: Tensor,
    originals: Tensor,
    scored: Tensor,
    unigrams: Tensor,
) -> dict[str, Tensor]:
    """Loss and accuracy of the encoder's words, beside those of a reader that copies whatever it
    reads, as sure of it as the batch's share of kept tokens warrants, and otherwise knows only how
    frequent each word is.
    """
    kept = read == originals
    share = (kept & scored).sum() / scored.sum()
    return {
        "restore_loss": quotient(losses, scored),
        "restore_accuracy": quotient(words == originals, scored),
        "baseline_restore_loss": quotient(
            -(share * kept + (1 - share) * unigrams[originals]).log(), scored
        ),
        "baseline_restore_accuracy": quotient(kept, scored),
    }
