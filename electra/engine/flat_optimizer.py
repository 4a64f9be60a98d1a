"""The base class of optimizers that keep all parameters in one flat buffer."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any

import torch
from torch import Tensor, nn

from electra.engine.flat_shard import WHOLE, FlatShard, WeightExchange


class FlatOptimizer(torch.optim.Optimizer):
    """An optimizer whose parameters and gradients are views of flat float32 buffers.

    One kernel can then update all of them. A parameter begins at a multiple of `block_size`, so a
    block of the kernel belongs to one parameter group. `low_precision_weights` are views of a
    third buffer, which `step` writes together with the parameters.

    With a `shard` of several, every process updates its part of the parameters, has only that
    part's optimizer state, and receives the others' weights. `stop_votes` is the sum of the
    `stop_vote` of all processes, which comes with the gradient.
    """

    def __init__(
        self,
        params: Iterable[Any],
        defaults: dict[str, Any],
        *,
        block_size: int,
        low_precision: torch.dtype,
        shard: FlatShard = WHOLE,
    ) -> None:
        super().__init__(params, defaults)
        self.block_size = block_size
        self.shard = shard
        self.norm_by_block = shard.size > 1
        self.exchange: WeightExchange | None = None  # None: all weights are sent in float32
        self.parameters: list[nn.Parameter] = []
        self.gradients: list[Tensor] = []
        self.slices: dict[nn.Parameter, slice] = {}
        group_indices = self.assign_blocks()
        device = self.parameters[0].device
        self.group_indices = torch.tensor(group_indices, dtype=torch.int32, device=device)
        self.flat_param = torch.zeros(len(group_indices) * block_size, device=device)
        self.stop_vote = torch.zeros((), device=device)
        # The votes lie behind the gradient, so that one all-reduce sums both.
        self.gradient_and_votes = torch.zeros(len(self.flat_param) + 1, device=device)
        self.flat_grad = self.gradient_and_votes[:-1]
        self.stop_votes = self.gradient_and_votes[-1]
        self.flat_low_precision = torch.zeros_like(self.flat_param, dtype=low_precision)
        self.grad_norm = torch.zeros((), device=device)
        self.nonfinite_update = torch.zeros((), device=device)  # 0: none so far
        self.low_precision_weights: dict[nn.Parameter, Tensor] = {}
        self.own_state: dict[str, Tensor] = {}  # this process's part of each buffer of the state
        for parameter in self.parameters:
            self.flatten(parameter)
        self.refresh_low_precision_weights()

    def assign_blocks(self) -> list[int]:
        """Give every parameter its slice of the buffers; return the parameter group of each block.

        The shards are of equal length. What fills up the last one is zero and stays zero; it counts
        as the last group's.
        """
        group_indices: list[int] = []
        for index, group in enumerate(self.param_groups):
            for parameter in group["params"]:
                begin = len(group_indices) * self.block_size
                self.slices[parameter] = slice(begin, begin + parameter.numel())
                self.parameters.append(parameter)
                group_indices += [index] * -(-parameter.numel() // self.block_size)
        self.block_count = len(group_indices)
        return group_indices + [index] * (-self.block_count % self.shard.size)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group while the optimizer is built; later its parameters would have no buffer."""
        if hasattr(self, "slices"):
            raise ValueError("a flat optimizer takes all its parameter groups when it is built")
        super().add_param_group(param_group)

    def check_gradients(self) -> None:
        """Refuse gradients that no longer are views of the flat buffer."""
        if self.parameters[0].grad is not self.gradients[0]:
            raise RuntimeError(
                "the gradients were replaced and would not be used; zero them with the "
                "optimizer's zero_grad(), not with the module's"
            )

    def flatten(self, parameter: nn.Parameter) -> None:
        """Move a parameter into the flat buffers and make it and its gradient views of them."""
        weight = self.view(self.flat_param, parameter)
        weight.copy_(parameter.detach())
        parameter.data = weight
        parameter.grad = self.view(self.flat_grad, parameter)
        self.gradients.append(parameter.grad)
        self.low_precision_weights[parameter] = self.view(self.flat_low_precision, parameter)

    @property
    def shard_length(self) -> int:
        """How many values one process updates."""
        return len(self.flat_param) // self.shard.size

    def view(self, buffer: Tensor, parameter: nn.Parameter) -> Tensor:
        """Return the part of a flat buffer that belongs to a parameter, in its shape."""
        return buffer[self.slices[parameter]].view_as(parameter)

    def own_view(self, own_buffer: Tensor, parameter: nn.Parameter) -> Tensor:
        """Return a parameter's part of a buffer that holds this process's shard, or its beginning.

        It has the parameter's shape without shards, and is flat, or empty, with them.
        """
        if self.shard.size == 1:
            return self.view(own_buffer, parameter)
        own = self.shard.overlap(self.slices[parameter], self.shard_length)
        first = self.shard.rank * self.shard_length
        return own_buffer[own.start - first : own.stop - first]

    def own_values(self, values: Tensor, parameter: nn.Parameter) -> Tensor:
        """Return those values of a parameter that `own_view` has a place for."""
        if self.shard.size == 1:
            return values
        whole = self.slices[parameter]
        own = self.shard.overlap(whole, self.shard_length)
        return values.reshape(-1)[own.start - whole.start : own.stop - whole.start]

    def read_only_in_low_precision(self, parameters: Set[nn.Parameter]) -> None:
        """Say which parameters training reads from their low-precision copies alone.

        With shards those are no longer sent in float32; `gather_weights` does that when needed.
        """
        if self.shard.size > 1:
            slices = [part for each, part in self.slices.items() if each not in parameters]
            self.exchange = WeightExchange(self.shard, self.flat_param, slices)

    def send_updated_weights(self) -> None:
        """Bring the weights that other processes have updated up to date, as training needs it."""
        if self.exchange is not None:
            self.exchange.all_gather(self.flat_low_precision)
        elif self.shard.size > 1:
            self.gather_weights()
            self.refresh_low_precision_weights()

    def gather_weights(self) -> None:
        """Bring all float32 weights up to date, for code that reads them outside of training."""
        self.shard.all_gather(self.flat_param)

    def gather_state(self, key: str) -> Tensor:
        """Return a buffer of the state whole. It lies in `flat_grad` until the next gradient.

        Only parameters that have this key in their state have a meaning in it.
        """
        own = self.own_state[key]
        self.shard.of(self.flat_grad)[: len(own)].copy_(own)
        self.shard.all_gather(self.flat_grad)
        return self.flat_grad

    def refresh_low_precision_weights(self) -> None:
        """Copy all parameters, which a checkpoint may have changed, to `low_precision_weights`."""
        self.flat_low_precision.copy_(self.flat_param)

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Zero the gradients. They stay views of the flat buffer, whatever `set_to_none` says."""
        self.flat_grad.zero_()

    def compute_grad_norm(self) -> Tensor:
        """Compute the norm of all gradients, on the device, into `grad_norm`."""
        if not self.norm_by_block:
            torch.linalg.vector_norm(self.flat_grad, out=self.grad_norm)
            return self.grad_norm
        self.block_norms = self.compute_block_norms()
        # Without the zeros that fill up shards: the order of the sum depends on its length.
        norms = self.block_norms[: self.block_count]
        torch.linalg.vector_norm(norms, out=self.grad_norm)
        return self.grad_norm

    def compute_block_norms(self) -> Tensor:
        """Compute the norm of every block of the gradient; with shards, also sum the votes.

        By blocks, the norm of all is the same however many processes share them out.
        """
        blocks = self.shard.of(self.flat_grad).view(-1, self.block_size)
        norms: Tensor = torch.linalg.vector_norm(blocks, dim=1)
        if self.shard.size == 1:
            return norms
        rows = torch.empty(self.shard.size, len(norms) + 1, device=norms.device)
        torch.cat([norms, self.stop_vote.view(1)], out=rows[self.shard.rank])
        self.shard.all_gather(rows.view(-1))
        torch.sum(rows[:, -1], dim=0, out=self.stop_votes)
        return rows[:, :-1].reshape(-1)
