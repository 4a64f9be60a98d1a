"""Early stopping: keep the weights of the best evaluation, and stop once none is better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from electra.engine.flat_optimizer import FlatOptimizer

BEST = "best/"  # before the names of the best weights, in a checkpoint


@dataclass
class EarlyStopping:
    """The best evaluation so far: its score, its step and its weights."""

    patience: int  # evaluations in a row that may be no better
    direction: int  # −1 where less is better
    best_score: float | None = None
    best_step: int | None = None
    evaluations: int = 0
    since_best: int = 0  # evaluations
    weights: dict[str, Tensor] = field(default_factory=dict)  # in host memory

    def add(self, score: float, step: int, network: nn.Module) -> None:
        """Record an evaluation, and copy the weights if it is the best one."""
        self.evaluations += 1
        self.since_best += 1
        if self.best_score is None or self.direction * (score - self.best_score) > 0:
            self.best_score, self.best_step, self.since_best = score, step, 0
            self.weights = {
                name: parameter.detach().to("cpu", copy=True)
                for name, parameter in network.named_parameters()
            }

    @property
    def is_over(self) -> bool:
        return self.since_best >= self.patience

    def facts(self) -> dict[str, Any]:
        """Return what a checkpoint's state.json holds."""
        return {
            "best_score": self.best_score,
            "best_step": self.best_step,
            "evaluations": self.evaluations,
            "since_best": self.since_best,
        }

    def tensors(self) -> dict[str, Tensor]:
        """Return what a checkpoint holds beside the weights of its step."""
        return {f"{BEST}{name}": tensor for name, tensor in self.weights.items()}

    def restore(self, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Continue from a checkpoint."""
        self.best_score, self.best_step = facts["best_score"], facts["best_step"]
        self.evaluations, self.since_best = facts["evaluations"], facts["since_best"]
        self.weights = {}
        for name, tensor in tensors.items():
            if name.startswith(BEST):
                self.weights[name.removeprefix(BEST)] = tensor

    def load_best(self, network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Give the network the best weights, if there was an evaluation."""
        if not self.weights:
            return
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                parameter.copy_(self.weights[name])
        if isinstance(optimizer, FlatOptimizer):
            optimizer.refresh_low_precision_weights()
