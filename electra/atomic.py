"""Files and folders that are whole or absent: written under another name, flushed to disk, then
renamed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


def write(path: Path, content: str | bytes | memoryview) -> None:
    """Whoever opens `path`, now or after a power cut, sees all of `content` or what was there
    before.
    """
    try:
        with writing(path) as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise OSError(f"{path}: cannot be written: {error.strerror}") from error


@contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """A stream that takes the place of `path` once it is whole and on the disk."""
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
    write(path, json.dumps(values, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """An empty folder that takes the place of `folder` once it is whole and on the disk."""
    if standing(folder) != folder:
        standing(folder).rename(folder)
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
        folder.rename(old)  # after a crash here the old one is still found: see `standing`
    fresh.rename(folder)
    sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def standing(folder: Path) -> Path:
    """Where a folder is: in its place, or just beside it if a crash fell between moving the old out
    and the new in.
    """
    old = sibling(folder, "old")
    return old if old.exists() and not folder.exists() else folder


def sibling(path: Path, word: str) -> Path:
    return path.with_name(f".{path.name}.{word}")


def sync(path: Path) -> None:
    """Make sure that it is on the disk, and not only on its way there."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
