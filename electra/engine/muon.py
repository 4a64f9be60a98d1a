"""Muon (Jordan et al. 2024): the update of a hidden matrix is its momentum, orthogonalised.

    m = μm + (1 − μ)g    u = (1 − μ)g + μm
    w = (1 − rate · decay) w − rate · 0.2 √max(r, c) · O(u)

O(u) has the singular vectors of u and singular values near one. A value of it has a root mean
square of about 1/√max(r, c), so an update has that of AdamW's, 0.2, and a rate means the same to
both (Liu et al. 2025). A matrix cannot grow past 0.2 √max(r, c) / decay, by its singular values.

Weights that stack several matrices (queries, keys and values; both halves of a gated layer) are
orthogonalised one matrix at a time: joined, the largest would decide how far the others move.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from electra.engine.settings import OptimizerConfig
from electra.model.encoder import Block

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic; Jordan et al. 2024
ITERATIONS = 5
EPSILON = 1e-7
UPDATE_RMS = 0.2  # AdamW's, as measured by Liu et al. 2025


def hidden_matrices(module: nn.Module) -> dict[Tensor, int]:
    """Return the trained matrices of all encoder blocks, with how many each stacks by rows."""
    matrices: dict[Tensor, int] = {}
    for block in module.modules():
        if isinstance(block, Block):
            matrices |= block.weight_matrices()
    return {weight: count for weight, count in matrices.items() if weight.requires_grad}


def muon_groups(
    module: nn.Module, config: OptimizerConfig, lr_scale: Callable[[str], float]
) -> list[dict[str, Any]]:
    """Group the hidden matrices by shape, so that one product serves all of a group."""
    matrices = hidden_matrices(module)
    rate = config.muon_learning_rate or config.learning_rate
    factor = rate / config.learning_rate
    groups: dict[tuple[float, int, int, int], list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in module.named_parameters():
        if parameter in matrices:
            key = (factor * lr_scale(name), matrices[parameter], *parameter.shape)
            groups.setdefault(key, []).append((name, parameter))
    return [
        {
            "params": named,
            "lr_scale": scale,
            "decay": config.muon_weight_decay,
            "momentum": config.muon_momentum,
            "stacked": stacked,
        }
        for (scale, stacked, _, _), named in groups.items()
    ]


def is_muon(group: dict[str, Any]) -> bool:
    """Return whether Muon updates a parameter group, and not AdamW."""
    return "stacked" in group


def update_scale(group: dict[str, Any]) -> float:
    """Return the factor that gives orthogonal matrices of a group the size of AdamW's updates."""
    rows, columns = group["params"][0].shape
    return UPDATE_RMS * math.sqrt(max(rows // group["stacked"], columns))


def orthogonalize(matrices: Tensor) -> Tensor:
    """Return matrices [K, R, C], R ≤ C, with all singular values brought to about 0.7 to 1.2.

    The Newton–Schulz iteration in bf16 on a GPU. Not on a CPU: few multiply in it.
    """
    a, b, c = COEFFICIENTS
    norms = torch.linalg.vector_norm(matrices, dim=(1, 2), keepdim=True, dtype=torch.float32)
    x: Tensor = matrices / norms.clamp(min=EPSILON)
    if x.is_cuda:
        x = x.bfloat16()
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def orthogonalize_stacks(stacks: Sequence[Tensor]) -> list[Tensor]:
    """Orthogonalise stacks of matrices [K, R, C], those of one shape or its transpose at once."""
    wide = [stack.mT if stack.shape[1] > stack.shape[2] else stack for stack in stacks]
    by_shape: dict[torch.Size, list[int]] = {}
    for index, stack in enumerate(wide):
        by_shape.setdefault(stack.shape[1:], []).append(index)
    results = list(stacks)
    for indices in by_shape.values():
        joined = orthogonalize(torch.cat([wide[index] for index in indices]))
        parts = torch.split(joined, [len(wide[index]) for index in indices])
        for index, part in zip(indices, parts, strict=True):
            results[index] = part if part.shape == stacks[index].shape else part.mT
    return results


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon for the groups that `muon_groups` makes, torch's fused AdamW for the others."""

    def __init__(
        self,
        groups: list[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
    ) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0})
        others = [group for group in self.param_groups if not is_muon(group)]
        self.adamw = torch.optim.AdamW(others, lr=lr, betas=betas, eps=eps, fused=True)
        self.share_with_adamw()

    def share_with_adamw(self) -> None:
        """Let AdamW work on the groups and the state of this optimizer."""
        self.adamw.param_groups = [group for group in self.param_groups if not is_muon(group)]
        self.adamw.state = self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)  # replaces groups and state
        self.share_with_adamw()

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient by the settings of their groups."""
        if closure is not None:
            raise ValueError("MuonWithAdamW.step takes no closure: compute the gradients before it")
        self.adamw.step()
        groups = [(group, used_parameters(group)) for group in self.param_groups if is_muon(group)]
        groups = [(group, used) for group, used in groups if used]
        stacks = [self.directions(group, used) for group, used in groups]
        for (group, used), update in zip(groups, orthogonalize_stacks(stacks), strict=True):
            whole = update.float().reshape(len(used), *used[0].shape)
            torch._foreach_mul_(used, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(used, whole.unbind(), alpha=-group["lr"] * update_scale(group))

    def directions(self, group: dict[str, Any], parameters: list[Tensor]) -> Tensor:
        """Update the momentum of parameters; return Nesterov's look ahead, [K, R, C]."""
        for parameter in parameters:
            if parameter not in self.state:
                self.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter)}
        gradients = [p.grad for p in parameters if p.grad is not None]
        momentum = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
        torch._foreach_lerp_(momentum, gradients, 1 - group["momentum"])
        directions = torch.stack(torch._foreach_lerp(gradients, momentum, group["momentum"]))
        return directions.view(len(parameters) * group["stacked"], -1, directions.shape[-1])


def used_parameters(group: dict[str, Any]) -> list[Tensor]:
    """Return the parameters that a loss has used: the others have no gradient."""
    return [parameter for parameter in group["params"] if parameter.grad is not None]
