"""The interface of every objective. The loop, the checkpoints and the exports know nothing more."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from electra.data.batches import Batch
from electra.model.networks import Discriminator, Generator
from electra.objectives.measures import Loss, MetricSums
from electra.objectives.vocabulary import Vocabulary


class Objective(nn.Module, ABC):
    """A module that holds its networks and turns a batch into a loss.

    Randomness comes from `rng`, or from torch's own generator when there is none: the loop seeds
    that one for every micro-batch, and dropout knows no other.
    """

    unigrams: Tensor  # [V] the relative frequency of each token in the corpus, for baselines

    def __init__(self, *, vocabulary: Vocabulary, unigrams: Tensor) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.register_buffer("unigrams", unigrams, persistent=False)

    def begin_step(self, step: int, *, max_steps: int) -> None:
        """Set what changes with the step, counted from 1; here nothing does."""

    @abstractmethod
    def forward(self, batch: Batch, rng: torch.Generator | None = None) -> Loss:
        """Compute this micro-batch's share of the step's loss."""

    @abstractmethod
    def measure(self, batch: Batch, rng: torch.Generator | None = None) -> MetricSums:
        """Compute the held-out metrics that the settings class declares, and their baselines."""

    @abstractmethod
    def networks(self) -> dict[str, Discriminator | Generator]:
        """Return what is exported, under which name."""
