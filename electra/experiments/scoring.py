"""What the network of an arm is scored on: tasks with data, and how each is fine-tuned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from electra import atomic, tasks
from electra.config import UserError
from electra.data.tables import Table, is_hub_name
from electra.experiments.plan import Evaluation
from electra.experiments.sweep import Sweep, task_source
from electra.settings import fingerprint


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """The fine-tuning of one network on one task."""

    task: str
    data: str
    folder: Path
    seeds: int
    recipe: str
    flags: tuple[str, ...]


@dataclass(frozen=True)
class TaskData:
    """Which tasks of a sweep have data."""

    folders: dict[str, str]  # task → folder or hub name
    missing: dict[str, str]  # task → why it cannot be scored


def find_task_data(sweep: Sweep) -> TaskData:
    """Find the data of every task of a sweep; raise where data of an explicit task is missing."""
    for source, folder in sweep.task_folders.items():
        if not Path(folder).is_dir() and not is_hub_name(folder):
            raise UserError(f"--{source} {folder}: no such folder, nor a data set on the hub")
    data = TaskData({}, {})
    for task in dict.fromkeys(task for trial in sweep.trials for task in sweep.tasks_of(trial)):
        source = task_source(task)
        if source not in sweep.task_folders:
            data.missing[task] = f"no --{source}"
        elif not has_data(task, sweep.task_folders[source]):
            data.missing[task] = f"no files of it in {sweep.task_folders[source]}"
        else:
            data.folders[task] = sweep.task_folders[source]
    for task in sweep.tasks:
        if task in data.missing:
            raise UserError(
                f"--tasks {task}: {data.missing[task]}; name the folder that holds its official "
                f"files with --{task_source(task)}"
            )
    return data


def has_data(task: str, folder: str) -> bool:
    """Return whether a folder, or a data set on the hub, holds a task's train and dev sets."""
    if task.startswith("glue/"):
        from electra.tasks.glue import available_tasks

        return task in available_tasks(folder)[0]
    try:
        files = tasks.find_task(task).locate(folder)
    except UserError:
        return False
    return bool(files.train and files.dev)


def build_scorings(
    task_data: Mapping[str, str], evaluation: Evaluation, run: Path
) -> list[Scoring]:
    """Return how the network of a run is fine-tuned on each of these tasks."""
    return [build_scoring(task, data, evaluation, run) for task, data in task_data.items()]


def build_scoring(task: str, data: str, evaluation: Evaluation, run: Path) -> Scoring:
    """Return how a task is fine-tuned at a scale.

    Its folder is named by what decides the result, beside the seeds.
    """
    settings = evaluation.settings | evaluation.settings_of.get(task, {})
    flags = tuple(f"--{key.replace('_', '-')}={as_text(value)}" for key, value in settings.items())
    files = tasks.find_task(task).locate(data)
    dev = {name: fingerprints(tables) for name, tables in files.dev.items()}
    key = fingerprint([task, evaluation.recipe, sorted(flags), fingerprints(files.train), dev])
    folder = run / "tasks" / f"{task.replace('/', '-')}-{key[:8]}"
    atomic.check_links(folder, inside=run)
    return Scoring(
        task=task,
        data=data,
        folder=folder,
        seeds=evaluation.seeds,
        recipe=evaluation.recipe,
        flags=flags,
    )


def fingerprints(tables: Sequence[Table]) -> list[dict[str, Any]]:
    return [table.fingerprint() for table in tables]


def as_text(value: Any) -> str:
    """Return a setting's value as a flag has it; a list with commas."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(as_text, value))
    return str(value)
