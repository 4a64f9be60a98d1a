"""Files that are whole or absent: written under another name, flushed to disk, then renamed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Whoever opens `path`, now or after a power cut, sees all of `content` or what was there before."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise OSError(f"{path}: cannot be written: {error.strerror}") from error


def write_json(path: Path, values: Any) -> None:
    write_atomically(path, (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode())
