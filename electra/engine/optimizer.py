"""Optimizers and their parameter groups, and the learning-rate scheduler."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn

from electra.engine.clipping import clip_groups
from electra.engine.flat_adamw import FlatAdamW
from electra.engine.flat_muon import FlatMuon
from electra.engine.flat_shard import WHOLE, FlatShard
from electra.engine.muon import MuonWithAdamW, hidden_matrices, is_muon, muon_groups
from electra.engine.settings import OptimizerConfig

FIRST_UPDATES = 1000  # after which Adam's bias in the first moment is gone, with any usual β₁
MANY_UPDATES = 100_000  # after which that in the second is, with any usual β₂


def build_optimizer(
    module: nn.Module,
    config: OptimizerConfig,
    *,
    lr_scale: Callable[[str], float] = lambda name: 1.0,
    low_precision: torch.dtype | None = None,
    shard: FlatShard = WHOLE,
) -> torch.optim.Optimizer:
    """Build torch's fused AdamW, or FlatAdamW where kernels read weights in `low_precision`; or
    their counterparts with Muon.

    `lr_scale` gives the factor of a parameter's learning rate by its name. The optimizers of flat
    buffers may have a `shard` of the optimizer state.
    """
    groups = parameter_groups(module, config, lr_scale)
    adamw: dict[str, Any] = {
        "lr": config.learning_rate,
        "betas": config.betas,
        "eps": config.epsilon,
    }
    flat: dict[str, Any] = {
        "max_grad_norm": config.max_grad_norm,
        "clip_groups": clip_groups(module, config),
        "low_precision": low_precision,
    }
    if config.name == "muon":
        groups += muon_groups(module, config, lr_scale)
        if low_precision is None:
            return MuonWithAdamW(groups, **adamw)
        return FlatMuon(groups, momentum=config.muon_momentum, **adamw, **flat, shard=shard)
    if low_precision is None:
        return torch.optim.AdamW(groups, **adamw, fused=True)
    return FlatAdamW(groups, **adamw, **flat, shard=shard)


def parameter_groups(
    module: nn.Module, config: OptimizerConfig, lr_scale: Callable[[str], float]
) -> list[dict[str, Any]]:
    """Group the trainable parameters of AdamW by learning-rate scale and weight decay.

    LayerNorms and biases have no weight decay.
    """
    matrices: Collection[Tensor] = ()
    if config.name == "muon":
        matrices = hidden_matrices(module)
    groups: dict[tuple[float, float], list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in module.named_parameters():  # a shared tensor comes once
        if parameter.requires_grad and parameter not in matrices:
            decay = config.weight_decay if parameter.ndim >= 2 else 0.0
            groups.setdefault((lr_scale(name), decay), []).append((name, parameter))
    return [
        {"params": named, "lr_scale": scale, "decay": decay}
        for (scale, decay), named in sorted(
            groups.items(), key=lambda group: group[0], reverse=True
        )
    ]


def set_learning_rate(
    optimizer: torch.optim.Optimizer,
    config: OptimizerConfig,
    *,
    step: int,
    max_steps: int,
    skipped: int = 0,
) -> float:
    """Set every group's rate, epsilon and decay for this step, counted from 1; return the rate.

    `skipped` updates were left out, so Adam has counted that many fewer.

    The official code leaves out Adam's bias correction. Torch always corrects: its step is
    lr/(1−β₁ᵗ) and its root is √v/√(1−β₂ᵗ). Scaling lr by s = (1−β₁ᵗ)/√(1−β₂ᵗ), epsilon by
    1/√(1−β₂ᵗ) and decay by 1/s undoes just that. Muon has no bias to correct.
    """
    rate = config.learning_rate * learning_rate_factor(config, step=step, max_steps=max_steps)
    scale, epsilon = 1.0, config.epsilon
    if not config.bias_correction:
        scale, root = without_bias_correction(config, step - skipped)
        epsilon = config.epsilon / root
    for group in optimizer.param_groups:
        if is_muon(group):
            group["lr"] = rate * group["lr_scale"]
            group["weight_decay"] = group["decay"]
            continue
        group["lr"] = rate * scale * group["lr_scale"]
        group["eps"] = epsilon
        group["weight_decay"] = group["decay"] / scale
    return rate


def without_bias_correction(config: OptimizerConfig, updates: int) -> tuple[float, float]:
    """Return s and √(1−β₂ᵗ) after so many updates."""
    root = math.sqrt(1 - config.betas[1] ** updates)
    return (1 - config.betas[0] ** updates) / root, root


def largest_first_update(config: OptimizerConfig) -> float:
    """Return how large the first updates are in units of the learning rate, at most.

    Without bias correction Adam's are several times as large until it has averaged squares over
    1/(1−β₂) steps, unless the warm-up is longer than that.
    """
    if config.bias_correction:
        return 1.0
    return max(
        min(1.0, step / max(1, config.warmup_steps)) * without_bias_correction(config, step)[0]
        for step in range(1, min(max(FIRST_UPDATES, config.warmup_steps), MANY_UPDATES) + 1)
    )


def learning_rate_factor(config: OptimizerConfig, *, step: int, max_steps: int) -> float:
    """Return the scheduler's factor of the learning rate at a step, counted from 1.

    Official code: warm-up and linear decay are multiplied, so the peak stays below the stated rate.
    Decay counts the steps before this one, as there, so the last update still has a rate. Warm-up
    counts this one too: there the first update has the rate zero.
    """
    warmup = 1.0
    if config.warmup_steps:
        warmup = min(1.0, step / config.warmup_steps)
    remaining = 1 - (step - 1) / max_steps
    if config.schedule == "linear":
        return warmup * remaining
    if config.schedule == "cosine":
        return warmup * (1 - math.cos(math.pi * remaining)) / 2
    if config.schedule == "wsd":
        return warmup * min(1.0, remaining / config.decay_ratio)
    return warmup


def layer_lr_scale(name: str, *, layers: int, decay: float, official: bool = False) -> float:
    """Return the layer-wise learning-rate scale of a parameter of an encoder with a head.

    The head has scale 1, the top layer and a norm behind it `decay`, the layer below `decay`², and
    so on down to the embeddings. The official code counts one layer too many between head and top
    layer (its authors called it a bug; published numbers were made with it).
    """
    if not name.startswith("encoder."):
        return 1.0
    below_head = layers + 1
    if match := re.match(r"encoder\.blocks\.(\d+)\.", name):
        below_head = layers - int(match[1])
    elif name.startswith("encoder.final_norm."):
        below_head = 1
    return float(decay ** (below_head + official))


def can_step(norm: Tensor, scaler: torch.amp.GradScaler) -> bool:
    """Return whether the gradient is finite, or an fp16 overflow that the scaler skips by itself.

    The scaler then halves its scale, down to one. An overflow at scale one is no longer its matter.
    """
    return bool(torch.isfinite(norm)) or (scaler.is_enabled() and scaler.get_scale() > 1)


def step_and_update(optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> bool:
    """Update the weights; return False when the scaler skipped the update."""
    scale = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    return not scaler.get_scale() < scale
