"""A run folder: what may start in it, what continues, and how it ended.

`config.toml` says what the run is, `environment.json` where and with what it ran, `status.json` how
it stands.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Literal

from electra import atomic
from electra.config import UserError
from electra.files import read_json_object_or_empty

CONFIG, STATUS, ENVIRONMENT, METRICS = (
    "config.toml",
    "status.json",
    "environment.json",
    "metrics.jsonl",
)
Status = Literal["running", "finished", "stopped", "failed"]


def check_place(run: Path) -> None:
    """A folder that cannot be written is better known before the work than after it."""
    existing = next(path for path in (run, *run.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise UserError(f"--output-dir {run}: {existing} is a file; name a folder")
    if not os.access(existing, os.W_OK):
        raise UserError(
            f"--output-dir {run}: no permission to write in {existing}; name another folder"
        )


def create_output_dir(folder: Path) -> None:
    """Create a folder for output; raise UserError where it cannot be written."""
    check_place(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"--output-dir {folder}: cannot be written: {error.strerror}; name another folder"
        ) from None


def set_status(run: Path, status: Status, *, step: int, **facts: Any) -> None:
    atomic.write_json(run / STATUS, {"status": status, "step": step, "time": time.time(), **facts})


def get_status(run: Path) -> dict[str, Any]:
    return read_json_object_or_empty(run / STATUS)
