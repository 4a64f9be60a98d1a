"""The flat gradient in buckets, each summed over the processes while backward computes the next.

CUDA graphs hold no collectives. A graph records an event for every bucket that it has written; a
stream of its own waits for those events outside of the graph. So NCCL's timeouts stay in force, one
graph serves all micro-batches of a step, and only after the last one is anything sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from electra.engine.distributed import World
from electra.engine.flat_optimizer import FlatOptimizer

BUCKET_BYTES = 25 * 2**20  # as in DDP


class GradientBuckets:
    """Contiguous parts of a flat gradient, made of whole parameters.

    The parts are fixed, and with them the order of every sum: a resumed run repeats the unbroken
    one bit for bit, in whatever order the buckets are sent.
    """

    def __init__(
        self, optimizer: FlatOptimizer, world: World, *, bucket_bytes: int = BUCKET_BYTES
    ) -> None:
        self.optimizer = optimizer
        self.world = world
        self.bucket_of = assign_buckets(optimizer, bucket_bytes)  # of each parameter
        self.parameter_counts = [0] * (self.bucket_of[-1] + 1)
        for number in self.bucket_of:
            self.parameter_counts[number] += 1
        self.order = list(range(len(self.parameter_counts)))  # in which buckets are sent
        self.is_order_agreed = False
        self.events: list[torch.cuda.Event] = []
        if world.device.type == "cuda":
            self.stream = torch.cuda.Stream(world.device)  # type: ignore[no-untyped-call]
            new_event: Any = torch.cuda.Event
            self.events = [new_event(external=True) for _ in self.parameter_counts]

    def accumulate(self, loss: Tensor) -> None:
        """Add the gradients of a loss to the flat gradient, a bucket when it is complete."""
        backward = BackwardPass(self)
        parameters: list[Any] = list(self.optimizer.parameters)
        handles = [
            parameter.register_hook(backward.hook_for(index))
            for index, parameter in enumerate(parameters)
        ]
        try:
            torch.autograd.grad(loss, parameters, allow_unused=True)
        finally:
            for handle in handles:
                handle.remove()
        backward.complete_all()
        if not self.is_order_agreed:
            self.order = backward.completed

    def reduce(self) -> None:
        """Send every bucket as soon as the last `accumulate` has completed it; wait for nothing.

        What follows on the current stream finds the sums of all processes.
        """
        if not self.is_order_agreed:
            self.order = self.world.broadcast(self.order)  # once; a collective must meet its like
            self.is_order_agreed = True
        if not self.events:
            for number in self.order:
                self.send(number)
            return
        for number in self.order:
            self.stream.wait_event(self.events[number])
            with torch.cuda.stream(self.stream):
                self.send(number)
        torch.cuda.current_stream().wait_stream(self.stream)

    def send(self, number: int) -> None:
        """Sum one bucket over all processes; with shards, each part for the one that updates it."""
        optimizer, shard = self.optimizer, self.optimizer.shard
        begin, end = self.bounds(number)
        if shard.size == 1:
            dist.all_reduce(optimizer.gradient_and_votes[begin:end])
            return
        length = len(optimizer.flat_grad) // shard.size
        for owner in range(begin // length, -(-end // length)):
            part = slice(max(begin, owner * length), min(end, (owner + 1) * length))
            dist.reduce(optimizer.flat_grad[part], dst=owner)

    def bounds(self, number: int) -> tuple[int, int]:
        """Return where a bucket begins and ends. The votes come with the last one."""
        optimizer = self.optimizer
        first = self.bucket_of.index(number)
        begin = optimizer.slices[optimizer.parameters[first]].start
        if number == self.bucket_of[-1]:
            end = len(optimizer.gradient_and_votes)
            if optimizer.shard.size > 1:
                end = len(optimizer.flat_grad)
            return begin, end
        following = optimizer.parameters[self.bucket_of.index(number + 1)]
        return begin, optimizer.slices[following].start


def assign_buckets(optimizer: FlatOptimizer, bucket_bytes: int) -> list[int]:
    """Return the bucket of each parameter: a new one where a full one would become larger."""
    buckets, number, begin = [], 0, 0
    size = bucket_bytes // optimizer.flat_grad.element_size()
    for parameter in optimizer.parameters:
        part = optimizer.slices[parameter]
        if part.stop - begin > size and part.start > begin:
            number, begin = number + 1, part.start
        buckets.append(number)
    return buckets


class BackwardPass:
    """The gradients that one backward pass has computed so far."""

    def __init__(self, buckets: GradientBuckets) -> None:
        self.buckets = buckets
        self.arrived: list[list[tuple[Tensor, Tensor]]] = [[] for _ in buckets.parameter_counts]
        self.completed: list[int] = []
        # Autograd calls hooks in a thread of its own, in which another stream may be current.
        self.stream: torch.cuda.Stream | None = None
        if buckets.events:
            self.stream = torch.cuda.current_stream()

    def hook_for(self, index: int) -> Callable[[Tensor], None]:
        """Return what autograd calls with the gradient of a parameter."""
        number = self.buckets.bucket_of[index]
        total = self.buckets.optimizer.gradients[index]

        def receive(gradient: Tensor) -> None:
            self.arrived[number].append((total, gradient))
            if len(self.arrived[number]) == self.buckets.parameter_counts[number]:
                self.complete(number)

        return receive

    def complete(self, number: int) -> None:
        """Add what has arrived in a bucket to the flat gradient."""
        arrived = self.arrived[number]
        with torch.cuda.stream(self.stream):
            if arrived:
                totals, gradients = zip(*arrived, strict=True)
                torch._foreach_add_(totals, gradients)
            if self.stream is not None:
                self.buckets.events[number].record(self.stream)
        self.completed.append(number)

    def complete_all(self) -> None:
        """Complete the buckets of parameters that the loss does not use."""
        for number in range(len(self.arrived)):
            if number not in self.completed:
                self.complete(number)
