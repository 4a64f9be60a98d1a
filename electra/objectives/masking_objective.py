"""The base class of objectives that mask tokens, at a rate that may change during a run."""

from __future__ import annotations

import torch
from torch import Tensor

from electra.data.batches import Batch
from electra.objectives.corruption import Corruption, Masked, masked_counts
from electra.objectives.masking import Masking
from electra.objectives.objective import Objective
from electra.objectives.vocabulary import Vocabulary


class MaskingObjective(Objective):
    """An objective that masks tokens, and knows how many the whole step masks.

    A rate that changes is a tensor on the device: a captured step reads it anew, with shapes for
    the largest rate.
    """

    mask_rate: Tensor | None

    def __init__(self, masking: Masking, *, vocabulary: Vocabulary, unigrams: Tensor) -> None:
        super().__init__(vocabulary=vocabulary, unigrams=unigrams)
        self.masking = masking
        self.corruption = Corruption(vocabulary)
        rate = None
        if masking.final_rate is not None:
            rate = torch.tensor(masking.rate)
        self.register_buffer("mask_rate", rate, persistent=False)

    def begin_step(self, step: int, *, max_steps: int) -> None:
        if self.mask_rate is not None:
            self.mask_rate.fill_(self.masking.rate_at(step, max_steps=max_steps))

    def mask(self, batch: Batch, rng: torch.Generator | None) -> Masked:
        """Mask tokens of a batch: in training at the rate of this step, else at the fixed one."""
        masking, rate = self.masking_and_rate()
        return self.corruption.mask(batch, masking, rng, unigrams=self.unigrams, rate=rate)

    def masked_in_step(self, batch: Batch) -> Tensor:
        """Count the predicted positions of the whole step, over all micro-batches and processes."""
        masking, rate = self.masking_and_rate()
        length = batch.input_ids.shape[1]
        return masked_counts(batch.step_lengths, masking, length=length, rate=rate).sum()

    def masking_and_rate(self) -> tuple[Masking, Tensor | None]:
        if self.training:
            return self.masking, self.mask_rate
        return self.masking.for_evaluation(), None
