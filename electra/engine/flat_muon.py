"""Muon over flat buffers, beside FlatAdamW, without a wait for the device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from electra.engine.flat_adamw import FlatAdamW
from electra.engine.muon import is_muon, orthogonalize_stacks, update_scale


class FlatMuon(FlatAdamW):
    """FlatAdamW for the first groups, Muon for those that `muon_groups` makes, which come last.

    Two kernels go over all hidden matrices. Between them, those of one shape are orthogonalised as
    one batch. `exp_avg` holds Muon's momentum too; `exp_avg_sq` ends where AdamW's parameters do.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        momentum: float,
        **adamw: Any,
    ) -> None:
        super().__init__(params, **adamw)
        from electra.kernels.muon import MuonBuffers

        self.momentum = momentum
        begin = self.adamw_blocks * self.block_size
        first_group = len(self.param_groups) - len(self.muon_groups)
        matrices = self.flat_param[begin:]
        dtype = torch.bfloat16 if matrices.is_cuda else torch.float32
        self.direction = torch.zeros_like(matrices, dtype=dtype)
        self.muon_buffers = MuonBuffers(
            weight=matrices,
            gradient=self.flat_grad[begin:],
            momentum=self.exp_avg[begin:],
            direction=self.direction,
            low_precision=self.flat_low_precision[begin:],
            group_index=self.group_indices[self.adamw_blocks :] - first_group,
            norm=self.grad_norm,
            failed_step=self.nonfinite_update,
        )
        self.stacks = [self.stack_view(group, begin) for group in self.muon_groups]

    @property
    def muon_groups(self) -> list[dict[str, Any]]:
        return [group for group in self.param_groups if is_muon(group)]

    @property
    def adamw_blocks(self) -> int:
        first: nn.Parameter = self.muon_groups[0]["params"][0]
        return int(self.slices[first].start) // self.block_size

    def state_views(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        if self.slices[parameter].start < len(self.exp_avg_sq):
            return super().state_views(parameter)
        return {"momentum_buffer": self.view(self.exp_avg, parameter)}

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Clip the gradient and update all parameters by the settings of their groups."""
        from electra.kernels import muon

        super().step(closure)
        muon.momentum_step(self.muon_buffers, max_norm=self.kernel_max_norm, momentum=self.momentum)
        updates = orthogonalize_stacks([stack.flatten(0, 1) for stack in self.stacks])
        for stack, update in zip(self.stacks, updates, strict=True):
            stack.copy_(update.view_as(stack))
        rows = [
            [group["lr"] * update_scale(group), group["lr"] * group["weight_decay"]]
            for group in self.muon_groups
        ]
        muon.weight_step(self.muon_buffers, self.copy_to_device(rows))

    def stack_view(self, group: dict[str, Any], begin: int) -> Tensor:
        """Return the matrices of a group as a view [N, S, R, C] of the directions.

        N parameters stack S matrices each. They are of one shape and stand side by side.
        """
        parameters = group["params"]
        rows, columns = parameters[0].shape
        padded = -(-parameters[0].numel() // self.block_size) * self.block_size
        first = self.slices[parameters[0]].start - begin
        rows_of_matrix = rows // group["stacked"]
        return self.direction.as_strided(
            (len(parameters), group["stacked"], rows_of_matrix, columns),
            (padded, rows_of_matrix * columns, columns, 1),
            first,
        )
