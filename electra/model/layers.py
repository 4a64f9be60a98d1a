"""Which layers of an encoder to read: the feature-based approach, where the encoder itself is not
trained.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from electra.config import UserError

CHOICES = "last, sum-last-4, concat-last-4, mix, or a number from 0 (the embeddings) up"


def layer_width(how: str, width: int, *, layers: int) -> int:
    """The width of what is read; a choice that this encoder does not have is refused."""
    if how.isdecimal() and int(how) > layers:
        raise UserError(f"--layer {how}: this encoder has {layers} layers; choose {CHOICES}")
    if (
        not how.isdecimal()
        and how not in ("last", "mix")
        and not re.fullmatch(r"(sum|concat)-last-[1-9]\d?", how)
    ):
        raise UserError(f"--layer {how}: unknown; choose {CHOICES}")
    if "-last-" in how and int(how.rpartition("-")[2]) > layers:
        raise UserError(f"--layer {how}: this encoder has only {layers} layers")
    return width * int(how.rpartition("-")[2]) if how.startswith("concat-") else width


class LayerReader(nn.Module):
    """Vectors of all layers, the embeddings first, become one vector a token."""

    def __init__(self, layers: int, how: str) -> None:
        super().__init__()
        self.how = how
        # Peters et al.: a softmax over the layers and one scale, both trained.
        self.weights = nn.Parameter(torch.zeros(layers + 1)) if how == "mix" else None
        self.scale = nn.Parameter(torch.ones(1)) if how == "mix" else None

    def forward(self, hidden: Sequence[Tensor]) -> Tensor:
        """[B, T, D] of each layer in; [B, T, D], or [B, T, n·D] when n are joined, out."""
        if self.weights is not None and self.scale is not None:
            shares = self.weights.softmax(0)
            return self.scale * torch.stack(
                [share * layer for share, layer in zip(shares, hidden, strict=True)]
            ).sum(0)
        if self.how == "last":
            return hidden[-1]
        if self.how.isdecimal():
            return hidden[int(self.how)]
        kind, _, count = self.how.partition("-last-")
        chosen = hidden[-int(count) :]
        return (
            torch.cat(list(chosen), dim=-1)
            if kind == "concat"
            else torch.stack(list(chosen)).sum(0)
        )
