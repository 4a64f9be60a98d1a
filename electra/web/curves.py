"""The journal of a pre-training run as series of points, each beside its baseline."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from electra.file_lock import seems_locked
from electra.objectives.metrics import (
    LEFT_TO_RIGHT_METRICS,
    LOSS_TITLES,
    NEXT_SENTENCE_METRICS,
    RESTORE_METRICS,
    RTD_METRICS,
    Metric,
    mlm_metrics,
)
from electra.runs import journal, run_dir

MAX_POINTS = 2_000
EVAL = "eval_"
STATES = get_args(run_dir.Status)
GROUPS = {"_loss": "loss", "_accuracy": "accuracy", "auc": "auc"}
OTHERS = {
    "learning_rate": ("learning rate", "rate"),
    "tokens_per_second": ("tokens a second", "speed"),
}
Point = list[float]


class Curves:
    """Reads the journal of a run again when it has grown."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.lock = threading.Lock()
        self.stamp: tuple[int, int] | None = None
        self.entries: list[dict[str, Any]] = []

    def read(self, *, after: int) -> dict[str, Any]:
        """Return the state of the run, and the points of its series after a step."""
        status = run_dir.get_status(self.run)
        entries = [entry for entry in self.read_entries() if entry["step"] > after]
        state = status.get("status")
        if state not in STATES:
            state = "running"
        # A run that was killed had no time to say so.
        if state == "running" and not seems_locked(self.run):
            state = "stopped"
        verdict = status.get("verdict")
        text = None
        if isinstance(verdict, Mapping) and isinstance(verdict.get("text"), str):
            text = verdict["text"]
        return {
            "status": state,
            "step": integer_or_none(status.get("step")) or max_step(self.entries),
            "max_steps": integer_or_none(status.get("max_steps")),
            "verdict": text,
            "series": list(read_series(entries)),
        }

    def read_entries(self) -> Sequence[dict[str, Any]]:
        path = self.run / run_dir.METRICS
        with self.lock:
            try:
                found = path.stat()
                stamp = found.st_mtime_ns, found.st_size
            except OSError:
                return []
            if stamp != self.stamp:
                self.entries, self.stamp = journal.read_metrics(path), stamp
            return self.entries


def integer_or_none(value: object) -> int | None:
    if type(value) is int and 0 <= value < 2**53:
        return value
    return None


def max_step(entries: Sequence[Mapping[str, Any]]) -> int:
    return max((entry["step"] for entry in entries), default=0)


def read_series(entries: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the series that a journal holds: losses, held-out metrics, rate and speed."""
    metrics = known_metrics(entries)
    own = own_metrics(entries, metrics)
    baselines = {metric.name: metric for metric in [*metrics, *own]}
    for key, title in (LOSS_TITLES | own_losses(entries)).items():
        if points := points_of(entries, key):
            baseline = None
            if metric := baselines.get(f"{key}_loss"):
                baseline = baseline_points(entries, metric)
            yield as_series(f"{title}, training", "loss", points, baseline)
    for metric in [*metrics, *own]:
        group = group_of(metric.name)
        if metric in own:
            group = f"objective: {metric.title}"
        points = points_of(entries, EVAL + metric.name)
        if group and points:
            name = f"{metric.network}: {metric.title}, held-out"
            yield as_series(name, group, points, baseline_points(entries, metric))
    for key, (title, group) in OTHERS.items():
        if points := points_of(entries, key):
            yield as_series(title, group, points, None)


def known_metrics(entries: Sequence[Mapping[str, Any]]) -> list[Metric]:
    """Return the metrics of all objectives. A masked LM beside another network is a generator."""
    keys = {key for entry in entries for key in entry}
    network = "encoder"
    if keys & {"rtd", "restore", "eval_rtd_loss", "eval_restore_loss"}:
        network = "generator"
    return [
        *RTD_METRICS,
        *mlm_metrics(network),
        *RESTORE_METRICS,
        *NEXT_SENTENCE_METRICS,
        *LEFT_TO_RIGHT_METRICS,
    ]


def own_losses(entries: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the titles of the losses that only a user's objective has."""
    keys = dict.fromkeys(key for entry in entries for key in entry)
    known = journal.NOT_LOSSES | LOSS_TITLES.keys()
    return {key: key for key in keys if key not in known and not key.startswith(EVAL)}


def own_metrics(entries: Sequence[Mapping[str, Any]], known: Sequence[Metric]) -> list[Metric]:
    """Return the held-out metrics that only a user's objective has, by their keys."""
    keys = dict.fromkeys(key for entry in entries for key in entry)
    names = [key.removeprefix(EVAL) for key in keys if key.startswith(EVAL)]
    others = {key for metric in known for key in (metric.name, metric.baseline, metric.spread)}
    return [
        Metric(
            name=name,
            title=name.replace("_", " "),
            network="objective",
            baseline=f"baseline_{name}",
        )
        for name in names
        if name not in others and not name.startswith("baseline_")
    ]


def group_of(name: str) -> str | None:
    return next((group for ending, group in GROUPS.items() if name.endswith(ending)), None)


def points_of(entries: Sequence[Mapping[str, Any]], key: str) -> list[Point]:
    """Return [step, value] of each entry that has the value; one that was not finite is null."""
    return [[entry["step"], entry[key]] for entry in entries if entry.get(key) is not None]


def baseline_points(entries: Sequence[Mapping[str, Any]], metric: Metric) -> list[Point] | None:
    if isinstance(metric.baseline, str):
        return points_of(entries, EVAL + metric.baseline) or None
    steps = [step for step, _ in points_of(entries, EVAL + metric.name)]
    return [[step, metric.baseline] for step in steps] or None


def as_series(
    name: str, group: str, points: list[Point], baseline: list[Point] | None
) -> dict[str, Any]:
    if baseline is not None:
        baseline = thin(baseline)
    return {"name": name, "group": group, "points": thin(points), "baseline": baseline}


def thin(points: list[Point]) -> list[Point]:
    """Return at most MAX_POINTS points, evenly chosen, the newest among them."""
    count = len(points)
    if count <= MAX_POINTS:
        return points
    return [points[(i + 1) * count // MAX_POINTS - 1] for i in range(MAX_POINTS)]
