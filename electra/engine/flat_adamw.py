"""AdamW over all weights in one stretch of memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FlatAdamW:
    """Every weight of an optimiser in one stretch of memory, its gradient, its slots and its 16-bit
    copy in others.

    Parameters and slots become views, so whoever saves or reads them notices nothing. A parameter
    begins at a multiple of the kernel's block, which then needs to know no more than its group.
    """

    def __init__(self, optimizer: torch.optim.AdamW, low: torch.dtype) -> None:
        from electra.kernels.adamw import BLOCK

        self.optimizer = optimizer
        groups = [
            (number, parameter)
            for number, group in enumerate(optimizer.param_groups)
            for parameter in group["params"]
        ]
        self.parameters = [parameter for _, parameter in groups]
        device, blocks = (
            self.parameters[0].device,
            [-(-parameter.numel() // BLOCK) for parameter in self.parameters],
        )
        self.weight, self.gradient, self.mean, self.square = (
            torch.zeros(sum(blocks) * BLOCK, device=device) for _ in range(4)
        )
        self.low = torch.zeros_like(self.weight, dtype=low)
        self.group_of = torch.tensor(
            [
                number
                for (number, _), count in zip(groups, blocks, strict=True)
                for _ in range(count)
            ],
            dtype=torch.int32,
            device=device,
        )
        self.norm, self.broken = torch.zeros((), device=device), torch.zeros((), device=device)
        self.low_precision_weights: dict[nn.Parameter, Tensor] = {}
        self.gradients: list[Tensor] = []
        self.updates, begin = 0, 0
        for parameter, count in zip(self.parameters, blocks, strict=True):
            self.move(parameter, slice(begin, begin + parameter.numel()))
            begin += count * BLOCK
        self.low.copy_(self.weight)

    def move(self, parameter: nn.Parameter, where: slice) -> None:
        places = [
            stretch[where].view_as(parameter)
            for stretch in (self.weight, self.gradient, self.mean, self.square, self.low)
        ]
        weight, gradient, mean, square, self.low_precision_weights[parameter] = places
        weight.copy_(parameter.detach())
        parameter.data, parameter.grad = weight, gradient
        self.gradients.append(gradient)
        slots = self.optimizer.state[parameter]
        if slots:
            mean.copy_(slots["exp_avg"])
            square.copy_(slots["exp_avg_sq"])
            self.updates = int(slots["step"])
        slots.update(exp_avg=mean, exp_avg_sq=square)
        slots.setdefault("step", torch.tensor(0.0))

    def update(self, step: int, limit: float) -> None:
        """Clip the gradient, whose norm is known, at `limit` and take the step that the optimiser's
        groups are set to.
        """
        from electra.kernels import adamw

        self.updates += 1
        betas = self.optimizer.param_groups[0]["betas"]
        root = (1 - betas[1] ** self.updates) ** -0.5
        rows = [
            [
                group["lr"] / (1 - betas[0] ** self.updates),
                root,
                group["eps"],
                group["lr"] * group["weight_decay"],
                float(step),
            ]
            for group in self.optimizer.param_groups
        ]
        settings = torch.tensor(rows, pin_memory=self.weight.is_cuda).to(
            self.weight.device, non_blocking=True
        )
        buffers = adamw.AdamWBuffers(
            weight=self.weight,
            gradient=self.gradient,
            exp_avg=self.mean,
            exp_avg_sq=self.square,
            low_precision=self.low,
            group_index=self.group_of,
            norm=self.norm,
            failed_step=self.broken,
        )
        adamw.adamw_step(buffers, settings, max_norm=limit, betas=betas)
