"""CUDA streams of their own for what the rest of a pass does not wait for.

No kernel of a small network fills a GPU. The gradients of matrices are read by the optimizer alone,
and the generator's backward pass shares nothing with the discriminator's. Beside those they take
less time than after them. A CUDA graph keeps such branches.

Torch hands the memory of a tensor that nothing refers to any more to the next operation of the
stream it was made on, which may then overtake a reader on another stream. So each class says why
that cannot happen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

MAX_RUNNING = 4  # products that may be behind the rest: those of a block


class Running(NamedTuple):
    """A product that may still be running."""

    end: Any  # the event
    origin: Any  # the stream that its inputs were made on
    inputs: tuple[Tensor, ...]


class ProductStream:
    """Runs products of a backward pass beside the rest of it.

    What a product reads is kept until the stream that it was made on, which would use the memory
    again, has waited for the product. Nobody may overwrite it until then.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream: Any = torch.cuda.Stream(device)
        self.running: deque[Running] = deque()

    def run(self, product: Callable[[], object], *inputs: Tensor) -> None:
        """Run a product of `inputs`, which allocates nothing."""
        current = torch.cuda.current_stream()
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            product()
        self.running.append(Running(self.stream.record_event(), current, inputs))
        if len(self.running) > MAX_RUNNING:
            oldest = self.running.popleft()
            oldest.origin.wait_event(oldest.end)

    def join(self) -> None:
        """Let the current stream wait for all products. A capture may only wait for its own."""
        if self.running:
            torch.cuda.current_stream().wait_stream(self.stream)
        self.running.clear()


class NetworkStream:
    """Runs the forward pass of a network, and thereby its backward pass, on a stream of its own.

    The current stream waits for the forward pass. Autograd issues the backward pass of what was
    computed last first, and on the stream of its forward pass. So whatever the rest of the backward
    pass frees is used again by itself alone, before this network's has begun to free anything; and
    this network's begins after all forward passes.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream: Any = torch.cuda.Stream(device)
        self.has_passed = False  # forward, since the last `join`
        # Gradients of what both networks share come from two streams, and autograd joins them.
        torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Return a context whose operations run on this stream."""
        current, self.has_passed = torch.cuda.current_stream(), True
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            yield
        current.wait_stream(self.stream)

    def join(self) -> None:
        """Let the current stream wait for the backward pass, where there was a forward pass."""
        if self.has_passed:
            torch.cuda.current_stream().wait_stream(self.stream)
        self.has_passed = False
