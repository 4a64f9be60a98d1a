"""AdamW as the paper's code has it, and as torch has it; schedules; what decays, and how fast each
layer learns.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import torch
from torch import Tensor, nn

from electra.engine.fsdp import full_tensor
from electra.engine.settings import OptimizerConfig


def build_optimizer(
    module: nn.Module,
    config: OptimizerConfig,
    *,
    lr_scale: Callable[[str], float] = lambda name: 1.0,
) -> torch.optim.AdamW:
    """Torch's fused AdamW. LayerNorms and biases do not decay; `share` of the rate a parameter
    gets, by its name.
    """
    groups: dict[tuple[float, float], list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in module.named_parameters():  # a shared tensor comes once
        if parameter.requires_grad:
            decay = config.weight_decay if parameter.ndim >= 2 else 0.0
            groups.setdefault((lr_scale(name), decay), []).append((name, parameter))
    described = [
        {"params": named, "lr_scale": part, "decay": decay}
        for (part, decay), named in sorted(groups.items(), key=lambda group: group[0], reverse=True)
    ]
    return torch.optim.AdamW(
        described, lr=config.learning_rate, betas=config.betas, eps=config.epsilon, fused=True
    )


def set_step(
    optimizer: torch.optim.AdamW,
    config: OptimizerConfig,
    *,
    step: int,
    max_steps: int,
    skipped: int = 0,
) -> float:
    """Prepare the update of this step, counted from 1; returns its learning rate. Skipped ones are
    unknown to torch.

    The official code leaves out Adam's bias correction. Torch always corrects: its step is
    lr/(1−β₁ᵗ) and its root is √v/√(1−β₂ᵗ). Scaling lr by s = (1−β₁ᵗ)/√(1−β₂ᵗ), epsilon by
    1/√(1−β₂ᵗ) and decay by 1/s undoes just that.
    """
    rate = config.learning_rate * schedule(config, step=step, max_steps=max_steps)
    updates = step - skipped
    root = math.sqrt(1 - config.betas[1] ** updates)
    scale = 1.0 if config.bias_correction else (1 - config.betas[0] ** updates) / root
    for group in optimizer.param_groups:
        group["lr"] = rate * scale * group["lr_scale"]
        group["eps"] = config.epsilon if config.bias_correction else config.epsilon / root
        group["weight_decay"] = group["decay"] / scale
    return rate


def layer_lr_scale(name: str, *, layers: int, decay: float, official: bool = False) -> float:
    """The share of the learning rate that a parameter of encoder + head gets: each layer less than
    the one above it.

    The head gets all of it, the top layer `decay` of it, and so down to the embeddings. The
    official code counts one layer too many between head and top layer (its authors called it a bug;
    published numbers were made with it).
    """
    if not name.startswith("encoder."):
        return 1.0
    number = re.match(r"encoder\.blocks\.(\d+)\.", name)
    below_head = layers - int(number[1]) if number else layers + 1
    return float(decay ** (below_head + official))


def schedule(config: OptimizerConfig, *, step: int, max_steps: int) -> float:
    """The share of the learning rate at a step, counted from 1 so that the first update moves.

    Reference code: warm-up and linear decay are multiplied, so the peak stays below the stated
    rate.
    """
    warmup = min(1.0, step / config.warmup_steps) if config.warmup_steps else 1.0
    remaining = max(0.0, 1 - step / max_steps)
    if config.schedule == "linear":
        return warmup * remaining
    if config.schedule == "cosine":
        return warmup * (1 - math.cos(math.pi * remaining)) / 2
    if config.schedule == "wsd":
        return warmup * min(1.0, remaining / config.decay_share)
    return warmup


def gradient_norm(
    module: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
) -> Tensor:
    """Of all gradients, unscaled."""
    scaler.unscale_(optimizer)
    return full_tensor(
        nn.utils.get_total_norm([p.grad for p in module.parameters() if p.grad is not None])
    )


def is_sound(norm: Tensor, scaler: torch.amp.GradScaler) -> bool:
    """Finite; or an overflow in fp16, which is part of the game: the scaler skips the step and
    halves its scale, down to one.
    """
    return bool(torch.isfinite(norm)) or (scaler.is_enabled() and scaler.get_scale() > 1)


def clip_and_step(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    *,
    norm: Tensor,
    max_norm: float,
) -> bool:
    """One update; False when the scaler skipped it."""
    nn.utils.clip_grads_with_norm_(module.parameters(), max_norm, norm)
    scale = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    return not scaler.get_scale() < scale
