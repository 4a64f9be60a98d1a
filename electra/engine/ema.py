"""The exponential moving average (EMA) of the trained weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from electra.engine.flat_optimizer import FlatOptimizer
from electra.engine.fsdp import local_tensor

EMA = "ema"  # its key in the optimizer's state, with which it is saved and restored


class WeightAverage:
    """Averages the weights after every update: average = d · average + (1 − d) · weight.

    It begins with the weights after the first update. So that those are soon forgotten, d is
    min(decay, (1 + t) / (10 + t)) at the t-th update after it, as in TensorFlow. Build it once
    weights and optimizer state are those to continue from.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, decay: float) -> None:
        self.optimizer = optimizer
        self.decay = decay
        if isinstance(optimizer, FlatOptimizer):
            self.flatten(optimizer)

    def flatten(self, optimizer: FlatOptimizer) -> None:
        """Make the averages views of one flat buffer, which one kernel updates."""
        self.flat_average = torch.zeros_like(optimizer.shard.of(optimizer.flat_param))
        optimizer.own_state[EMA] = self.flat_average
        for parameter in optimizer.parameters:
            view = optimizer.own_view(self.flat_average, parameter)
            average = optimizer.state[parameter].get(EMA, parameter.detach())
            view.copy_(optimizer.own_values(average, parameter))
            optimizer.state[parameter][EMA] = view

    def tensors(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the weights and their averages, in this process's shards where FSDP has some.

        A parameter that no loss uses has no optimizer state; it stays as it is.
        """
        if isinstance(self.optimizer, FlatOptimizer):
            own_weights = self.optimizer.shard.of(self.optimizer.flat_param)
            return [own_weights], [self.flat_average]
        weights, averages = [], []
        for parameter, state in self.optimizer.state.items():
            if EMA not in state:
                state[EMA] = parameter.detach().clone()
            weights.append(local_tensor(parameter.detach()))
            averages.append(local_tensor(state[EMA]))
        return weights, averages

    def update(self, updates: int) -> None:
        """Average the weights as they are after so many updates."""
        weights, averages = self.tensors()
        if updates == 1:
            torch._foreach_copy_(averages, weights)
            return
        decay = min(self.decay, updates / (9 + updates))  # updates = 1 + t
        torch._foreach_lerp_(averages, weights, 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Exchange the weights for their averages, and back in the end."""
        self.exchange()
        try:
            yield
        finally:
            self.exchange()

    def exchange(self) -> None:
        for weight, average in zip(*self.tensors(), strict=True):
            kept = weight.clone()
            weight.copy_(average)
            average.copy_(kept)
        if isinstance(self.optimizer, FlatOptimizer):
            self.optimizer.gather_weights()
            self.optimizer.refresh_low_precision_weights()
