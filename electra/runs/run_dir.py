"""The files of a run folder and their status.

`config.toml` is the resolved recipe, `environment.json` holds versions, hardware and what the
run began from, `status.json` says how it stands, and `metrics.jsonl` is its journal.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Literal

from electra import atomic
from electra.config import UserError
from electra.files import read_json_object_or_empty

CONFIG = "config.toml"
STATUS = "status.json"
ENVIRONMENT = "environment.json"
METRICS = "metrics.jsonl"
TENSORBOARD = "tensorboard"
TRACKERS = "trackers.json"  # the ids of this run at wandb and trackio
REPLACING = "replacing-earlier-run"  # a start with --overwrite that has not got that far yet
STATUS_SECONDS = 10.0  # between two updates of status.json; each waits for the disk
Status = Literal["running", "finished", "stopped", "failed"]


def check_output_dir(run: Path) -> None:
    """Raise UserError where a run folder cannot be written, before any work is done."""
    existing = next(path for path in (run, *run.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise UserError(f"--output-dir {run}: {existing} is a file; name a folder")
    if not os.access(existing, os.W_OK):
        raise UserError(
            f"--output-dir {run}: no permission to write in {existing}; name another folder"
        )
    for folder in (run / TENSORBOARD, *run.glob("seed-*")):
        atomic.check_links(folder, inside=run)


def create_output_dir(folder: Path) -> None:
    """Create a folder for output; raise UserError where it cannot be written."""
    check_output_dir(folder)
    try:
        atomic.make_folder(folder)
    except OSError as error:
        raise UserError(
            f"--output-dir {folder}: cannot be written: {error.strerror}; name another folder"
        ) from None


def set_status(run: Path, status: Status, *, step: int, **facts: Any) -> None:
    """Write status.json."""
    atomic.write_json(run / STATUS, {"status": status, "step": step, "time": time.time(), **facts})


def get_status(run: Path) -> dict[str, Any]:
    """Read status.json; return an empty dict where it is missing or damaged."""
    return read_json_object_or_empty(run / STATUS)
