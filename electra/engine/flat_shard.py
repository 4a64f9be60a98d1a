"""The part of flat buffers that one process updates (ZeRO-1, Rajbhandari et al. 2020)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# torch 2.13 renamed it, and warns of the name that earlier versions have.
all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@dataclass(frozen=True)
class FlatShard:
    """Part `rank` of `size` equal, contiguous parts of flat buffers. With size 1 it is all."""

    rank: int = 0
    size: int = 1

    def of(self, buffer: Tensor) -> Tensor:
        """Return this process's part of a whole buffer, as a view."""
        length = len(buffer) // self.size
        return buffer[self.rank * length : (self.rank + 1) * length]

    def all_gather(self, buffer: Tensor) -> None:
        """Fill a whole buffer with the parts of all processes."""
        if self.size > 1:
            all_gather(buffer, self.of(buffer))

    def broadcast_parts(self, end_of_whole: Tensor, length: int) -> None:
        """Fill the end of a whole buffer of `length` values with the parts of all processes."""
        first = length - len(end_of_whole)
        for owner in range(self.size) if self.size > 1 else ():
            part = FlatShard(owner, self.size).overlap(slice(first, length), length // self.size)
            if part.stop > part.start:
                dist.broadcast(end_of_whole[part.start - first : part.stop - first], src=owner)

    def overlap(self, whole: slice, length: int) -> slice:
        """Return where this process's part of `length` values meets a slice of the whole buffer.

        It is empty where they do not meet.
        """
        begin = max(whole.start, self.rank * length)
        return slice(begin, max(begin, min(whole.stop, (self.rank + 1) * length)))


WHOLE = FlatShard()


class WeightExchange:
    """Sends updated weights to all processes: float32 only where kernels read it.

    `slices` are those parameters' places in the flat buffers. All others are read from the
    low-precision copies alone, and are sent in that precision.
    """

    def __init__(self, shard: FlatShard, flat_param: Tensor, slices: Iterable[slice]) -> None:
        self.shard = shard
        slices = list(slices)
        lengths = [part.stop - part.start for part in slices]
        self.packed = torch.zeros(sum(lengths), device=flat_param.device)
        self.weights = [flat_param[part] for part in slices]
        self.copies = list(torch.split(self.packed, lengths))
        self.own_weights: list[Tensor] = []
        self.own_copies: list[Tensor] = []
        for part, copy in zip(slices, self.copies, strict=True):
            own = shard.overlap(part, len(flat_param) // shard.size)
            if own.stop > own.start:
                self.own_weights.append(flat_param[own])
                self.own_copies.append(copy[own.start - part.start : own.stop - part.start])

    def all_gather(self, flat_low_precision: Tensor) -> None:
        """Bring the low-precision copies and the float32 weights of `slices` up to date."""
        self.shard.all_gather(flat_low_precision)
        self.packed.zero_()
        if self.own_copies:
            torch._foreach_copy_(self.own_copies, self.own_weights)
        # One process has the weight and all others zero. A sum of integers keeps every bit.
        dist.all_reduce(self.packed.view(torch.int32))
        torch._foreach_copy_(self.weights, self.copies)
