"""Locks on run folders, which the operating system frees when their process ends."""

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
from electra.runs.run_dir import check_output_dir

LOCK = ".lock"
POLL_SECONDS = 0.2  # between two attempts to take a lock that another process holds
# Where the file system has no locks, a run goes on without one. On NFS they hold between machines
# from version 4 on (before it, only with a lock daemon), and outlive a machine that lost its power
# until its lease ends, 90 seconds as a rule; Lustre needs the mount option `flock`, and with
# `localflock` each machine sees only its own.
WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


class Processes(Protocol):
    """The processes of a run, of which the main one writes."""

    @property
    def is_main(self) -> bool: ...
    def broadcast(self, value: Any) -> Any: ...


@contextlib.contextmanager
def run_lock(folder: Path, world: Processes) -> Iterator[None]:
    """Hold a run folder; raise UserError in every process where another run holds it.

    The main process takes the lock for all of them.
    """
    check_output_dir(folder)
    refusal, descriptor = None, None
    is_new = not folder.exists()
    if world.is_main:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = acquire_lock(folder / LOCK)
        except OSError as error:
            refusal = (
                f"--output-dir {folder}: cannot be written: {error.strerror}; name another folder"
            )
        else:
            if descriptor is None:
                refusal = (
                    f"{folder} is in use by another run ({lock_holder(folder / LOCK)}); wait for "
                    "it, stop it, or choose another --output-dir"
                )
    try:
        if refusal := world.broadcast(refusal):
            raise UserError(refusal)
        yield
    finally:
        if descriptor is not None:
            release_lock(folder / LOCK, descriptor)
            if is_new:  # a run that was refused before its first step leaves no empty folder
                with contextlib.suppress(OSError):
                    folder.rmdir()


def acquire_lock(path: Path) -> int | None:
    """Return the lock file, open and naming this process; None where another process holds it.

    Child processes do not inherit it, since they could outlive this one.
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
        # The former holder removed the file after this process opened and before it locked it.
        os.close(descriptor)


def release_lock(path: Path, descriptor: int) -> None:
    # Removed while locked: a process that opened it meanwhile sees that it is no longer the file.
    path.unlink(missing_ok=True)
    os.close(descriptor)


def lock_holder(path: Path) -> str:
    """Return the name of the process that holds the lock."""
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
