"""The base class of optimizers that keep all parameters in one flat buffer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


class FlatOptimizer(torch.optim.Optimizer):
    """An optimizer whose parameters and gradients are views of flat float32 buffers.

    One kernel can then update all of them. A parameter begins at a multiple of `block_size`, so a
    block of the kernel belongs to one parameter group. `low_precision_weights` are views of a
    third buffer, which `step` writes together with the parameters.
    """

    def __init__(
        self,
        params: Iterable[Any],
        defaults: dict[str, Any],
        *,
        block_size: int,
        low_precision: torch.dtype,
    ) -> None:
        super().__init__(params, defaults)
        self.block_size = block_size
        self.parameters: list[nn.Parameter] = []
        self.gradients: list[Tensor] = []
        self.slices: dict[nn.Parameter, slice] = {}
        group_indices: list[int] = []
        for index, group in enumerate(self.param_groups):
            for parameter in group["params"]:
                begin = len(group_indices) * block_size
                self.slices[parameter] = slice(begin, begin + parameter.numel())
                self.parameters.append(parameter)
                group_indices += [index] * -(-parameter.numel() // block_size)
        device = self.parameters[0].device
        self.group_indices = torch.tensor(group_indices, dtype=torch.int32, device=device)
        self.flat_param = torch.zeros(len(group_indices) * block_size, device=device)
        self.flat_grad = torch.zeros_like(self.flat_param)
        self.flat_low_precision = torch.zeros_like(self.flat_param, dtype=low_precision)
        self.grad_norm = torch.zeros((), device=device)
        self.nonfinite_update = torch.zeros((), device=device)  # 0: none so far
        self.low_precision_weights: dict[nn.Parameter, Tensor] = {}
        for parameter in self.parameters:
            self.flatten(parameter)
        self.refresh_low_precision_weights()

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

    def view(self, buffer: Tensor, parameter: nn.Parameter) -> Tensor:
        """Return the part of a flat buffer that belongs to a parameter, in its shape."""
        return buffer[self.slices[parameter]].view_as(parameter)

    def refresh_low_precision_weights(self) -> None:
        """Copy all parameters, which a checkpoint may have changed, to `low_precision_weights`."""
        self.flat_low_precision.copy_(self.flat_param)

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Zero the gradients. They stay views of the flat buffer, whatever `set_to_none` says."""
        self.flat_grad.zero_()

    def compute_grad_norm(self) -> Tensor:
        """Compute the norm of all gradients, on the device, into `grad_norm`."""
        torch.linalg.vector_norm(self.flat_grad, out=self.grad_norm)
        return self.grad_norm
