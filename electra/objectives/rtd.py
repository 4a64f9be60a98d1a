"""ReplacedTokenDetection: ELECTRA. A generator proposes replacements, the discriminator doubts
every token.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.data.batches import Batch
from electra.model.pair import Discriminator, Generator, build_pair
from electra.model.shape import EncoderShape
from electra.objectives.corruption import Corrupted, Masked, Vocabulary, masked_in_step
from electra.objectives.measures import Loss, Tally, detections, quotient
from electra.objectives.settings import ReplacedTokenDetectionConfig
from electra.objectives.splice import Splicing


class Play(NamedTuple):
    """One round of the game, move by move."""

    masked: Masked
    guesses: (
        Tensor | None
    )  # [B, P, V] the generator's logits, when it is a network and they were kept
    surprises: Tensor | None  # [B, P] its loss at each hidden word, when it is a network
    corrupted: Corrupted
    sampled: Tensor  # [B, P] the words that were drawn
    hidden: (
        Tensor | None
    )  # [B, P, D] what the generator's encoder made of each hidden word, when it is a network
    doubts: Tensor  # [B, T] the discriminator's logits: above zero means "replaced"


class ReplacedTokenDetection(Splicing):
    """Loss = the generator's masked-LM loss + 50 · the discriminator's over every token, or over
    the masked ones alone; no gradient flows between. A frozen generator proposes without dropout,
    and nothing ever changes it.
    """

    config: ReplacedTokenDetectionConfig

    def __init__(
        self,
        config: ReplacedTokenDetectionConfig,
        *,
        encoder: EncoderShape,
        vocabulary: Vocabulary,
        unigrams: Tensor,
    ) -> None:
        generator, discriminator = build_pair(encoder, config.generator, vocabulary=vocabulary.size)
        super().__init__(config, generator, vocabulary=vocabulary, unigrams=unigrams)
        self.discriminator = discriminator
        self.trains_generator_by_mlm = config.generator_training == "mlm"
        if config.generator_training == "frozen":
            assert generator is not None
            generator.requires_grad_(False)
        self.train()

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.generator is not None and self.config.generator_training == "frozen":
            self.generator.eval()
        return self

    def play(
        self, batch: Batch, rng: torch.Generator | None = None, *, keep_logits: bool = True
    ) -> Play:
        """Mask, guess, sample, splice, doubt."""
        spliced = self.splice(batch, rng, keep_logits=keep_logits)
        doubts = self.discriminator(
            spliced.corrupted.input_ids, batch.token_type_ids, batch.attention_mask
        )
        return Play(*spliced, doubts)

    def forward(self, batch: Batch, rng: torch.Generator | None = None) -> Loss:
        play = self.play(batch, rng, keep_logits=False)
        return self.beside_the_generators(self.main_loss(play, batch), play.surprises, batch)

    def main_loss(self, play: Play, batch: Batch) -> Loss:
        """The discriminator's, weighted."""
        judged_in_step = (
            batch.step_lengths.sum()
            if self.config.scored == "all"
            else masked_in_step(batch, self.config.masking)
        )
        rtd = (doubt_losses(play) * self.judged(play, batch)).sum() / judged_in_step
        return Loss(self.config.discriminator_weight * rtd, {"rtd": rtd.detach()})

    @torch.no_grad()
    def measure(self, batch: Batch, rng: torch.Generator | None = None) -> Tally:
        play = self.play(batch, rng)
        words, judged = self.generator_tallies(play.guesses, play.masked), self.judged(play, batch)
        return Tally(
            {**words, "rtd_loss": quotient(doubt_losses(play), judged)},
            detections(play.doubts, play.corrupted.replaced, judged),
        )

    def judged(self, play: Play, batch: Batch) -> Tensor:
        """[B, T] how often each token counts: once, or as often as its position was drawn."""
        if self.config.scored == "all":
            return batch.attention_mask
        return torch.zeros_like(batch.input_ids).scatter_add_(
            1, play.masked.positions, play.masked.scored.long()
        )

    def networks(self) -> dict[str, Discriminator | Generator]:
        return {"discriminator": self.discriminator, **self.generators()}


def doubt_losses(play: Play) -> Tensor:
    """[B, T] how wrong each doubt was."""
    return F.binary_cross_entropy_with_logits(
        play.doubts.float(), play.corrupted.replaced.float(), reduction="none"
    )
