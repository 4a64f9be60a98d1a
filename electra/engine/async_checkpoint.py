"""Checkpoints that are copied and written while training continues."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import nn

from electra.engine.fsdp import is_sharded
from electra.engine.training_state import (
    PinnedStaging,
    TrainingState,
    capture,
    copy_to_host,
    data_pointers,
    has_sharded_state,
)


class AsyncCheckpointer:
    """Writes one checkpoint at a time in a thread; `poll` and `wait` raise its exceptions."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(1, "checkpoint")
        self.work = Future[None]()
        self.work.set_result(None)
        self.staging: PinnedStaging | None = None
        self.stream: torch.cuda.Stream | None = None
        self.copying: torch.cuda.Event | None = None  # the last copy's end

    def allocate_staging(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Allocate the host memory for a GPU's copies, as soon as there is optimizer state.

        A machine that lacks the memory then fails in the first step, not at the first checkpoint.
        """
        is_gathered = is_sharded(module) or has_sharded_state(optimizer)
        if torch.cuda.is_available() and not is_gathered:
            self.staging_for(module, optimizer)

    def staging_for(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> PinnedStaging:
        pointers = data_pointers(optimizer)
        if self.staging is None or self.staging.pointers != pointers:
            self.staging = None  # both may be too much for the memory
            self.staging = PinnedStaging(pointers, capture(module, optimizer))
        return self.staging

    def copy_state(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> TrainingState:
        """Copy weights and optimizer state to host memory, to be written while training continues.

        The other processes call `contribute_shards` where the module or its optimizer state is
        sharded. A GPU copies on a stream of its own, beside the next pass: submitted work waits for
        the copy, and whatever changes weights or optimizer state must call `wait_for_copy` first.
        """
        self.wait()  # two copies may be too many for the memory
        if is_sharded(module):
            return capture(module, optimizer)  # gathering has copied it
        if has_sharded_state(optimizer):
            weights, optimizer_state = capture(module, optimizer)
            return copy_to_host(weights.items()), optimizer_state
        if not torch.cuda.is_available():
            weights, optimizer_state = capture(module, optimizer)
            return copy_to_host(weights.items()), copy_to_host(optimizer_state.items())
        staging = self.staging_for(module, optimizer)
        # One stream for all copies. They read the same weights and fill the same host memory, but
        # `copying` is only the last one's event. On streams of their own an earlier copy could
        # still run after that event, read weights of a later step and mix them into the file; on
        # one stream the last event comes after all copies.
        if self.stream is None:
            self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            staging.fill()
            self.copying = self.stream.record_event()
        return staging.state

    def wait_for_copy(self) -> None:
        """Make the current CUDA stream wait until all copies are complete."""
        if self.copying is not None:
            torch.cuda.current_stream().wait_event(self.copying)

    def submit(self, work: Callable[[], None]) -> None:
        """Run `work` in the thread once the GPU's copy is complete."""
        self.wait()
        self.work = self.pool.submit(run_after, self.copying, work)

    def poll(self) -> None:
        """Raise what went wrong in the thread, without waiting for it."""
        if self.work.done():
            self.wait()

    def wait(self) -> None:
        """Wait until the thread has nothing left to do, and raise what went wrong."""
        self.work.result()

    def __enter__(self) -> AsyncCheckpointer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        self.pool.shutdown()
        if error is None:
            self.wait()
            return
        with contextlib.suppress(Exception):  # the first failure is the one to report
            self.wait()


def run_after(event: torch.cuda.Event | None, work: Callable[[], None]) -> None:
    if event is not None:
        event.synchronize()
    work()
