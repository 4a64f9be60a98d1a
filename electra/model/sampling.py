"""One token sampled from each row of logits."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How a generator samples: its temperature, and whether it may sample the original token."""

    temperature: float = 1.0
    disallow_correct: bool = False


def sample(
    logits: Tensor,
    *,
    temperature: float = 1.0,
    banned: Tensor | None = None,
    rng: torch.Generator | None,
) -> Tensor:
    """Sample token ids [...] from logits [..., V] by the Gumbel-max trick; never the banned one.

    −log(−log u) of a uniform u is Gumbel noise.
    """
    uniform = torch.rand(logits.shape, dtype=torch.float32, device=logits.device, generator=rng)
    noise = uniform.log_().neg_().log_()
    keys = (logits.detach().float() / temperature).sub_(noise)
    if banned is not None:
        keys.scatter_(-1, banned.unsqueeze(-1), -math.inf)
    return keys.argmax(dim=-1)
