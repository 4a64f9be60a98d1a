"""Rows become batches: the global batch of step n is a pure function of (seed, n).

A step's batch is cut into micro-batches of a fixed size, and the micro-batch is the unit of
randomness: masks, samples and dropout are keyed by (seed, step, micro-batch), never by rank. So a
run resumes from an integer, and one process sees the same losses as many.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from electra.data.shards import Rows

AHEAD = 4  # steps that are read before they are wanted
PORTIONS = 32  # of a batch that may be left out when they hold only padding


class Packed(NamedTuple):
    """A batch without most of its padding: its real tokens row after row, then some padding in rows
    of its own.
    """

    tokens: Tensor  # [N] int64: where in B · T each one stands
    # [rows + 1] int32: where each row begins, and N; rows beyond the batch's may be empty
    bounds: Tensor


class Batch(NamedTuple):
    """One micro-batch, and what a loss must know of the whole step to be a mean over it."""

    input_ids: Tensor  # [B, T] int64
    token_type_ids: Tensor  # [B, T] int64, 0 for the first segment, 1 for the second
    lengths: Tensor  # [B] real tokens in each row
    step_lengths: Tensor  # [batch size] the same for every row of the step, on every process
    packed: Packed | None = None  # where it is smaller; for electra.kernels.rows

    @property
    def attention_mask(self) -> Tensor:
        """[B, T] where there is a token and not padding. Whoever can do without padding finds
        `packed` at it.
        """
        attention_mask = (
            torch.arange(self.input_ids.shape[1], device=self.input_ids.device)
            < self.lengths[:, None]
        )
        attention_mask.packed = self.packed  # type: ignore[attr-defined]
        return attention_mask

    def to(self, device: torch.device) -> Batch:
        return self.each(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> Batch:
        """In memory that a GPU reads by itself, while the process goes on."""
        return self.each(torch.Tensor.pin_memory)

    def each(self, move: Callable[[Tensor], Tensor]) -> Batch:
        return Batch(
            move(self.input_ids),
            move(self.token_type_ids),
            move(self.lengths),
            move(self.step_lengths),
            None if self.packed is None else Packed(*map(move, self.packed)),
        )


class Batches:
    """Every step's micro-batches, in an order that nothing but the seed decides."""

    def __init__(self, rows: Rows, *, batch_size: int, micro_batch_size: int, seed: int) -> None:
        assert batch_size % micro_batch_size == 0
        self.rows, self.batch_size, self.micro_batch_size, self.seed = (
            rows,
            batch_size,
            micro_batch_size,
            seed,
        )

    @property
    def micro_batches(self) -> int:
        return self.batch_size // self.micro_batch_size

    def step_rows(self, step: int) -> npt.NDArray[np.int64]:
        """The rows of step n, counted from 1. A batch may straddle two epochs; no row comes twice
        within one.
        """
        places = np.arange((step - 1) * self.batch_size, step * self.batch_size)
        epochs, within = places // len(self.rows), places % len(self.rows)
        found = np.empty_like(places)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            found[here] = shuffled(
                within[here], size=len(self.rows), key=random_key(self.seed, int(epoch))
            )
        return found

    def of_step(self, step: int, which: Sequence[int]) -> list[Batch]:
        """The micro-batches of one step that one process takes."""
        rows = self.step_rows(step)
        step_lengths = torch.from_numpy(self.rows.ends(rows)[:, 1].astype(np.int64))
        size = self.micro_batch_size
        return [assemble(self.rows, rows[m * size : (m + 1) * size], step_lengths) for m in which]

    def stream(
        self, steps: Sequence[int], which: Sequence[int], *, pinned: bool = False
    ) -> Iterator[list[Batch]]:
        """The batches of many steps, read while those before them are being used."""

        def read(step: int) -> list[Batch]:
            batches = self.of_step(step, which)
            return [batch.pinned() for batch in batches] if pinned else batches

        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches") as reader:
            pending = deque(reader.submit(read, step) for step in steps[:AHEAD])
            for step in chain(steps[AHEAD:], [None] * AHEAD):
                if not pending:
                    return
                yield pending.popleft().result()
                if step is not None:
                    pending.append(reader.submit(read, step))


def in_order(rows: Rows, *, micro_batch_size: int, most: int) -> Iterator[Batch]:
    """The first `most` rows as they lie on disk: the held-out rows, the same at every evaluation."""
    for start in range(0, min(most, len(rows)), micro_batch_size):
        chosen = np.arange(start, min(start + micro_batch_size, most, len(rows)))
        yield assemble(rows, chosen)


def assemble(
    rows: Rows, chosen: npt.NDArray[np.int64], step_lengths: Tensor | None = None
) -> Batch:
    ids, ends = rows.take(chosen)
    second = (np.arange(ids.shape[1]) >= ends[:, :1]) & (np.arange(ids.shape[1]) < ends[:, 1:])
    lengths = torch.from_numpy(ends[:, 1].astype(np.int64))
    return Batch(
        input_ids=torch.from_numpy(ids.astype(np.int64)),
        token_type_ids=torch.from_numpy(second.astype(np.int64)),
        lengths=lengths,
        step_lengths=lengths if step_lengths is None else step_lengths,
        packed=packing(ends[:, 1], ids.shape[1]),
    )


def packing(lengths: npt.NDArray[np.integer[Any]], length: int) -> Packed | None:
    """So much padding stays that the tokens are a multiple of a small part of the batch: a GPU
    prepares itself for each number that occurs. None where nothing would be left out.
    """
    whole, ends = len(lengths) * length, np.cumsum(lengths)
    portion = max(length, -(-whole // PORTIONS))
    count = -(-int(ends[-1]) // portion) * portion
    if count >= whole:
        return None
    attention_mask = (np.arange(length) < lengths[:, None]).ravel()
    tokens = np.concatenate([np.flatnonzero(attention_mask), np.flatnonzero(~attention_mask)])[
        :count
    ]
    rest = np.minimum(ends[-1] + length * np.arange(1, 1 + -(-portion // length)), count)
    return Packed(
        torch.from_numpy(tokens),
        torch.from_numpy(np.concatenate([[0], ends, rest]).astype(np.int32)),
    )


def random_key(*parts: int | str) -> int:
    """63 bits that depend on every part, and on nothing else: not on the process, not on Python's
    own hashing.
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


ROUNDS = 6


def shuffled(places: npt.NDArray[np.int64], *, size: int, key: int) -> npt.NDArray[np.int64]:
    """Where each place of an epoch finds its row: a random bijection on range(size) that is never
    stored.

    A Feistel network permutes the next even power of two; what lands outside is sent through again
    until it is inside. A table would cost 8 GB for a billion rows, on every process.
    """
    half = np.uint64(max(1, (max(size - 1, 1).bit_length() + 1) // 2))
    low = (np.uint64(1) << half) - np.uint64(1)
    keys = [np.uint64(random_key(key, i)) for i in range(ROUNDS)]
    found = places.astype(np.uint64)
    outside = np.ones(len(found), dtype=bool)
    while outside.any():
        left, right = found[outside] >> half, found[outside] & low
        for round_key in keys:
            left, right = right, left ^ (mixed(right ^ round_key) & low)
        found[outside] = (left << half) | right
        outside = found >= size
    return found.astype(np.int64)


def mixed(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Every output bit depends on every input bit (the finaliser of SplitMix64); unsigned products
    wrap on purpose.
    """
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
