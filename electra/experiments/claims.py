"""One process at a time at a file or folder that several commands share."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from electra import atomic

Interrupted = Callable[[], bool]
Say = Callable[[str], None]
PATIENCE_SECONDS = 0.2  # between two looks at whether somebody wants this to end


@contextmanager
def claimed(place: Path, *, interrupted: Interrupted, say: Say) -> Iterator[bool]:
    """Nobody else works at this file or folder meanwhile: neither a worker nor another command.
    False: stopped waiting.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    with atomic.sibling(place, "lock").open("w") as lock:
        told = False
        while True:
            try:
                fcntl.flock(
                    lock, fcntl.LOCK_EX | fcntl.LOCK_NB
                )  # freed by the system, however its holder ends
                break
            except BlockingIOError:
                if interrupted():
                    yield False
                    return
                if not told:
                    say(f"{place}: another process is at work there; waiting for it")
                told = True
                time.sleep(PATIENCE_SECONDS)
        yield True
