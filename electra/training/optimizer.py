"""AdamW as the paper's code has it, and as torch has it; schedules; which parameters decay."""

from __future__ import annotations

import math

import torch
from torch import nn

from electra.training.recipe import OptimizerConfig


def build_optimizer(module: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """Torch's fused AdamW over two groups: what decays, and LayerNorms and biases, which do not."""
    decayed: list[tuple[str, nn.Parameter]] = []
    plain: list[tuple[str, nn.Parameter]] = []
    for name, parameter in module.named_parameters():  # a shared tensor comes once
        if parameter.requires_grad:
            (plain if parameter.ndim < 2 else decayed).append((name, parameter))
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, eps=config.epsilon, fused=True)


def set_step(optimizer: torch.optim.AdamW, config: OptimizerConfig, *, step: int, max_steps: int,
             skipped: int = 0) -> float:
    """Prepare the update of this step, counted from 1; returns its learning rate. Skipped ones are unknown to torch.

    The official code leaves out Adam's bias correction. Torch always corrects: its step is lr/(1−β₁ᵗ) and its root is
    √v/√(1−β₂ᵗ). Scaling lr by s = (1−β₁ᵗ)/√(1−β₂ᵗ), epsilon by 1/√(1−β₂ᵗ) and decay by 1/s undoes just that.
    """
    rate = config.learning_rate * schedule(config, step=step, max_steps=max_steps)
    updates = step - skipped
    root = math.sqrt(1 - config.betas[1] ** updates)
    scale = 1.0 if config.bias_correction else (1 - config.betas[0] ** updates) / root
    for group, decay in zip(optimizer.param_groups, (config.weight_decay, 0.0), strict=True):
        group["lr"] = rate * scale
        group["eps"] = config.epsilon if config.bias_correction else config.epsilon / root
        group["weight_decay"] = decay / scale
    return rate


def schedule(config: OptimizerConfig, *, step: int, max_steps: int) -> float:
    """The share of the learning rate at a step, counted from 1 so that the first update moves.

    Reference code: warm-up and linear decay are multiplied, so the peak stays below the stated rate.
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
