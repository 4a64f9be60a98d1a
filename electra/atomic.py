"""Write files and folders atomically: under another name, flushed to disk, then renamed.

A folder that somebody else prepared may hold links to anywhere. None is written through, except the
output folder itself, which the user named.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from electra.config import UserError

# How a file system says that it cannot flush a folder, or that this one cannot be opened.
NO_SYNC = {errno.EINVAL, errno.EOPNOTSUPP, errno.EACCES}


def write(path: Path, content: str | bytes | memoryview) -> None:
    """Replace the content of a file.

    A reader, now or after a power cut, sees all of `content` or what the file held before.
    """
    if isinstance(content, str):
        content = content.encode()
    try:
        with open_write(path) as stream:
            stream.write(content)
    except OSError as error:
        raise OSError(f"{path}: cannot be written: {error.strerror}") from error


@contextmanager
def open_write(path: Path) -> Iterator[IO[bytes]]:
    """Open a stream whose content replaces the file once it is complete and on the disk."""
    partial = sibling(path, "partial")
    try:
        partial.unlink(missing_ok=True)  # of a process that was killed
        with partial.open("xb") as stream:  # created here, or refused: not a link to another file
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(path)
        sync_folder(path.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def check_output_file(path: Path) -> None:
    """Raise UserError, before any work, where `--output` names a file that cannot be written."""
    if not path.absolute().parent.is_dir():
        raise UserError(f"--output {path}: no folder {path.parent}; make it first")
    if path.is_dir():
        raise UserError(f"--output {path} is a folder; name a file")
    try:
        probe_write(sibling(path, "partial"))
    except OSError as error:
        raise UserError(
            f"--output {path}: cannot be written: {error.strerror}; name a file elsewhere"
        ) from None


def probe_write(path: Path) -> None:
    """Create a file and remove it: no permission says whether a disk is mounted read-only."""
    path.unlink(missing_ok=True)
    path.touch(exist_ok=False)
    path.unlink()


def write_json(path: Path, values: Any) -> None:
    r"""Replace the content of a file by JSON. Half a surrogate pair, of a user's id for example,
    becomes JSON's escape for it: \ud83d.
    """
    content = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
    write(path, content.encode(errors="backslashreplace"))


@contextmanager
def default_mode(path: Path) -> Iterator[None]:
    """Give a new file the mode that the umask asks for: safetensors makes its files private."""
    path.unlink(missing_ok=True)
    path.touch(exist_ok=False)
    mode = path.stat().st_mode
    path.unlink()
    yield
    if path.stat().st_mode != mode:
        path.chmod(mode)


@contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that replaces `folder` once it is complete and on the disk."""
    existing = resolve_folder(folder)
    if existing != folder:
        existing.rename(folder)
    fresh, old = sibling(folder, "partial"), sibling(folder, "old")
    for leftover in (fresh, old):
        remove_folder(leftover, ignore_errors=True)
    make_folder(folder.parent)
    fresh.mkdir()
    try:
        yield fresh
        for path in (*fresh.rglob("*"), fresh):
            sync(path)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    if os.path.lexists(folder):
        folder.rename(old)  # after a crash here the old one is still found: see `resolve_folder`
    fresh.rename(folder)
    sync_folder(folder.parent)
    remove_folder(old, ignore_errors=True)


def resolve_folder(folder: Path) -> Path:
    """Return where a folder is: at its path, or beside it after a crash during its replacement."""
    if folder.exists():  # also "." and "/", which have no name and so no sibling
        return folder
    old = sibling(folder, "old")
    if old.exists():
        return old
    return folder


def make_folder(folder: Path, *, inside: Path | None = None) -> None:
    """Make a folder and its parents, so that they survive a power cut.

    Links between `inside` and the folder are refused; `inside` itself may be one.
    """
    if inside is not None:
        check_links(folder, inside=inside)
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def check_links(path: Path, *, inside: Path) -> None:
    """Raise UserError where a path is a symbolic link, or a folder between it and `inside` is."""
    place = inside
    for name in path.relative_to(inside).parts:
        place = place / name
        if place.is_symlink():
            raise UserError(
                f"{place} is a symbolic link to {os.readlink(place)}, and electra writes through "
                "no link inside of an output folder; remove it, or put what it names in its place"
            )


def remove_folder(folder: Path, *, ignore_errors: bool = False) -> None:
    """Remove a folder; of a link only the link, and never what it names."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=ignore_errors)


def sibling(path: Path, suffix: str) -> Path:
    """Return the path of a hidden file beside a file."""
    return path.with_name(f".{path.name}.{suffix}")


def sync(path: Path) -> None:
    """Flush a file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk, where its file system can do that."""
    try:
        sync(folder)
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise
