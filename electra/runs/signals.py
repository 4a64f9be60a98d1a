"""Signals that ask a run to write a checkpoint and end."""

from __future__ import annotations

import contextlib
import signal
import threading
import types
from collections.abc import Callable, Iterator

heard: list[list[int]] = []  # signals since the outermost `interrupts` began


@contextlib.contextmanager
def hold_early_signals() -> Iterator[list[int]]:
    """SIGUSR1 that comes while a run is made ready, for `interrupts` to heed once there is a step
    to save. A launcher may have told its processes to ignore it.
    """
    early: list[int] = []
    if heard or threading.current_thread() is not threading.main_thread():
        yield early
        return
    before = signal.signal(signal.SIGUSR1, lambda number, frame: early.append(number))
    try:
        yield early
    finally:
        signal.signal(signal.SIGUSR1, before)


@contextlib.contextmanager
def stop_signals(early: list[int] | None = None) -> Iterator[Callable[[], bool]]:
    """Ctrl-C, SIGTERM and SIGUSR1 ask for a checkpoint and an end; a second Ctrl-C ends at once.
    Several runs may stand inside one such block: what one of them hears is meant for all.
    """
    if (
        heard or threading.current_thread() is not threading.main_thread()
    ):  # only there can signals be heard
        yield lambda: any(heard)
        return
    asked: list[int] = early if early is not None else []

    def ask(number: int, frame: types.FrameType | None) -> None:
        if signal.SIGINT in asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.append(number)

    watched = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    before = [signal.signal(number, ask) for number in watched]
    heard.append(asked)
    try:
        yield lambda: bool(asked)
    finally:
        heard.clear()
        for number, handler in zip(watched, before, strict=True):
            signal.signal(number, handler)
