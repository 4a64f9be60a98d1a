"""Gradient clipping: all parameters by one norm, or each network by its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from electra.engine.fsdp import full_tensor
from electra.engine.settings import OptimizerConfig
from electra.model.disentangled import DisentangledEmbedding


def clip_groups(module: nn.Module, config: OptimizerConfig) -> list[list[Tensor]]:
    """Return the parameters whose gradients are clipped by one norm, group by group.

    With `clip = "each"` those are the generator's, the main network's, and what both of them move:
    in the norm of either, the gradients of the other would count.
    """
    if config.clip == "together":
        return [list(module.parameters())]
    moved_by: dict[Tensor, set[bool]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            moved_by.setdefault(parameter, set()).add(name.startswith("generator."))
    for part in module.modules():
        if isinstance(part, DisentangledEmbedding):
            moved_by[part.shared.weight] = {True}
    groups: dict[frozenset[bool], list[Tensor]] = {}
    for moved, movers in moved_by.items():
        groups.setdefault(frozenset(movers), []).append(moved)
    return list(groups.values())


def gradient_norms(groups: list[list[Tensor]]) -> list[Tensor]:
    """Return the norm of each group's gradients."""
    norms = []
    for group in groups:
        gradients = [parameter.grad for parameter in group if parameter.grad is not None]
        norms.append(full_tensor(nn.utils.get_total_norm(gradients)))
    return norms


def total_norm(norms: list[Tensor]) -> Tensor:
    """Return the norm of all gradients from those of the groups."""
    if len(norms) == 1:
        return norms[0]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm


def clip_gradients(groups: list[list[Tensor]], norms: list[Tensor], *, max_norm: float) -> None:
    """Scale the gradients of every group whose norm is above `max_norm`; nothing is read back."""
    for group, norm in zip(groups, norms, strict=True):
        nn.utils.clip_grads_with_norm_(group, max_norm, norm)
