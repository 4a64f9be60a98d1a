"""How an update is made: passes over micro-batches add up gradients, then the weights move.

`PlainSteps` is torch as everybody knows it, on any device, in any precision. `FusedSteps` is for a
GPU that waits for Python otherwise: weights, gradients and Adam's slots lie in one stretch each, a
pass is captured once for each shape of batch and replayed as one CUDA graph, and nothing is read
back until somebody asks. Both take the same step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from electra.engine.cuda_graph import CapturedGraph, tensors
from electra.engine.distributed import World, accumulating, wrap
from electra.engine.flat_adamw import FlatAdamW
from electra.engine.fsdp import is_sharded
from electra.engine.hardware import Speed, autocast
from electra.engine.optimizer import clip_and_step, gradient_norm, is_sound, set_step
from electra.engine.settings import OptimizerConfig, Precision
from electra.kernels import fuse

Forward = Callable[
    [Any], dict[str, Tensor]
]  # a batch on the device → "loss", which is descended, and its parts
MicroBatch = tuple[int, Any]  # the key of its randomness, and its batch


class NonFiniteGradient(Exception):
    """The gradient of a step was not finite; the weights are as they were before it."""

    def __init__(self, step: int) -> None:
        super().__init__(f"the gradient is not finite in step {step}")
        self.step = step


class SkipBudget:
    """How many updates a run may leave out, in all, because their gradient was not finite; and how
    many it did.
    """

    def __init__(self, most: int = 0, *, used: int = 0) -> None:
        self.most, self.used = most, used

    def allow(self) -> bool:
        """Whether one more may be left out; then it is counted."""
        self.used += (borne := self.used < self.most)
        return borne


class TrainStep(ABC):
    """One update after another."""

    skipped: int  # updates that were left out: by the scaler of fp16, or because there was patience
    skip_budget: SkipBudget

    @abstractmethod
    def forward_backward(
        self, micro_batches: Sequence[MicroBatch], *, weight: float = 1.0
    ) -> dict[str, Tensor]:
        """The gradients of `weight` times the summed losses, in place; and those sums, on the
        device.
        """

    @abstractmethod
    def optimizer_step(self, step: int) -> float:
        """Move the weights; returns the learning rate."""

    @abstractmethod
    def synchronize(self) -> float:
        """Wait for all of it: the last gradient's norm. Raises NotFinite, here at the latest."""


def build_train_step(
    module: nn.Module,
    read: Callable[[Any], dict[str, Tensor]],
    optimizer: torch.optim.AdamW,
    settings: OptimizerConfig,
    *,
    world: World,
    max_steps: int,
    scaler: torch.amp.GradScaler,
    skipped: int,
    precision: Precision,
    speed: Speed,
    skip_budget: SkipBudget | None = None,
    rounds: int = 1,
) -> TrainStep:
    """`read` makes losses by name, "loss" among them, of what the module returns. `rounds` is how
    many passes the busiest process takes in a step.
    """
    low, skip_budget = partial(autocast, precision, world.device), skip_budget or SkipBudget()
    if speed.kernels:
        low_precision = fuse(module)
        fused = FusedTrainStep(
            lambda batch: read(module(batch)),
            optimizer,
            settings,
            world=world,
            max_steps=max_steps,
            autocast=low,
            skipped=skipped,
            skip_budget=skip_budget,
            capture=speed.cuda_graph,
        )
        low_precision.register(fused.flat.low_precision_weights.items())
        return fused
    called = wrap(module, world, compiled=speed.compiled)
    return PlainTrainStep(
        lambda batch: read(called(batch)),
        module,
        optimizer,
        settings,
        wrapped=called,
        world=world,
        max_steps=max_steps,
        autocast=low,
        scaler=scaler,
        skipped=skipped,
        skip_budget=skip_budget,
        rounds=rounds if is_sharded(module) else 0,
    )


