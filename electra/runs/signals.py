"""Signals that ask a run to write a checkpoint and end."""

from __future__ import annotations

import contextlib
import signal
import threading
import types
from collections.abc import Callable, Iterator

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
# What the outermost `stop_signals` block has received; empty outside of one.
active: list[list[int]] = []


@contextlib.contextmanager
def hold_early_signals() -> Iterator[list[int]]:
    """Collect SIGUSR1 while a run is set up, for `stop_signals` once there is a step to save.

    A launcher may have set its processes to ignore the signal, so it is handled in any case.
    """
    early: list[int] = []
    if active or not in_main_thread():
        yield early
        return
    before = signal.signal(signal.SIGUSR1, lambda number, frame: early.append(number))
    try:
        yield early
    finally:
        signal.signal(signal.SIGUSR1, before)


@contextlib.contextmanager
def stop_signals(early: list[int] | None = None) -> Iterator[Callable[[], bool]]:
    """Give a function that returns whether Ctrl-C or a signal has asked the run to end.

    SIGTERM, SIGUSR1 and SIGHUP (the terminal was closed) do; nohup lets a run ignore the last. A
    second Ctrl-C raises KeyboardInterrupt. Blocks may be nested: a signal stops the runs of all.
    """
    if active or not in_main_thread():
        yield lambda: any(active)
        return
    received: list[int] = []
    if early is not None:
        received = early

    def receive(number: int, frame: types.FrameType | None) -> None:
        if signal.SIGINT in received and number == signal.SIGINT:
            raise KeyboardInterrupt
        received.append(number)

    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    if before[signal.SIGHUP] is signal.SIG_IGN:
        del before[signal.SIGHUP]
    for number in before:
        signal.signal(number, receive)
    active.append(received)
    try:
        yield lambda: bool(received)
    finally:
        active.clear()
        for number, handler in before.items():
            signal.signal(number, handler)


def in_main_thread() -> bool:
    """Return whether this is the main thread, the only one that can handle signals."""
    return threading.current_thread() is threading.main_thread()
