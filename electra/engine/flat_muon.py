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

    With a `shard` of several, every process computes its part of the directions, receives the
    others', orthogonalises all matrices and updates its part of them.
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
        self.own_state["momentum_buffer"] = self.exp_avg
        first_group = len(self.param_groups) - len(self.muon_groups)
        matrices = self.flat_param[self.muon_begin :]
        dtype = torch.bfloat16 if matrices.is_cuda else torch.float32
        self.direction = torch.zeros_like(matrices, dtype=dtype)
        begin = self.adamw_blocks * self.block_size
        self.muon_buffers = MuonBuffers(
            weight=self.shard.of(self.flat_param)[begin:],
            gradient=self.shard.of(self.flat_grad)[begin:],
            momentum=self.exp_avg[begin:],
            direction=self.own_direction,
            low_precision=self.shard.of(self.flat_low_precision)[begin:],
            group_index=self.shard.of(self.group_indices)[self.adamw_blocks :] - first_group,
            norm=self.grad_norm,
            failed_step=self.nonfinite_update,
        )
        self.stacks = [self.stack_view(group) for group in self.muon_groups]

    @property
    def muon_groups(self) -> list[dict[str, Any]]:
        return [group for group in self.param_groups if is_muon(group)]

    @property
    def muon_begin(self) -> int:
        """Where the hidden matrices begin in the whole flat buffers."""
        first: nn.Parameter = self.muon_groups[0]["params"][0]
        return int(self.slices[first].start)

    @property
    def adamw_blocks(self) -> int:
        own_begin = self.shard.rank * self.shard_length
        values = min(max(self.muon_begin - own_begin, 0), self.shard_length)
        return values // self.block_size

    @property
    def own_direction(self) -> Tensor:
        """This process's part of the directions, as a view."""
        own = self.shard.overlap(slice(self.muon_begin, len(self.flat_param)), self.shard_length)
        return self.direction[own.start - self.muon_begin : own.stop - self.muon_begin]

    def state_views(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        if self.slices[parameter].start < self.muon_begin:
            return super().state_views(parameter)
        return {"momentum_buffer": self.own_view(self.exp_avg, parameter)}

    def update_weights(self) -> None:
        """Update this process's part of the parameters."""
        from electra.kernels import muon

        super().update_weights()
        if not self.adamw_blocks:  # no program of AdamW's kernel has kept the number
            self.keep_nonfinite_update()
        muon.momentum_step(self.muon_buffers, max_norm=self.kernel_max_norm, momentum=self.momentum)
        self.shard.broadcast_parts(self.direction, len(self.flat_param))
        updates = orthogonalize_stacks([stack.flatten(0, 1) for stack in self.stacks])
        for stack, update in zip(self.stacks, updates, strict=True):
            stack.copy_(update.view_as(stack))
        rows = [
            [group["lr"] * update_scale(group), group["lr"] * group["weight_decay"]]
            for group in self.muon_groups
        ]
        muon.weight_step(self.muon_buffers, self.copy_to_device(rows))

    def keep_nonfinite_update(self) -> None:
        """Keep the number of the first update whose gradient was not finite, on the device."""
        is_known = torch.isfinite(self.grad_norm) | (self.nonfinite_update > 0)
        number = float(self.update_count)
        self.nonfinite_update.copy_(torch.where(is_known, self.nonfinite_update, number))

    def stack_view(self, group: dict[str, Any]) -> Tensor:
        """Return the matrices of a group as a view [N, S, R, C] of the directions.

        N parameters stack S matrices each. They are of one shape and stand side by side.
        """
        parameters = group["params"]
        rows, columns = parameters[0].shape
        padded = -(-parameters[0].numel() // self.block_size) * self.block_size
        first = self.slices[parameters[0]].start - self.muon_begin
        rows_of_matrix = rows // group["stacked"]
        return self.direction.as_strided(
            (len(parameters), group["stacked"], rows_of_matrix, columns),
            (padded, rows_of_matrix * columns, columns, 1),
            first,
        )
