"""The exact gelu, x·Φ(x), with a backward pass that a CPU computes quickly."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor


def gelu(x: Tensor) -> Tensor:
    """Torch's own on a GPU. On a CPU its backward pass took a tenth of a training step of Small (16
    rows of 128, aarch64), four times as long as the same formula over vectorised erf and exp.
    """
    if x.device.type == "cpu" and x.requires_grad:
        return cast(Tensor, CPUGelu.apply(x))  # type: ignore[no-untyped-call]
    return F.gelu(x)


class CPUGelu(torch.autograd.Function):
    """Keeps Φ(x) from the forward pass: d/dx x·Φ(x) = Φ(x) + x·φ(x)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        share = torch.erf(x * math.sqrt(0.5)).add_(1).mul_(0.5)
        ctx.save_for_backward(x, share)
        return x * share

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        x, share = cast(tuple[Tensor, Tensor], ctx.saved_tensors)
        density = x.square().mul_(-0.5).exp_().mul_(1 / math.sqrt(2 * math.pi))
        return density.mul_(x).add_(share).mul_(gradients[0])
