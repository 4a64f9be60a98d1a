"""What every objective with a generator begins with: mask, guess, sample, splice."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from electra.data.batches import Batch
from electra.model.pair import Generator
from electra.objectives.corruption import (
    Corrupted,
    Masked,
    Vocabulary,
    fill_masks,
    mask_tokens,
    masked_in_step,
    sample,
)
from electra.objectives.measures import Loss, quotient
from electra.objectives.mlm import guess_words, word_tallies
from electra.objectives.objective import Objective
from electra.objectives.settings import SplicingConfig


class Spliced(NamedTuple):
    """A batch after the generator's turn, move by move."""

    masked: Masked
    guesses: (
        Tensor | None
    )  # [B, P, V] the generator's logits, when it is a network and they were kept
    surprises: Tensor | None  # [B, P] its loss at each hidden word, when it is a network
    corrupted: Corrupted
    sampled: Tensor  # [B, P] the words that were drawn
    hidden: (
        Tensor | None
    )  # [B, P, D] what its encoder made of each hidden word, when it is a network


class Splicing(Objective):
    """A generator learns to guess hidden words, and its samples make the text that a main network
    reads.

    Samples carry no gradient: the main network's loss reaches the generator only through what the
    two share.
    """

    trains_generator_by_mlm = True  # the generator: its masked-LM loss is part of the total
    blind: Tensor  # [V] what a generator that looks at nothing draws from

    def __init__(
        self,
        config: SplicingConfig,
        generator: Generator | None,
        *,
        vocabulary: Vocabulary,
        unigrams: Tensor,
    ) -> None:
        super().__init__(vocabulary=vocabulary, unigrams=unigrams)
        self.config, self.generator = config, generator
        specials = torch.tensor(
            [vocabulary.pad, vocabulary.unk, vocabulary.cls, vocabulary.sep, vocabulary.mask]
        )
        blind = unigrams if config.generator.kind == "unigram" else torch.ones_like(unigrams)
        self.register_buffer("blind", blind.index_fill(0, specials, 0.0), persistent=False)

    def splice(
        self, batch: Batch, rng: torch.Generator | None = None, *, keep_logits: bool = True
    ) -> Spliced:
        """Mask, guess, sample, splice."""
        masked = mask_tokens(
            batch, self.config.masking, self.vocabulary, rng, unigrams=self.unigrams
        )
        surprises, sampled, guesses, hidden = None, None, None, None
        if self.generator is not None:
            surprises, sampled, guesses, hidden = guess_words(
                self.generator,
                batch,
                masked,
                rng,
                keep_logits=keep_logits,
                temperature=self.config.temperature,
                disallow_correct=self.config.disallow_correct,
            )
        if sampled is None:
            sampled = self.draw_blindly(masked, rng)
        return Spliced(
            masked,
            guesses,
            surprises,
            fill_masks(batch.input_ids, masked, sampled),
            sampled,
            hidden,
        )

    def draw_blindly(self, masked: Masked, rng: torch.Generator | None) -> Tensor:
        """Replacements that look at nothing: by corpus frequency, or every word alike."""
        if self.config.disallow_correct:  # a distribution for each place, and no longer one for all
            return sample(
                self.blind.log().expand(*masked.positions.shape, -1),
                banned=masked.originals,
                rng=rng,
            )
        drawn = torch.multinomial(
            self.blind, masked.positions.numel(), replacement=True, generator=rng
        )
        return drawn.view_as(masked.positions)

    def beside_the_generators(self, main: Loss, surprises: Tensor | None, batch: Batch) -> Loss:
        """The main network's weighted loss + the generator's masked-LM loss, where that is a
        network; in the parts in any case, in the total if it learns by it.
        """
        if surprises is None:
            return main
        mlm = surprises.sum() / masked_in_step(batch, self.config.masking)
        total = (
            main.total + self.config.generator_weight * mlm
            if self.trains_generator_by_mlm
            else main.total
        )
        return Loss(total, {"mlm": mlm.detach(), **main.parts})

    def generator_tallies(self, guesses: Tensor | None, masked: Masked) -> dict[str, Tensor]:
        """What its logits are worth, and how many words it wavers between; nothing where chance
        proposes.
        """
        if guesses is None:
            return {}
        return word_tallies(guesses, masked, self.unigrams) | {
            "generator_entropy": quotient(entropies(guesses), masked.scored)
        }

    def generators(self) -> dict[str, Generator]:
        """The generator under the name it is exported by, where it is a network."""
        return {} if self.generator is None else {"generator": self.generator}


def entropies(logits: Tensor) -> Tensor:
    """[...] in nats, of the distributions that logits [..., V] describe."""
    log_chances = logits.float().log_softmax(-1)
    return -(log_chances.exp() * log_chances).sum(-1)
