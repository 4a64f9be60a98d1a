"""Features that were encoded before: a cache on disk, bounded in size."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from electra import atomic
from electra.settings import fingerprint
from electra.tasks.features import Features

CACHED_FROM = 10_000  # examples; fewer are encoded as fast as they are looked up


def source_of(task: Any) -> str:
    """The code that encodes, in short; empty where it cannot be read, as that of a task written in
    a notebook.
    """
    try:
        files = {
            Path(inspect.getfile(type(task))),
            *Path(inspect.getfile(Features)).parent.glob("*.py"),
        }
        return fingerprint(sorted(path.read_text(encoding="utf8") for path in files))
    except (OSError, TypeError):
        return ""


def cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "electra" / "features"


def cached(path: Path) -> Features | None:
    try:
        found = Features.load(path)
    except (OSError, SafetensorError, KeyError):
        return None
    os.utime(path)  # the least recently used go first
    return found


def keep(features: Features, path: Path, *, most_bytes: int = 4_000_000_000) -> None:
    """Into the cache, which never grows beyond a bound. A cache that cannot be written is no reason
    to fail.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = atomic.sibling(path, str(os.getpid()))
        features.save(partial)
        partial.replace(path)
        size = 0
        for old in sorted(
            path.parent.glob("*.safetensors"), key=lambda file: file.stat().st_mtime, reverse=True
        ):
            size += old.stat().st_size
            if size > most_bytes and old != path:
                old.unlink(missing_ok=True)
    except (OSError, SafetensorError):
        return
