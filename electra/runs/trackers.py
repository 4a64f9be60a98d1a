"""Experiment trackers beside metrics.jsonl: TensorBoard; wandb, and trackio, which has its API.

Their packages are imported when they are asked for. A tracker that fails never ends a run.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from electra import atomic
from electra.config import UserError, suggest
from electra.escape import first_line
from electra.files import read_json_object_or_empty
from electra.runs.run_dir import TENSORBOARD, TRACKERS

NAMES = ("tensorboard", "wandb", "trackio")
PROJECT = "electra"


@dataclass(frozen=True)
class Tracking:
    """Which trackers a run reports to, and what they are told of it."""

    report_to: str = "none"  # none, or names with commas between
    config: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""  # of runs that belong together: the seeds of a fine-tuning


NO_TRACKING = Tracking()


class Tracker(Protocol):
    """Takes the metrics of a run."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record metrics at a step."""

    def finish(self, exit_code: int) -> None:
        """End the run at the tracker."""


def parse_names(report_to: str) -> list[str]:
    """Return the names in a list with commas; raise UserError for an unknown one."""
    names = [name.strip() for name in report_to.split(",")]
    if names == ["none"]:
        return []
    for name in names:
        if name not in NAMES:
            raise UserError(
                f"must be none, or {', '.join(NAMES)} or several of them with commas between"
                f"{suggest(name, NAMES)}"
            )
    return list(dict.fromkeys(names))


def check_trackers(report_to: str) -> None:
    """Raise UserError where a tracker is unknown or its package is missing, before the work."""
    try:
        names = parse_names(report_to)
    except UserError as error:
        raise UserError(f"--report-to {report_to}: {error}") from None
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise UserError(f"--report-to {name} needs: pip install {name}")


def open_trackers(tracking: Tracking, run: Path, *, after: int) -> dict[str, Tracker]:
    """Start the trackers of the run in this folder, or continue after a step; by name."""
    trackers: dict[str, Tracker] = {}
    for name in parse_names(tracking.report_to):
        if name == "tensorboard":
            trackers[name] = TensorBoard(run, after)
        else:
            trackers[name] = start_run(name, tracking, run, is_new=after == 0)
    return trackers


def broken_package(name: str, error: Exception) -> UserError:
    """Return the error for a tracker whose package is there but cannot be imported."""
    reason = first_line(f"{type(error).__name__}: {error}")
    return UserError(
        f"--report-to {name}: it cannot be imported ({reason}); pip install --upgrade {name}, or "
        "leave it out"
    )


class TensorBoard:
    """Writes the files that TensorBoard reads."""

    def __init__(self, run: Path, after: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except Exception as error:
            raise broken_package("tensorboard", error) from None
        self.writer: Any = SummaryWriter(run / TENSORBOARD, purge_step=after + 1)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def finish(self, exit_code: int) -> None:
        self.writer.close()


# ---- wandb and trackio ---------------------------------------------------------------------------


@dataclass
class RemoteRun:
    """A run of wandb or trackio."""

    run: Any
    end: Callable[[int], None]

    def log(self, step: int, values: Mapping[str, float]) -> None:
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        self.run.log(finite, step=step)

    def finish(self, exit_code: int) -> None:
        self.end(exit_code)


def start_run(name: str, tracking: Tracking, folder: Path, *, is_new: bool) -> RemoteRun:
    """Start a run at the tracker, or continue the one whose id the folder keeps."""
    try:
        module = importlib.import_module(name)
    except Exception as error:  # an old one fails in its own ways beside new packages
        raise broken_package(name, error) from None
    run_id, title = find_run_id(name, folder, is_new=is_new), folder.name
    if tracking.group:
        title = f"{tracking.group}-{folder.name}"
    options: dict[str, Any] = {"config": dict(tracking.config), "resume": "allow"}
    if name == "wandb":
        options |= {"id": run_id, "name": title, "dir": str(folder)}
        options |= {"project": os.environ.get("WANDB_PROJECT", PROJECT)}
    else:  # a run of trackio is known by its name alone
        options |= {"name": f"{title}-{run_id}", "project": PROJECT}
    if tracking.group:
        options["group"] = tracking.group
    try:
        run = module.init(**options)
    except Exception as error:
        # Not its text: it may quote a key.
        raise UserError(
            f"--report-to {name}: it could not be started ({type(error).__name__}); log in to it, "
            "or set its offline mode (WANDB_MODE=offline), or leave it out"
        ) from None
    if name == "wandb":
        return RemoteRun(run, lambda exit_code: run.finish(exit_code=exit_code))
    return RemoteRun(run, lambda exit_code: run.finish())


def find_run_id(name: str, folder: Path, *, is_new: bool) -> str:
    """Return the id of this run at a tracker, which the folder keeps, or make a new one."""
    path = folder / TRACKERS
    known = read_json_object_or_empty(path)
    run_id = known.get(name)
    if not is_new and isinstance(run_id, str) and run_id.isalnum() and len(run_id) <= 64:
        return run_id
    run_id = secrets.token_hex(6)
    atomic.write_json(path, known | {name: run_id})
    return run_id
