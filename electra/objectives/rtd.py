"""ReplacedTokenDetection: ELECTRA. A generator proposes replacements, the discriminator doubts every token."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.data.batches import Batch
from electra.model.pair import Discriminator, Generator, build_pair
from electra.model.shape import EncoderShape
from electra.objectives.corruption import Corrupted, Masked, Vocabulary, fill_masks, mask_tokens, masked_counts
from electra.objectives.measures import Loss, Tally, detections, quotient
from electra.objectives.mlm import guess_words, word_tallies
from electra.objectives.objective import Objective
from electra.objectives.settings import ReplacedTokenDetectionConfig


class Play(NamedTuple):
    """One round of the game, move by move."""

    masked: Masked
    guesses: Tensor | None  # [B, P, V] the generator's logits, when it is a network and they were kept
    surprises: Tensor | None  # [B, P] its loss at each hidden word, when it is a network
    corrupted: Corrupted
    doubts: Tensor  # [B, T] the discriminator's logits: above zero means "replaced"


class ReplacedTokenDetection(Objective):
    """Loss = the generator's masked-LM loss + 50 · the discriminator's over every token; no gradient flows between."""

    blind: Tensor  # [V] what a generator that looks at nothing draws from

    def __init__(self, config: ReplacedTokenDetectionConfig, *, encoder: EncoderShape, vocabulary: Vocabulary,
                 unigrams: Tensor) -> None:
        super().__init__(vocabulary=vocabulary, unigrams=unigrams)
        self.config = config
        self.generator, self.discriminator = build_pair(encoder, config.generator, vocabulary=vocabulary.size)
        specials = torch.tensor([vocabulary.pad, vocabulary.unk, vocabulary.cls, vocabulary.sep, vocabulary.mask])
        blind = unigrams if config.generator.kind == "unigram" else torch.ones_like(unigrams)
        self.register_buffer("blind", blind.index_fill(0, specials, 0.0), persistent=False)

    def play(self, batch: Batch, rng: torch.Generator | None = None, *, keep_logits: bool = True) -> Play:
        """Mask, guess, sample, splice, doubt."""
        masked = mask_tokens(batch, self.config.masking, self.vocabulary, rng)
        surprises, sampled, guesses = None, None, None
        if self.generator is not None:
            surprises, sampled, guesses = guess_words(self.generator, batch, masked, rng, keep_logits=keep_logits,
                                                      temperature=self.config.temperature)
        if sampled is None:
            sampled = self.draw_blindly(masked, rng)
        corrupted = fill_masks(batch.ids, masked, sampled)
        doubts = self.discriminator(corrupted.ids, batch.types, batch.real)
        return Play(masked, guesses, surprises, corrupted, doubts)

    def forward(self, batch: Batch, rng: torch.Generator | None = None) -> Loss:
        play = self.play(batch, rng, keep_logits=False)
        rtd = (doubt_losses(play) * batch.real).sum() / batch.step_lengths.sum()
        total, parts = self.config.discriminator_weight * rtd, {"rtd": rtd.detach()}
        if play.surprises is not None:
            scored = masked_counts(batch.step_lengths, self.config.masking, length=batch.ids.shape[1]).sum()
            mlm = play.surprises.sum() / scored
            total, parts = total + self.config.generator_weight * mlm, {"mlm": mlm.detach(), **parts}
        return Loss(total, parts)

    @torch.no_grad()
    def measure(self, batch: Batch, rng: torch.Generator | None = None) -> Tally:
        play = self.play(batch, rng)
        words = {} if play.guesses is None else word_tallies(play.guesses, play.masked, self.unigrams)
        return Tally({**words, "rtd_loss": quotient(doubt_losses(play), batch.real)},
                     detections(play.doubts, play.corrupted.replaced, batch.real))

    def networks(self) -> dict[str, Discriminator | Generator]:
        networks: dict[str, Discriminator | Generator] = {"discriminator": self.discriminator}
        return networks if self.generator is None else {**networks, "generator": self.generator}

    def draw_blindly(self, masked: Masked, rng: torch.Generator | None) -> Tensor:
        """Replacements that look at nothing: by corpus frequency, or every word alike."""
        drawn = torch.multinomial(self.blind, masked.positions.numel(), replacement=True, generator=rng)
        return drawn.view_as(masked.positions)


def doubt_losses(play: Play) -> Tensor:
    """[B, T] how wrong each doubt was."""
    return F.binary_cross_entropy_with_logits(play.doubts.float(), play.corrupted.replaced.float(), reduction="none")