class PlainTrainStep(TrainStep):
    def __init__(
        self,
        forward: Forward,
        module: nn.Module,
        optimizer: torch.optim.AdamW,
        settings: OptimizerConfig,
        *,
        wrapped: nn.Module,
        world: World,
        max_steps: int,
        autocast: Callable[[], torch.autocast],
        scaler: torch.amp.GradScaler,
        skipped: int,
        skip_budget: SkipBudget,
        rounds: int = 0,
    ) -> None:
        self.forward, self.module, self.optimizer, self.settings = (
            forward,
            module,
            optimizer,
            settings,
        )
        self.wrapped, self.world, self.max_steps, self.autocast = (
            wrapped,
            world,
            max_steps,
            autocast,
        )
        self.scaler, self.skipped, self.skip_budget, self.norm = (
            scaler,
            skipped,
            skip_budget,
            torch.zeros(()),
        )
        self.rounds = rounds

    def forward_backward(
        self, micro_batches: Sequence[MicroBatch], *, weight: float = 1.0
    ) -> dict[str, Tensor]:
        self.optimizer.zero_grad(set_to_none=True)
        sums: dict[str, Tensor] = {}
        # Where weights are shared out, every pass of one process needs all the others: the less
        # busy ones take their last pass once more, for nothing.
        idle = [micro_batches[-1]] * (self.rounds - len(micro_batches))
        for number, (key, batch) in enumerate([*micro_batches, *idle], start=1):
            torch.manual_seed(key)
            share = weight if number <= len(micro_batches) else 0.0
            with accumulating(self.wrapped, last=number == len(micro_batches)):
                with self.autocast():
                    parts = self.forward(batch.to(self.world.device))
                # DDP and FSDP take the mean over processes, but the shares of a step's loss are to
                # be added up.
                self.scaler.scale(parts["loss"] * share * self.world.size).backward()  # type: ignore[no-untyped-call]
            for name, part in parts.items():
                sums[name] = (
                    sums[name] + part.detach() * share if name in sums else part.detach() * share
                )
        return sums

    def optimizer_step(self, step: int) -> float:
        rate = set_step(
            self.optimizer, self.settings, step=step, max_steps=self.max_steps, skipped=self.skipped
        )
        self.norm = gradient_norm(self.module, self.optimizer, self.scaler)
        if not is_sound(
            self.norm, self.scaler
        ):  # the gradient is everybody's, so all processes find the same
            if not self.skip_budget.allow():
                raise NonFiniteGradient(step)
            self.skipped += 1
            self.scaler.update()
            return rate
        self.skipped += not clip_and_step(
            self.module,
            self.optimizer,
            self.scaler,
            norm=self.norm,
            max_norm=self.settings.max_grad_norm,
        )
        return rate

    def synchronize(self) -> float:
        return float(self.norm)


class FusedTrainStep(TrainStep):
    """A pass runs as it is the first time its batch's shape comes, is captured the second time, and
    replayed then.
    """

    def __init__(
        self,
        forward: Forward,
        optimizer: torch.optim.AdamW,
        settings: OptimizerConfig,
        *,
        world: World,
        max_steps: int,
        autocast: Callable[[], torch.autocast],
        skipped: int = 0,
        skip_budget: SkipBudget | None = None,
        capture: bool = True,
    ) -> None:
        self.forward, self.optimizer, self.settings = forward, optimizer, settings
        self.world, self.max_steps, self.autocast, self.capture = (
            world,
            max_steps,
            autocast,
            capture,
        )
        self.skipped, self.skip_budget = skipped, skip_budget or SkipBudget()
        self.flat = FlatAdamW(optimizer, autocast().fast_dtype)
        self.weight = torch.ones((), device=world.device)
        self.seen: dict[Any, CapturedGraph | None] = {}
        self.pool: Any = None

    def forward_backward(
        self, micro_batches: Sequence[MicroBatch], *, weight: float = 1.0
    ) -> dict[str, Tensor]:
        self.flat.gradient.zero_()
        self.weight.fill_(weight)
        sums: dict[str, Tensor] = {}
        for key, batch in micro_batches:
            torch.manual_seed(key)
            for name, part in self.take(batch).items():
                sums[name] = sums[name] + part if name in sums else part.clone()
        if self.world.size > 1:
            dist.all_reduce(self.flat.gradient)
        return sums

    def take(self, batch: Any) -> dict[str, Tensor]:
        shape = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors(batch))
        if shape not in self.seen or not self.capture:
            self.seen[shape] = None
            return self.once(batch.to(self.world.device))
        captured = self.seen[shape]
        if captured is None:
            self.seen[shape] = captured = CapturedGraph(
                self.once, batch.to(self.world.device), self.pool
            )
            self.pool = captured.graph.pool()
        return captured(batch)

    def once(self, batch: Any) -> dict[str, Tensor]:
        """One pass; its gradients are added to those of the step. Touches the device alone."""
        with self.autocast():
            parts = self.forward(batch)
        found = torch.autograd.grad(
            parts["loss"] * self.weight, self.flat.parameters, allow_unused=True
        )
        used = [
            (place, gradient)
            for place, gradient in zip(self.flat.gradients, found, strict=True)
            if gradient is not None
        ]
        torch._foreach_add_([place for place, _ in used], [gradient for _, gradient in used])
        return {name: part.detach() * self.weight for name, part in parts.items()}

    def optimizer_step(self, step: int) -> float:
        rate = set_step(
            self.optimizer, self.settings, step=step, max_steps=self.max_steps, skipped=self.skipped
        )
        torch.linalg.vector_norm(self.flat.gradient, out=self.flat.norm)
        # Adam's bias correction counts updates, so who may leave some out has to look at each:
        # patience costs a wait.
        if (
            self.skip_budget.most
            and not torch.isfinite(self.flat.norm)
            and self.skip_budget.allow()
        ):
            self.skipped += 1
        else:
            self.flat.update(step, self.settings.max_grad_norm)
        return rate

    def synchronize(self) -> float:
        if broken := int(self.flat.broken):
            raise NonFiniteGradient(broken)
        return float(self.flat.norm)
