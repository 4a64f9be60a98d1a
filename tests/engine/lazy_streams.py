"""Stand-ins for CUDA streams that do what they must as late as they may."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch

from electra.engine import async_checkpoint
from electra.engine.training_state import PinnedStaging


class LazyEvent:
    def __init__(self, stream: LazyStream) -> None:
        self.stream, self.number = stream, stream.issued

    def synchronize(self) -> None:
        self.stream.run_until(self.number)


class LazyStream:
    """Runs its work in order, but none before an event that comes after it is waited for."""

    def __init__(self) -> None:
        self.pending: list[Callable[[], None]] = []
        self.issued = 0
        self.lock = threading.Lock()  # a thread that writes waits for events too

    def issue(self, work: Callable[[], None]) -> None:
        self.pending.append(work)
        self.issued += 1

    def run_until(self, number: int) -> None:
        with self.lock:
            while self.issued - len(self.pending) < number:
                self.pending.pop(0)()

    def record_event(self) -> LazyEvent:
        return LazyEvent(self)

    def wait_stream(self, other: object) -> None:
        """Wait for the current stream, which is never behind."""

    def wait_event(self, event: LazyEvent) -> None:
        event.synchronize()


class LazyStreams:
    """Put AsyncCheckpointer on streams whose copies are delayed as long as nothing forbids it.

    The current stream, which trains, does everything at once. So a copy that no update waits for
    reads the weights after it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.streams: list[LazyStream] = []
        self.current = self.training = LazyStream()
        self.copies = 0
        fill = PinnedStaging.fill

        def fill_late(staging: PinnedStaging) -> None:
            self.copies += 1
            self.current.issue(lambda: fill(staging))

        cuda = SimpleNamespace(
            is_available=lambda: True,
            Stream=self.new_stream,
            current_stream=lambda: self.current,
            stream=self.use,
        )
        monkeypatch.setattr(PinnedStaging, "fill", fill_late)
        monkeypatch.setattr(
            async_checkpoint, "torch", SimpleNamespace(**{**vars(torch), "cuda": cuda})
        )

    def new_stream(self) -> LazyStream:
        self.streams.append(LazyStream())
        return self.streams[-1]

    @contextlib.contextmanager
    def use(self, stream: LazyStream) -> Iterator[None]:
        self.current = stream
        yield
        self.current = self.training

    def run_all(self) -> None:
        """Do all that was put off."""
        for stream in self.streams:
            stream.run_until(stream.issued)
