"""The data loader of pre-training: the global batch of step n is a pure function of (seed, n).

A step's batch is cut into micro-batches of a fixed size, and the micro-batch is the unit of
randomness: masks, samples and dropout are keyed by (seed, step, micro-batch), never by rank. So a
run resumes from an integer, and one process computes the same losses as many.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import torch

from electra.data.batch_schedule import BatchSchedule
from electra.data.batches import Batch, collate
from electra.data.dataset import MemmapDataset
from electra.data.shuffle import random_key, shuffle_indices

PREFETCH_STEPS = 4


class DataLoader:
    """Loads the micro-batches of any step, in an order that depends on the seed alone."""

    def __init__(
        self,
        dataset: MemmapDataset,
        *,
        batches: BatchSchedule,
        micro_batch_size: int,
        seed: int,
    ) -> None:
        assert batches.initial_size % micro_batch_size == 0
        self.dataset = dataset
        self.batches = batches
        self.micro_batch_size = micro_batch_size
        self.seed = seed

    def step_indices(self, step: int) -> npt.NDArray[np.int64]:
        """Return the row indices of a step, counted from 1. A batch may straddle two epochs; no
        row comes twice within one epoch.
        """
        positions = np.arange(self.batches.rows_after(step - 1), self.batches.rows_after(step))
        size = len(self.dataset)
        epochs, positions_in_epoch = positions // size, positions % size
        indices = np.empty_like(positions)
        for epoch in np.unique(epochs):
            in_epoch = epochs == epoch
            key = random_key(self.seed, int(epoch))
            indices[in_epoch] = shuffle_indices(positions_in_epoch[in_epoch], size=size, key=key)
        return indices

    def load_step(self, step: int, micro_batches: Sequence[int]) -> list[Batch]:
        """Load the micro-batches of one step that one process trains on, by their numbers."""
        indices = self.step_indices(step)
        step_lengths = torch.from_numpy(self.dataset.ends(indices)[:, 1].astype(np.int64))
        size = self.micro_batch_size
        return [
            collate(self.dataset, indices[number * size : (number + 1) * size], step_lengths)
            for number in micro_batches
        ]

    def iterate(
        self,
        steps: Sequence[int],
        micro_batches_of: Callable[[int], Sequence[int]],
        *,
        pin_memory: bool = False,
    ) -> Iterator[list[Batch]]:
        """Load the micro-batches of many steps; a thread prefetches the next `PREFETCH_STEPS`."""

        def load(step: int) -> list[Batch]:
            batches = self.load_step(step, micro_batches_of(step))
            if pin_memory:
                batches = [batch.pin_memory() for batch in batches]
            return batches

        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="dataloader") as reader:
            pending: deque[Future[list[Batch]]] = deque()
            for step in steps:
                if len(pending) == PREFETCH_STEPS:
                    yield pending.popleft().result()
                pending.append(reader.submit(load, step))
            while pending:
                yield pending.popleft().result()


def eval_batches(
    dataset: MemmapDataset, *, micro_batch_size: int, max_rows: int
) -> Iterator[Batch]:
    """Load the first `max_rows` rows in the order of the files, the same at every evaluation."""
    count = min(max_rows, len(dataset))
    for start in range(0, count, micro_batch_size):
        yield collate(dataset, np.arange(start, min(start + micro_batch_size, count)))
