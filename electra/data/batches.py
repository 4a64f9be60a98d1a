"""Batches of token ids, collated from rows of a dataset that are padded to one length already, and
the packing with which kernels skip most of the padding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from electra.data.dataset import MemmapDataset

# A packed batch has a multiple of 1/32 of the tokens of a padded one. A CUDA graph is captured and
# Triton tunes itself once for each number of tokens that occurs, so these numbers must be few.
PACKING_BUCKETS = 32


class Packing(NamedTuple):
    """Positions that remain when a batch [B, T] drops most of its padding: its real tokens row
    after row, then the remaining padding in rows of its own.
    """

    token_indices: Tensor  # [N] int64, indices into the flattened batch [B · T]
    # [rows + 1] int32, the first token of each row and then N; rows beyond the batch's may be empty
    cu_seqlens: Tensor


class Batch(NamedTuple):
    """One micro-batch, and the row lengths of the whole step, over which a loss is averaged."""

    input_ids: Tensor  # [B, T] int64
    token_type_ids: Tensor  # [B, T] int64, 0 for the first segment, 1 for the second
    lengths: Tensor  # [B] real tokens in each row
    step_lengths: Tensor  # [batch size] real tokens in each row of the step, on every process
    packing: Packing | None = None  # None where a packed batch would not be smaller

    @property
    def attention_mask(self) -> Tensor:
        """Return [B, T], True for a token and False for padding."""
        positions = torch.arange(self.input_ids.shape[1], device=self.input_ids.device)
        return positions < self.lengths[:, None]

    def to(self, device: torch.device) -> Batch:
        """Copy every tensor to a device, without waiting where the tensors are pinned."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        """Copy every tensor to page-locked memory, from which a GPU copies asynchronously."""
        return self.map(torch.Tensor.pin_memory)

    def map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """Apply a function to every tensor of the batch."""
        packing = self.packing
        if packing is not None:
            packing = Packing(function(packing.token_indices), function(packing.cu_seqlens))
        return Batch(
            function(self.input_ids),
            function(self.token_type_ids),
            function(self.lengths),
            function(self.step_lengths),
            packing,
        )


def collate(
    dataset: MemmapDataset, indices: npt.NDArray[np.int64], step_lengths: Tensor | None = None
) -> Batch:
    """Read the rows with these indices into one batch; by default it is a whole step."""
    ids, ends = dataset.take(indices)
    position = np.arange(ids.shape[1])
    in_second_segment = (position >= ends[:, :1]) & (position < ends[:, 1:])
    lengths = torch.from_numpy(ends[:, 1].astype(np.int64))
    if step_lengths is None:
        step_lengths = lengths
    return Batch(
        input_ids=torch.from_numpy(ids.astype(np.int64)),
        token_type_ids=torch.from_numpy(in_second_segment.astype(np.int64)),
        lengths=lengths,
        step_lengths=step_lengths,
        packing=pack_rows(ends[:, 1], ids.shape[1]),
    )


def pack_rows(lengths: npt.NDArray[np.integer[Any]], max_length: int) -> Packing | None:
    """Return the packing of rows with these lengths in a batch padded to `max_length`, or None
    where it would drop no padding.

    Some padding stays, so that the number of tokens is one of `PACKING_BUCKETS`.
    """
    padded_tokens, ends = len(lengths) * max_length, np.cumsum(lengths)
    bucket = packing_bucket(len(lengths), max_length)
    packed_tokens = -(-int(ends[-1]) // bucket) * bucket
    if packed_tokens >= padded_tokens:
        return None
    attention_mask = (np.arange(max_length) < lengths[:, None]).ravel()
    real, padding = np.flatnonzero(attention_mask), np.flatnonzero(~attention_mask)
    token_indices = np.concatenate([real, padding])[:packed_tokens]
    padding_rows = 1 + np.arange(-(-bucket // max_length))
    padding_ends = np.minimum(ends[-1] + max_length * padding_rows, packed_tokens)
    cu_seqlens = np.concatenate([[0], ends, padding_ends]).astype(np.int32)
    return Packing(torch.from_numpy(token_indices), torch.from_numpy(cu_seqlens))


def packing_bucket(rows: int, max_length: int) -> int:
    """Return the number of tokens of which a packed batch has a multiple."""
    return max(max_length, -(-rows * max_length // PACKING_BUCKETS))


def largest_batches(batch: Batch) -> list[Batch]:
    """Return batches of the two shapes that take the most memory: one without padding, and the
    packed one with the most tokens, where a batch of so many rows can be packed.
    """
    rows, max_length = batch.input_ids.shape
    batches = []
    for missing in (0, -(-packing_bucket(rows, max_length) // rows)):
        if missing < max_length:  # a single row is never packed
            lengths = np.full(rows, max_length - missing)
            packing = pack_rows(lengths, max_length)
            batches.append(batch._replace(lengths=torch.from_numpy(lengths), packing=packing))
    return batches
