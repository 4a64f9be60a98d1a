"""Locks on files and folders, which the operating system frees when their process ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import multiprocessing
import os
import re
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from electra import atomic
from electra.config import UserError
from electra.console import ignore, to_stderr

LOCK = ".lock"
HOLDER = re.compile(r"process (?P<process>[1-9]\d{0,9}) on (?P<host>.+)")
POLL_SECONDS = 0.2  # between two attempts to take a lock that another process holds
# Where the file system has no locks, a command continues without one. On NFS they hold between
# machines from version 4 on (before it, only with a lock daemon), and outlive a machine that lost
# its power until its lease ends, 90 seconds as a rule; Lustre needs the mount option `flock`, and
# with `localflock` each machine sees only its own.
WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
told_devices: set[int] = set()  # file systems without locks that were warned of


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Make a folder and hold it; raise UserError where another process holds it."""
    is_new = not folder.exists()
    try:
        atomic.make_folder(folder)
        descriptor = acquire_lock(folder / LOCK)
    except OSError as error:
        raise UserError(
            f"--output-dir {folder}: cannot be written: {error.strerror}; name another folder"
        ) from None
    if descriptor is None:
        raise UserError(
            f"{folder} is in use by another command ({lock_holder(folder / LOCK)}); wait for it, "
            "stop it, or choose another --output-dir"
        )
    try:
        yield
    finally:
        release_lock(folder / LOCK, descriptor)
        if is_new:  # a command that was refused before its first file leaves no empty folder
            with contextlib.suppress(OSError):
                folder.rmdir()


def acquire_lock(path: Path) -> int | None:
    """Return the lock file, open and naming this process; None where another process holds it.

    Child processes do not inherit it, since they could outlive this one.
    """
    while True:
        descriptor = open_lock(path)
        try:
            if not try_lock(descriptor, path):
                os.close(descriptor)
                return None
            if is_same_file(descriptor, path):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
                return descriptor
        except OSError:
            os.close(descriptor)
            raise
        # The former holder removed the file after this process opened and before it locked it.
        os.close(descriptor)


def open_lock(path: Path) -> int:
    """Open a lock file; raise UserError where it is a link, whose target would be overwritten."""
    if not path.is_symlink():
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:
            return descriptor
        os.close(descriptor)
    raise UserError(
        f"{path} is a link or no plain file, where electra keeps its lock; remove it if the folder "
        "is yours"
    )


def try_lock(descriptor: int, path: Path) -> bool:
    """Lock an open file, as far as its file system has locks; return False where it is locked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise
        if multiprocessing.parent_process() is None:  # which has said it
            warn_without_locks(path.parent)
    return True


def warn_without_locks(folder: Path) -> None:
    """Print, once for a file system, that nothing keeps a second command out of a folder."""
    device = folder.stat().st_dev
    if device in told_devices:
        return
    told_devices.add(device)
    to_stderr(
        f"warning: {folder}: this file system has no locks; start no second command that writes "
        "there"
    )


def is_same_file(descriptor: int, path: Path) -> bool:
    """Return whether a path still names an open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def release_lock(path: Path, descriptor: int) -> None:
    # Removed while locked: a process that opened it meanwhile sees that it is no longer the file.
    path.unlink(missing_ok=True)
    os.close(descriptor)


def seems_locked(folder: Path) -> bool:
    """Return whether a folder's lock file names a process that lives, or one elsewhere.

    The lock itself is not tried: a command that starts at that moment would be refused.
    """
    if not (folder / LOCK).is_file():
        return False
    match = HOLDER.fullmatch(lock_holder(folder / LOCK))
    if match is None or match["host"] != socket.gethostname():
        return True
    try:
        os.kill(int(match["process"]), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # of another user
        return True
    return True


def lock_holder(path: Path) -> str:
    """Return the name of the process that holds the lock."""
    try:
        with path.open(encoding="utf8") as file:
            return file.read(200) or "not known which"
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
    atomic.make_folder(path.parent)
    descriptor = open_lock(atomic.sibling(path, "lock"))
    try:
        is_announced = False
        while not try_lock(descriptor, path):
            if interrupted():
                yield False
                return
            if not is_announced:
                say(f"{path}: another process is at work there; waiting for it")
            is_announced = True
            time.sleep(POLL_SECONDS)
        yield True
    finally:
        os.close(descriptor)
