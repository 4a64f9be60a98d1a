"""One training step: gradient accumulation over micro-batches, then one optimizer step.

`PlainTrainStep` is plain PyTorch, on any device and in any precision. `FusedTrainStep` is for a GPU
that would otherwise wait for Python: parameters, gradients and optimizer state are flat buffers,
the forward and backward pass of a micro-batch is a CUDA graph, and nothing is read back until
`synchronize`. Both make the same update.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from electra.engine.clipping import clip_gradients, clip_groups, gradient_norms, total_norm
from electra.engine.cuda_graph import GraphedCallable
from electra.engine.distributed import World, gradient_accumulation, wrap_module
from electra.engine.ema import WeightAverage
from electra.engine.flat_optimizer import FlatOptimizer
from electra.engine.fsdp import is_sharded
from electra.engine.gradient_buckets import GradientBuckets
from electra.engine.hardware import Speed, autocast, autocast_dtype
from electra.engine.optimizer import can_step, set_learning_rate, step_and_update
from electra.engine.settings import OptimizerConfig, Precision
from electra.engine.stop_votes import StopVotes
from electra.kernels import fuse, low_precision_matrices
from electra.kernels.low_precision import LowPrecisionCopies

# A batch on the device → its losses by name; the one called "loss" is minimised.
Forward = Callable[[Any], dict[str, Tensor]]
MicroBatch = tuple[int, Any]  # the key of its randomness, and its batch


class NonFiniteGradient(Exception):
    """The gradient of a step was not finite; the weights are as they were before it."""

    def __init__(self, step: int) -> None:
        super().__init__(f"the gradient is not finite in step {step}")
        self.step = step


class SkipBudget:
    """How many updates a run may skip because their gradient is not finite, and how many it did."""

    def __init__(self, limit: int = 0, *, used: int = 0) -> None:
        self.limit = limit
        self.used = used

    def allow(self) -> bool:
        """Return whether one more update may be skipped, and count it if so."""
        if self.used >= self.limit:
            return False
        self.used += 1
        return True


@dataclass(frozen=True)
class OptimizerSetup:
    """The optimizer with its schedule, the fp16 scaler, what was skipped before, and the average of
    the weights, where they are averaged.
    """

    optimizer: torch.optim.Optimizer
    config: OptimizerConfig
    max_steps: int
    scaler: torch.amp.GradScaler
    skipped: int = 0
    skip_budget: SkipBudget = field(default_factory=SkipBudget)
    average: WeightAverage | None = None


@dataclass(frozen=True)
class Execution:
    """Where and how a step runs."""

    world: World
    precision: Precision
    speed: Speed
    max_micro_batches_per_rank: int = 1  # in one step

    def autocast(self) -> torch.autocast:
        return autocast(self.precision, self.world.device)


class TrainStep(ABC):
    """The updates of a run, one after another."""

    def __init__(self, forward: Forward, setup: OptimizerSetup, execution: Execution) -> None:
        self.forward = forward
        self.setup = setup
        self.execution = execution
        self.world = execution.world
        self.skip_budget = setup.skip_budget
        self.skipped = setup.skipped  # updates, by the fp16 scaler or out of the skip budget
        self.largest_norm = torch.zeros((), device=self.world.device)

    @abstractmethod
    def forward_backward(
        self, micro_batches: Sequence[MicroBatch], *, weight: float = 1.0
    ) -> dict[str, Tensor]:
        """Accumulate the gradients of `weight` times the losses of all micro-batches.

        Returns the summed losses by name, on the device.
        """

    @abstractmethod
    def optimizer_step(self, step: int) -> float:
        """Update the weights and return the learning rate."""

    @abstractmethod
    def synchronize(self) -> float:
        """Wait for the device and return the last gradient norm.

        Raises NonFiniteGradient where `optimizer_step` did not wait to see it.
        """

    def take_largest_norm(self) -> float:
        """Return the largest gradient norm of the updates since the last call."""
        largest = float(self.largest_norm)
        self.largest_norm.zero_()
        return largest

    def agree_to_stop(self, wants_to_stop: bool) -> bool:
        """Return whether a process wants to stop, the same in all; each calls this every step."""
        return self.world.any_rank(wants_to_stop)

    def set_learning_rate(self, step: int) -> float:
        return set_learning_rate(
            self.setup.optimizer,
            self.setup.config,
            step=step,
            max_steps=self.setup.max_steps,
            skipped=self.skipped,
        )

    def update_average(self, step: int) -> None:
        """Average the weights after the update of a step, where that is asked for."""
        if self.setup.average is not None:
            self.setup.average.update(step - self.skipped)

    def averaged_weights(self) -> AbstractContextManager[None]:
        """Return a context in which the networks have averaged weights, where there are some."""
        if self.setup.average is None:
            return nullcontext()
        return self.setup.average.applied()


def build_train_step(
    module: nn.Module,
    losses_of: Callable[[Any], dict[str, Tensor]],
    setup: OptimizerSetup,
    execution: Execution,
) -> TrainStep:
    """Build the train step of a module. `losses_of` names the losses in what the module returns."""
    if execution.speed.kernels:
        step = FusedTrainStep(lambda batch: losses_of(module(batch)), setup, execution)
        step.low_precision = fuse(module)
        step.low_precision.register(step.optimizer.low_precision_weights.items())
        dtype = step.optimizer.flat_low_precision.dtype
        if execution.precision != "fp32" and dtype == autocast_dtype(execution.precision):
            step.optimizer.read_only_in_low_precision(low_precision_matrices(module))
        return step
    wrapped = wrap_module(module, execution.world, compiled=execution.speed.compiled)
    return PlainTrainStep(
        lambda batch: losses_of(wrapped(batch)), setup, execution, module=module, wrapped=wrapped
    )


class PlainTrainStep(TrainStep):
    """The train step in plain PyTorch, with DDP, FSDP2, torch.compile and the fp16 scaler."""

    def __init__(
        self,
        forward: Forward,
        setup: OptimizerSetup,
        execution: Execution,
        *,
        module: nn.Module,
        wrapped: nn.Module,
    ) -> None:
        super().__init__(forward, setup, execution)
        self.module = module
        self.wrapped = wrapped
        self.clip_groups = clip_groups(module, setup.config)
        self.norm = torch.zeros(())

    def forward_backward(
        self, micro_batches: Sequence[MicroBatch], *, weight: float = 1.0
    ) -> dict[str, Tensor]:
        self.setup.optimizer.zero_grad(set_to_none=True)
        sums: dict[str, Tensor] = {}
        for micro_batch in micro_batches[:-1]:
            self.accumulate(micro_batch, weight, sums, is_last=False)
        self.accumulate(micro_batches[-1], weight, sums, is_last=True)
        for _ in range(self.idle_passes(micro_batches)):
            self.accumulate(micro_batches[-1], 0.0, sums, is_last=False)
        return sums

    def idle_passes(self, micro_batches: Sequence[MicroBatch]) -> int:
        """Return how many passes this process makes only for the others.

        With sharded weights every pass of one process needs all the others, so those with fewer
        micro-batches repeat their last one with weight zero.
        """
        if not is_sharded(self.module):
            return 0
        return self.execution.max_micro_batches_per_rank - len(micro_batches)

    def accumulate(
        self, micro_batch: MicroBatch, weight: float, sums: dict[str, Tensor], *, is_last: bool
    ) -> None:
        """Add the gradients of one micro-batch, and its losses to `sums`."""
        key, batch = micro_batch
        torch.manual_seed(key)
        with gradient_accumulation(self.wrapped, is_last=is_last):
            with self.execution.autocast():
                losses = self.forward(batch.to(self.world.device))
            # DDP and FSDP average over processes, but the losses of a step are to be added up.
            loss = losses["loss"] * weight * self.world.size
            self.setup.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        for name, value in losses.items():
            weighted = value.detach() * weight
            sums[name] = sums[name] + weighted if name in sums else weighted

    def optimizer_step(self, step: int) -> float:
        rate = self.set_learning_rate(step)
        optimizer, scaler = self.setup.optimizer, self.setup.scaler
        scaler.unscale_(optimizer)
        norms = gradient_norms(self.clip_groups)
        self.norm = total_norm(norms)
        # All processes have the same gradient here, so all of them decide alike.
        if not can_step(self.norm, scaler):
            if not self.skip_budget.allow():
                raise NonFiniteGradient(step)
            self.skipped += 1
            scaler.update()
            return rate
        clip_gradients(self.clip_groups, norms, max_norm=self.setup.config.max_grad_norm)
        if step_and_update(optimizer, scaler):
            torch.maximum(self.largest_norm, self.norm, out=self.largest_norm)
            self.update_average(step)
        else:
            self.skipped += 1
        return rate

    def synchronize(self) -> float:
        return float(self.norm)


class FusedTrainStep(TrainStep):
    """The train step by kernels: a flat optimizer and a graphed forward and backward pass."""

    def __init__(self, forward: Forward, setup: OptimizerSetup, execution: Execution) -> None:
        super().__init__(forward, setup, execution)
        assert isinstance(setup.optimizer, FlatOptimizer)
        self.optimizer = setup.optimizer
        self.optimizer.refresh_low_precision_weights()  # a checkpoint may have been read meanwhile
        self.optimizer.norm_by_block = self.world.size > 1
        self.stop_votes = StopVotes(self.world.device)
        self.buckets: GradientBuckets | None = None
        if self.world.size > 1:
            self.buckets = GradientBuckets(self.optimizer, self.world)
        self.weight = torch.ones((), device=self.world.device)
        self.low_precision = LowPrecisionCopies()
        self.graphed = GraphedCallable(
            self.accumulate, self.world.device, capture=execution.speed.cuda_graph
        )

    def forward_backward(
        self, micro_batches: Sequence[MicroBatch], *, weight: float = 1.0
    ) -> dict[str, Tensor]:
        overwrites = self.overwrites_gradient(len(micro_batches))
        if not overwrites:
            self.optimizer.zero_grad()
        if self.buckets is not None:
            self.optimizer.stop_votes.copy_(self.optimizer.stop_vote)
        self.weight.fill_(weight)
        sums: dict[str, Tensor] = {}
        for key, batch in micro_batches:
            torch.manual_seed(key)
            for name, loss in self.graphed(batch, overwrites=overwrites).items():
                # A graph writes its losses to the same memory each time, hence the clone.
                sums[name] = sums[name] + loss if name in sums else loss.clone()
        if self.buckets is not None:
            self.buckets.reduce()
        return sums

    def overwrites_gradient(self, micro_batches: int) -> bool:
        """Return whether a step of so many micro-batches overwrites the gradient of the last step,
        instead of adding to zeros. Buckets add.
        """
        return self.buckets is None and micro_batches == 1

    def capture_first(self, batches: Sequence[Any]) -> None:
        """Capture graphs of these batches before any others, and leave no other trace.

        The memory of a graph is reserved for good, and later graphs share it if they need no more.
        So the largest batches come first.
        """
        overwrites = self.overwrites_gradient(self.execution.max_micro_batches_per_rank)
        devices = [self.world.device] if self.world.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            for batch in batches:
                self.graphed(batch, overwrites=overwrites)  # runs plainly
                self.graphed(batch, overwrites=overwrites)
        self.optimizer.zero_grad()

    def accumulate(self, batch: Any, *, overwrites: bool) -> dict[str, Tensor]:
        """Add or write the gradients of one micro-batch and return its losses, without reading any
        back.
        """
        with self.execution.autocast():
            losses = self.forward(batch)
        loss = losses["loss"] * self.weight
        if self.buckets is not None:
            self.buckets.accumulate(loss)
        else:
            self.add_gradients(loss, overwrites=overwrites)
        return {name: loss.detach() * self.weight for name, loss in losses.items()}

    def add_gradients(self, loss: Tensor, *, overwrites: bool) -> None:
        """Add the gradients of a loss to the flat gradient, or overwrite it with them."""
        parameters, totals = self.optimizer.parameters, self.optimizer.gradients
        targets = zip(parameters, totals, strict=True) if overwrites else ()
        with self.low_precision.defer_gradients(targets) as deferred:
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        merged = deferred.merge_into(parameters, gradients)
        pairs = list(zip(totals, merged, strict=True))
        used = [(total, each) for total, each in pairs if each is not None and each is not total]
        sums, added = [total for total, _ in used], [gradient for _, gradient in used]
        if not overwrites:
            torch._foreach_add_(sums, added)
            return
        torch._foreach_copy_(sums, added)
        if unused := [total for total, gradient in pairs if gradient is None]:
            torch._foreach_zero_(unused)

    def optimizer_step(self, step: int) -> float:
        rate = self.set_learning_rate(step)
        if self.skip_update():
            self.skipped += 1
        else:
            self.optimizer.step()
            torch.maximum(self.largest_norm, self.optimizer.grad_norm, out=self.largest_norm)
            self.update_average(step)
        if self.world.size > 1:
            self.stop_votes.record(self.optimizer.stop_votes)
        return rate

    def agree_to_stop(self, wants_to_stop: bool) -> bool:
        """Return whether a process wanted to stop some steps ago, without a wait for the device.

        The vote goes with the next step's gradient, and is read after the step after that.
        """
        if self.world.size == 1:
            return wants_to_stop
        if wants_to_stop:
            self.optimizer.stop_vote.fill_(1.0)
        return self.stop_votes.read()

    def averaged_weights(self) -> AbstractContextManager[None]:
        self.optimizer.gather_weights()
        return super().averaged_weights()

    def skip_update(self) -> bool:
        """Return whether the gradient is not finite and the skip budget allows for it.

        Adam's bias correction counts updates, so a run with a skip budget must wait for each norm.
        """
        if not self.skip_budget.limit or torch.isfinite(self.optimizer.compute_grad_norm()):
            return False
        return self.skip_budget.allow()

    def synchronize(self) -> float:
        if update := int(self.optimizer.nonfinite_update):
            raise NonFiniteGradient(update + self.skipped)
        return float(self.optimizer.grad_norm)
