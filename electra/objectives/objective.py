"""What every objective answers. The loop, the checkpoints and the exports know nothing more of it."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from electra.data.batches import Batch
from electra.model.pair import Discriminator, Generator
from electra.objectives.corruption import Vocabulary
from electra.objectives.measures import Loss, Tally


class Objective(nn.Module, ABC):
    """A module that holds its networks and turns a batch into a loss.

    Randomness comes from `rng`, or from torch's own generator when there is none: the loop seeds
    that one for every micro-batch, and dropout knows no other.
    """

    # [V] how frequent each word is in the corpus: what a guesser that looks at nothing knows
    unigrams: Tensor

    def __init__(self, *, vocabulary: Vocabulary, unigrams: Tensor) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.register_buffer("unigrams", unigrams, persistent=False)

    @abstractmethod
    def forward(self, batch: Batch, rng: torch.Generator | None = None) -> Loss:
        """This micro-batch's share of the step's loss."""

    @abstractmethod
    def measure(self, batch: Batch, rng: torch.Generator | None = None) -> Tally:
        """Held-out scores, beside what trivial answers would score."""

    @abstractmethod
    def networks(self) -> dict[str, Discriminator | Generator]:
        """What is exported, under which name."""
