"""Gradient-disentangled embedding sharing (DeBERTaV3, He et al. 2021)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class DisentangledEmbedding(nn.Module):
    """Another network's table plus a difference of its own, which starts at zero.

    Gradients reach the difference alone: only the other network moves the shared table.
    """

    def __init__(self, shared: nn.Embedding) -> None:
        super().__init__()
        self.shared = shared
        self.delta = nn.Parameter(torch.zeros_like(shared.weight))

    @property
    def weight(self) -> Tensor:
        """The table [V, E] that this network reads."""
        return self.shared.weight.detach() + self.delta

    @property
    def num_embeddings(self) -> int:
        return self.shared.num_embeddings

    def set_weight(self, weight: Tensor) -> None:
        """Set the difference so that this network reads `weight`."""
        self.delta.copy_(weight - self.shared.weight)

    def move_to_shared(self) -> None:
        """Let the other network begin with the table that this one reads."""
        self.shared.weight.copy_(self.weight)
        self.delta.zero_()

    def forward(self, input_ids: Tensor) -> Tensor:
        looked_up = F.embedding(input_ids, self.shared.weight.detach())
        return looked_up + F.embedding(input_ids, self.delta)
