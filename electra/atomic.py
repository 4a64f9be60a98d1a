"""Write files and folders atomically: under another name, flushed to disk, then renamed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


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
        with partial.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_json(path: Path, values: Any) -> None:
    """Replace the content of a file by JSON."""
    write(path, json.dumps(values, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that replaces `folder` once it is complete and on the disk."""
    existing = resolve_folder(folder)
    if existing != folder:
        existing.rename(folder)
    fresh, old = sibling(folder, "partial"), sibling(folder, "old")
    for leftover in (fresh, old):
        shutil.rmtree(leftover, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        yield fresh
        for path in (*fresh.rglob("*"), fresh):
            sync(path)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    if folder.exists():
        folder.rename(old)  # after a crash here the old one is still found: see `resolve_folder`
    fresh.rename(folder)
    sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def resolve_folder(folder: Path) -> Path:
    """Return where a folder is: at its path, or beside it after a crash during its replacement."""
    old = sibling(folder, "old")
    if old.exists() and not folder.exists():
        return old
    return folder


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
