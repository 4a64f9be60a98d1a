"""The plan file of a trial: each arm and seed that was asked for, and its run folders. No torch.

A plan file lies in the folder of the sweep. It adds up what several commands asked for, and
`findings` reads it back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from electra import atomic
from electra.config import UserError, flatten
from electra.experiments.plan import Trial
from electra.experiments.sweep import Sweep
from electra.file_lock import wait_for_lock
from electra.files import read_json_object_or_empty

FORMAT = 2
SCHEDULE = (
    "fresh for each run: warm-up and decay over its own steps, never the beginning of a longer "
    "run; a shorter run keeps its recipe's warm-up, up to a sixth of its steps, unless the scale "
    "has a share of its own"
)


@dataclass(frozen=True, kw_only=True)
class PlanFile:
    """A plan file. It holds trial and scale as they were, in case a later version changes them."""

    trial: dict[str, Any]
    scale: dict[str, Any]
    budget: str
    schedule: str
    tasks: list[str]
    corpus: dict[str, Any]
    entries: list[dict[str, Any]]
    format: int = FORMAT


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One pre-training run of an entry. Its folder is relative to the plan file's."""

    folder: str
    steps: int
    flops_per_step: float
    official_flops_per_step: float
    tokens_per_step: float = 0.0
    corpus: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PlannedTask:
    """One fine-tuning of an entry's last network."""

    folder: str
    seeds: int


@dataclass(frozen=True, kw_only=True)
class PlanEntry:
    """One arm and seed of a plan file."""

    arm: str
    seed: int
    runs: list[PlannedRun]
    tasks: dict[str, PlannedTask]


def update_plan_file(
    sweep: Sweep, trial: Trial, entries: list[dict[str, Any]], tasks: Sequence[str]
) -> None:
    """Add entries to a trial's plan file, beside those of earlier commands."""
    budget = str(sweep.budget)
    path = sweep.output_dir / f"{trial.name}-{sweep.scale.name}-{budget.replace('/', '_')}.json"
    with wait_for_lock(path):
        before = read_json_object_or_empty(path)
        if before.get("entries"):
            check_format(path, before)
            check_settings(path, before, {"trial": asdict(trial), "scale": asdict(sweep.scale)})
            check_schedule(path, before, sweep)
            check_text(path, [*before["entries"], *entries])
        merged = merge_entries(before.get("entries", ()), entries)
        check_scoring(path, merged)
        plan = PlanFile(
            trial=asdict(trial),
            scale=asdict(sweep.scale),
            budget=budget,
            schedule=SCHEDULE,
            tasks=list(dict.fromkeys([*before.get("tasks", ()), *tasks])),
            corpus=entries[0]["runs"][0]["corpus"],
            entries=merged,
        )
        atomic.write_json(path, asdict(plan))


def merge_entries(
    before: Sequence[dict[str, Any]], entries: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return all entries, later ones for earlier ones of the same arm and seed."""
    merged = {(entry["arm"], entry["seed"]): entry for entry in before}
    for entry in entries:
        key = entry["arm"], entry["seed"]
        earlier = merged.get(key, {})
        if earlier.get("runs") == entry["runs"]:  # what it was scored on before still counts
            entry["tasks"] = earlier["tasks"] | entry["tasks"]
        merged[key] = entry
    return list(merged.values())


# ---- one table compares only what is alike -------------------------------------------------------


def check_format(path: Path, plan: Mapping[str, Any]) -> None:
    """Raise for a plan file of another version: its runs have metrics of other names."""
    if plan.get("format") != FORMAT:
        raise UserError(
            f"{path}: plan of format {plan.get('format')!r}, this version reads {FORMAT}; run the "
            "trial again in another --output-dir"
        )


def check_settings(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise where the trial or the scale changed: networks, steps, or how they are scored."""
    for part, settings in now.items():
        old = dict(flatten(without_folders(before.get(part, {}))))
        new = json.loads(json.dumps(settings))  # as it is read back
        new = dict(flatten(without_folders(new)))
        for key in {**old, **new}:
            if old.get(key) != new.get(key):
                raise UserError(
                    f"{path} was begun when {part} {settings['name']} had other {key}, and one "
                    "table would compare its arms with these; remove that file to start a new "
                    "table (runs with the same settings are found again), or give another "
                    "--output-dir"
                )


def check_schedule(path: Path, before: Mapping[str, Any], sweep: Sweep) -> None:
    """Raise where another version chose the warm-up of part-trained runs otherwise."""
    if sweep.budget == 1 or sweep.scale.warmup_ratio is not None:
        return  # the recipe or the scale says it
    if before.get("schedule") != SCHEDULE:
        raise UserError(
            f"{path} was begun by a version that warms up for other numbers of steps, and one "
            "table would compare its arms with these; remove that file to start a new table, or "
            "give another --output-dir"
        )


def without_folders(settings: Any) -> Any:
    """Return the settings of a trial with its recipe files by their names: it may have moved."""
    if isinstance(settings, list):
        return [without_folders(value) for value in settings]
    if not isinstance(settings, dict):
        return settings
    placed = {key: without_folders(value) for key, value in settings.items()}
    if isinstance(recipe := placed.get("recipe"), str):
        placed["recipe"] = Path(recipe).name
    return placed


def check_scoring(path: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    """Raise where arms are scored on different data: it is part of a scoring's folder name."""
    names: dict[str, str] = {}
    for task, planned in (item for entry in entries for item in entry["tasks"].items()):
        name = Path(planned["folder"]).name
        if names.setdefault(task, name) != name:
            raise UserError(
                f"{path} has arms that were scored on other data of {task}, and one table would "
                "compare them with these; give the earlier data, ask for all arms and seeds "
                "again with these, or give another --output-dir"
            )


def check_text(path: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    """Raise where arms read different text: rows of one length come from one cut of it."""
    fingerprints: dict[int, str] = {}
    for run in (run for entry in entries for run in entry["runs"]):
        corpus = run["corpus"]
        if "fingerprint" not in corpus:
            continue
        known = fingerprints.setdefault(corpus["length"], corpus["fingerprint"])
        if known != corpus["fingerprint"]:
            raise UserError(
                f"{path} has arms that were trained on other text, and one table would compare "
                "them with these; give the earlier text or shards, or another --output-dir"
            )
