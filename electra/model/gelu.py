"""The exact GELU, x·Φ(x), with a backward pass that a CPU computes quickly."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor


def gelu(x: Tensor) -> Tensor:
    """Return x·Φ(x); torch's own function on a GPU.

    On a CPU torch's backward pass took a tenth of a training step of Small (16 rows of 128,
    aarch64), four times as long as the same formula over vectorised erf and exp.
    """
    if x.device.type == "cpu" and x.requires_grad:
        return cast(Tensor, CPUGelu.apply(x))  # type: ignore[no-untyped-call]
    return F.gelu(x)


class CPUGelu(torch.autograd.Function):
    """Keeps Φ(x) from the forward pass: d/dx x·Φ(x) = Φ(x) + x·φ(x)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        cdf = torch.erf(x * math.sqrt(0.5)).add_(1).mul_(0.5)
        ctx.save_for_backward(x, cdf)
        return x * cdf

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        x, cdf = cast(tuple[Tensor, Tensor], ctx.saved_tensors)
        pdf = x.square().mul_(-0.5).exp_().mul_(1 / math.sqrt(2 * math.pi))
        return pdf.mul_(x).add_(cdf).mul_(gradients[0])
