"""One run in a folder at a time, by a lock that ends with its process: a crash leaves none behind."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from electra import atomic
from electra.config import UserError
from electra.console import ignore
from electra.runs.run_dir import check_place

LOCK = ".lock"
POLL_SECONDS = 0.2  # between two attempts to take a lock that another process holds
# Where the file system has no locks, a run goes on without one. On NFS they hold between machines
# from version 4 on (before it, only with a lock daemon), and outlive a machine that lost its power
# until its lease ends, 90 seconds as a rule; Lustre needs the mount option `flock`, and with
# `localflock` each machine sees only its own.
WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


class Processes(Protocol):
    """The processes of a run, of which one writes."""

    @property
    def is_main(self) -> bool: ...
    def broadcast(self, value: Any) -> Any: ...


@contextlib.contextmanager
def run_lock(folder: Path, world: Processes) -> Iterator[None]:
    """The leading process holds the folder for all of them; where another run holds it, every
    process is told so.
    """
    check_place(folder)
    refusal, fresh, descriptor = None, not folder.exists(), None
    if world.is_main:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = taken(folder / LOCK)
        except OSError as error:
            refusal = (
                f"--output-dir {folder}: cannot be written: {error.strerror}; name another folder"
            )
        else:
            if descriptor is None:
                refusal = (
                    f"{folder} is in use by another run ({holder(folder / LOCK)}); wait for it, "
                    "stop it, or "
                    f"choose another --output-dir"
                )
    try:
        if refusal := world.broadcast(refusal):
            raise UserError(refusal)
        yield
    finally:
        if descriptor is not None:
            (folder / LOCK).unlink(
                missing_ok=True
            )  # still locked: who opened it meanwhile sees that it is not this
            os.close(descriptor)
            if fresh:  # a run that was refused before it began leaves no empty folder
                with contextlib.suppress(OSError):
                    folder.rmdir()


def taken(path: Path) -> int | None:
    """The lock, as an open file that says whose it is; None where another process has it. Not
    passed on to children, which could outlive this process.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in WITHOUT_LOCKS:
                os.close(descriptor)
                if isinstance(error, BlockingIOError):
                    return None
                raise
        if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
            return descriptor
        os.close(
            descriptor
        )  # the run before us took its file away between our opening and our locking it


def holder(path: Path) -> str:
    try:
        return path.read_text(encoding="utf8") or "not known which"
    except (OSError, ValueError):
        return "not known which"


@contextlib.contextmanager
def wait_for_lock(
    path: Path,
    interrupted: Callable[[], bool] = lambda: False,
    *,
    say: Callable[[str], None] = ignore,
) -> Iterator[bool]:
    """Hold the lock of a file or folder, once no other process does.

    The value is False if the wait was interrupted. The lock is a file beside `path`, and the
    operating system frees it however its holder ends.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic.sibling(path, "lock").open("w") as lock:
        is_announced = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if interrupted():
                    yield False
                    return
                if not is_announced:
                    say(f"{path}: another process is at work there; waiting for it")
                is_announced = True
                time.sleep(POLL_SECONDS)
        yield True
