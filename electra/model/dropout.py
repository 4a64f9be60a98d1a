"""Dropout, with random bits that a CPU draws four at a time."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEVELS = 2**16


class Dropout(nn.Module):
    """Drops values at a rate; torch's own dropout on a GPU.

    On a CPU torch draws a double for every value, which took a twelfth of a training step of Small.
    Sixteen bits for each are a quarter of the work, and the rate is exact to 1/65536.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.rate)
        return x * scaled_keep_mask(x, self.rate)


def scaled_keep_mask(x: Tensor, rate: float) -> Tensor:
    """Return a mask like `x`: zero where a value is dropped, 1 / (1 − rate) elsewhere."""
    dropped = round(rate * LEVELS)
    random_words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    levels = random_words.view(torch.int16)[: x.numel()].view(x.shape)
    keep = (levels >= dropped - LEVELS // 2).to(x.dtype)
    return keep.mul_(LEVELS / (LEVELS - dropped))
