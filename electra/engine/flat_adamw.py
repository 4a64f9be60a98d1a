"""AdamW over flat buffers: one kernel clips the gradient and updates all parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from electra.engine.clipping import clip_gradients, gradient_norms
from electra.engine.flat_optimizer import FlatOptimizer


class FlatAdamW(FlatOptimizer):
    """AdamW whose parameters, gradients, `exp_avg` and `exp_avg_sq` are views of flat buffers.

    `step` clips the gradients of each of the `clip_groups` at `max_grad_norm`. From the first
    gradient that is not finite it changes nothing any more and keeps the number of that update in
    `nonfinite_update`, so that the host may read it much later.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        max_grad_norm: float,
        clip_groups: list[list[Tensor]],
        **flat: Any,
    ) -> None:
        from electra.kernels.adamw import BLOCK, AdamWBuffers

        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0}
        super().__init__(params, defaults, block_size=BLOCK, **flat)
        if any(group["betas"] != betas for group in self.param_groups):
            raise ValueError("FlatAdamW has one pair of betas for all parameter groups")
        self.max_grad_norm = max_grad_norm
        self.clip_groups = clip_groups
        self.clip_blocks = [self.blocks_of(group) for group in clip_groups]
        own_param = self.shard.of(self.flat_param)
        self.exp_avg = torch.zeros_like(own_param)
        blocks = self.adamw_blocks
        values = blocks * self.block_size
        self.exp_avg_sq = torch.zeros_like(own_param[:values])
        self.own_state = {"exp_avg": self.exp_avg, "exp_avg_sq": self.exp_avg_sq}
        self.update_count = torch.tensor(0.0)  # on the host, where `step` reads it
        self.buffers = AdamWBuffers(
            weight=own_param[:values],
            gradient=self.shard.of(self.flat_grad)[:values],
            exp_avg=self.exp_avg[:values],
            exp_avg_sq=self.exp_avg_sq,
            low_precision=self.shard.of(self.flat_low_precision)[:values],
            group_index=self.shard.of(self.group_indices)[:blocks],
            norm=self.grad_norm,
            failed_step=self.nonfinite_update,
        )
        self.set_state_views()

    @property
    def adamw_blocks(self) -> int:
        """This process's blocks of the parameters that AdamW updates, the first of its blocks."""
        return len(self.shard.of(self.group_indices))

    def state_views(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return a parameter's part of the flat buffers of the state."""
        return {
            "exp_avg": self.own_view(self.exp_avg, parameter),
            "exp_avg_sq": self.own_view(self.exp_avg_sq, parameter),
        }

    def set_state_views(self) -> None:
        """Make every parameter's state views of the flat buffers; keep what others have in it."""
        for parameter in self.parameters:
            self.state[parameter] |= {"step": self.update_count, **self.state_views(parameter)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Copy a state dict of this class or of its plain counterpart into the flat buffers."""
        super().load_state_dict(state_dict)  # replaces the views by tensors of its own
        for parameter in self.parameters:
            state = self.state.get(parameter)
            for key, view in self.state_views(parameter).items():
                if state:
                    view.copy_(self.own_values(state[key], parameter))
                else:
                    view.zero_()
            if state and "step" in state:
                self.update_count.fill_(float(state["step"]))
        if not self.state:
            self.update_count.zero_()
        self.set_state_views()

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Clip the gradient and update all parameters by the settings of their groups."""
        if closure is not None:
            raise ValueError("FlatAdamW.step takes no closure: compute the gradients before it")
        self.check_gradients()
        self.compute_grad_norm()
        self.clip_each()
        self.update_weights()
        self.send_updated_weights()

    def update_weights(self) -> None:
        """Update this process's part of the parameters."""
        from electra.kernels import adamw

        self.update_count += 1
        updates = int(self.update_count)
        betas = self.param_groups[0]["betas"]
        root = (1 - betas[1] ** updates) ** -0.5
        rows = [
            [
                group["lr"] / (1 - betas[0] ** updates),
                root,
                group["eps"],
                group["lr"] * group["weight_decay"],
                float(updates),
            ]
            for group in self.param_groups
        ]
        adamw.adamw_step(
            self.buffers,
            self.copy_to_device(rows),
            max_norm=self.kernel_max_norm,
            betas=betas,
        )

    @property
    def kernel_max_norm(self) -> float:
        """The norm of all gradients at which kernels clip; what was clipped already stays so."""
        if len(self.clip_groups) > 1:
            return math.inf
        return self.max_grad_norm

    def clip_each(self) -> None:
        """Clip the gradients of each group by its own norm, where there are several."""
        if len(self.clip_groups) == 1:
            return
        if self.norm_by_block:
            self.clip_own_blocks()
            return
        norms = gradient_norms(self.clip_groups)
        clip_gradients(self.clip_groups, norms, max_norm=self.max_grad_norm)

    def clip_own_blocks(self) -> None:
        """Clip this process's part of the gradient by the norms of the groups' blocks."""
        factors = torch.ones_like(self.block_norms)
        for blocks in self.clip_blocks:
            norm = torch.linalg.vector_norm(self.block_norms[blocks])
            factors[blocks] = (self.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        own_blocks = self.shard.of(self.flat_grad).view(-1, self.block_size)
        own_blocks.mul_(self.shard.of(factors).unsqueeze(1))

    def blocks_of(self, parameters: list[Tensor]) -> Tensor:
        """Return the numbers of the blocks of these parameters."""
        wanted, numbers = set(parameters), list[int]()
        for parameter, part in self.slices.items():
            if parameter in wanted:
                first, end = part.start // self.block_size, -(-part.stop // self.block_size)
                numbers += range(first, end)
        return torch.tensor(numbers, dtype=torch.int64, device=self.flat_param.device)

    def copy_to_device(self, rows: list[list[float]]) -> Tensor:
        """Copy a table to the device, without waiting for it."""
        table = torch.tensor(rows, pin_memory=self.flat_param.is_cuda)
        return table.to(self.flat_param.device, non_blocking=True)
