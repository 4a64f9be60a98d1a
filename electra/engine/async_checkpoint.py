"""A checkpoint is copied and written beside the next steps."""

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
    on_host,
    optimizer_state_of,
    places_of,
    weights_of,
)


class AsyncCheckpointer:
    """Writes one copy at a time beside the steps. What goes wrong there is raised here, when next
    asked about it.
    """

    def __init__(self) -> None:
        self.pool, self.work = ThreadPoolExecutor(1, "checkpoint"), Future[None]()
        self.work.set_result(None)
        self.room: PinnedStaging | None = None
        self.copying: torch.cuda.Event | None = None

    def copied(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> TrainingState:
        """Weights and slots as they are now, in this machine's memory, to be written while they
        move on. The other processes `contribute` to a module that is spread over them.

        A GPU copies beside the next pass: work that is begun waits until it has, and so must
        whatever changes weights or slots (`hold`).
        """
        self.wait()  # two copies may be too many for the memory
        if is_sharded(module) or not torch.cuda.is_available():
            weights, slots = weights_of(module), optimizer_state_of(module, optimizer)
            # What lay in parts was copied when it was gathered.
            return (
                (weights, slots)
                if is_sharded(module)
                else (on_host(weights.items()), on_host(slots.items()))
            )
        places = places_of(optimizer)
        if self.room is None or self.room.places != places:
            self.room = None  # both may be too much for the memory
            self.room = PinnedStaging(
                places, weights_of(module), optimizer_state_of(module, optimizer)
            )
        beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            self.room.fill()
            self.copying = beside.record_event()
        return self.room.contents

    def wait_for_copy(self) -> None:
        """Whatever a GPU is told from here on it does after its copy."""
        if self.copying is not None:
            torch.cuda.current_stream().wait_event(self.copying)

    def begin(self, work: Callable[[], None]) -> None:
        """As soon as a copy that a GPU is making is whole."""
        self.wait()
        self.work = self.pool.submit(after, self.copying, work)

    def poll(self) -> None:
        if self.work.done():
            self.wait()

    def wait(self) -> None:
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
        with (
            contextlib.suppress(Exception) if error else contextlib.nullcontext()
        ):  # the first failure is the one told
            self.wait()


def after(event: torch.cuda.Event | None, work: Callable[[], None]) -> None:
    if event is not None:
        event.synchronize()
    work()
