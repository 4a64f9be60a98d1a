"""Which layers of an encoder to read: the feature-based approach, with a frozen encoder."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from electra.config import UserError

CHOICES = "last, sum-last-4, concat-last-4, mix, or a number from 0 (the embeddings) up"


def layer_width(how: str, width: int, *, layers: int) -> int:
    """Return the width of what is read; refuse a choice that this encoder does not have."""
    if how.isdecimal():
        if int(how) > layers:
            raise UserError(f"--layer {how}: this encoder has {layers} layers; choose {CHOICES}")
        return width
    if how in ("last", "mix"):
        return width
    if not re.fullmatch(r"(sum|concat)-last-[1-9]\d?", how):
        raise UserError(f"--layer {how}: unknown; choose {CHOICES}")
    kind, _, count = how.partition("-last-")
    if int(count) > layers:
        raise UserError(f"--layer {how}: this encoder has only {layers} layers")
    if kind == "concat":
        return width * int(count)
    return width


class LayerReader(nn.Module):
    """Combines the hidden states of all layers, the embeddings first, into one vector a token."""

    def __init__(self, layers: int, how: str) -> None:
        super().__init__()
        self.how = how
        # Peters et al.: a softmax over the layers and one scale, both trained.
        self.weights, self.scale = None, None
        if how == "mix":
            self.weights = nn.Parameter(torch.zeros(layers + 1))
            self.scale = nn.Parameter(torch.ones(1))

    def forward(self, hidden_states: Sequence[Tensor]) -> Tensor:
        """Return [B, T, D] of each layer's [B, T, D], or [B, T, n·D] where n are joined."""
        if self.weights is not None and self.scale is not None:
            weights = self.weights.softmax(0)
            weighted = [w * layer for w, layer in zip(weights, hidden_states, strict=True)]
            return self.scale * torch.stack(weighted).sum(0)
        if self.how == "last":
            return hidden_states[-1]
        if self.how.isdecimal():
            return hidden_states[int(self.how)]
        kind, _, count = self.how.partition("-last-")
        chosen = list(hidden_states[-int(count) :])
        if kind == "concat":
            return torch.cat(chosen, dim=-1)
        return torch.stack(chosen).sum(0)
