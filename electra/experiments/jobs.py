"""The jobs of a sweep: every run that is asked for, once.

Every pre-training run has a folder named by what decides its weights, so that arms of several
trials that are the same run are run once. The plan file of each trial says which folders its arms
consist of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from electra import atomic
from electra.config import UserError
from electra.data.shards import Shards
from electra.experiments.budget import PlannedStage, Vocabularies, plan_stages
from electra.experiments.findings import RUNS
from electra.experiments.plan import Arm
from electra.experiments.plan_file import update_plan_file
from electra.experiments.scoring import Scoring, build_scorings
from electra.experiments.shards import check_size, describe_corpus, open_shards
from electra.experiments.sweep import Sweep
from electra.pretraining.recipe import Recipe
from electra.settings import fingerprint


@dataclass(frozen=True, kw_only=True)
class StageRun:
    """One pre-training run of a job: its recipe, its shards and its folder."""

    folder: Path
    recipe: Recipe
    data: Path


@dataclass(frozen=True, kw_only=True)
class Job:
    """Stages in a row, and what their last network is scored on."""

    label: str
    stages: tuple[StageRun, ...]
    scorings: tuple[Scoring, ...]

    @property
    def folder(self) -> Path:
        """The run folder of the last stage."""
        return self.stages[-1].folder


def check_jobs(sweep: Sweep) -> None:
    """Raise for arms that cannot be run, as far as that is known before a corpus is cut."""
    if sweep.data is None:
        check_distinct(sweep, {})
    else:
        plan_jobs(sweep, open_shards(sweep), {})


def build_jobs(
    sweep: Sweep, shards: Mapping[int, Shards], task_data: Mapping[str, str]
) -> list[Job]:
    """Return every run that is asked for, once, in the order of work, and write the plan files."""
    jobs, entries = plan_jobs(sweep, shards, task_data)
    for trial in sweep.trials:
        if entries[trial.name]:  # a trial may have none of the arms that are asked for
            scored = [task for task in sweep.tasks_of(trial) if task in task_data]
            update_plan_file(sweep, trial, entries[trial.name], scored)
    return jobs


def plan_jobs(
    sweep: Sweep, shards: Mapping[int, Shards], task_data: Mapping[str, str]
) -> tuple[list[Job], dict[str, list[dict[str, Any]]]]:
    """Return every run that is asked for, once, and the entries of the plan file of each trial."""
    jobs: dict[Path, Job] = {}
    entries: dict[str, list[dict[str, Any]]] = {trial.name: [] for trial in sweep.trials}
    sizes = {length: rows.manifest.vocab_size for length, rows in shards.items()}
    check_distinct(sweep, sizes)
    for seed, trial, arm in sweep.runs():
        planned = plan_stages(
            trial, arm, sweep.scale, budget=sweep.budget, seed=seed, vocabularies=sizes
        )
        stages = tuple(place_stages(planned, sweep.output_dir, shards))
        tasks = {task: task_data[task] for task in sweep.tasks_of(trial) if task in task_data}
        job = Job(
            label=f"{trial.name}/{arm.name}, seed {seed}",
            stages=stages,
            scorings=tuple(build_scorings(tasks, sweep.scale.evaluation, stages[-1].folder)),
        )
        entries[trial.name].append(plan_entry(arm, seed, planned, job, shards, sweep.output_dir))
        jobs[job.folder] = join(jobs.get(job.folder), job)
    return list(jobs.values()), entries


def join(earlier: Job | None, job: Job) -> Job:
    """Return one job for arms of two trials that are the same run."""
    if earlier is None:
        return job
    return Job(
        label=f"{earlier.label} and {job.label}",
        stages=job.stages,
        scorings=tuple(dict.fromkeys(earlier.scorings + job.scorings)),
    )


def check_distinct(sweep: Sweep, vocabularies: Vocabularies) -> None:
    """Raise where two arms of a trial are one run: two rows with its numbers would mislead."""
    names: dict[str, str] = {}
    for trial, arm in sweep.arms_to_run():
        planned = plan_stages(
            trial, arm, sweep.scale, budget=sweep.budget, seed=0, vocabularies=vocabularies
        )
        key = fingerprint([trial.name, *(stage.identity() for stage in planned)])
        other = names.setdefault(key, arm.name)
        if other != arm.name:
            raise UserError(
                f"--budget {sweep.budget}: too small to tell {other} from {arm.name}, which "
                "takes as many steps; ask for more, or choose one of them with --arms"
            )


def place_stages(
    stages: Sequence[PlannedStage], output_dir: Path, shards: Mapping[int, Shards]
) -> Iterator[StageRun]:
    """Yield each stage with the folder that its settings, data and earlier stages give it."""
    key = ""
    for stage in stages:
        rows = shards[stage.recipe.data.length]
        check_size(rows, stage.recipe.training.batch_size)
        key = fingerprint([stage.identity(), rows.fingerprint, key])
        folder = output_dir / RUNS / f"{stage.name}-{key[:12]}"
        atomic.check_links(folder, inside=output_dir)
        yield StageRun(folder=folder, recipe=stage.recipe, data=rows.folder)


# ---- plan files ----------------------------------------------------------------------------------


def plan_entry(
    arm: Arm,
    seed: int,
    planned: Sequence[PlannedStage],
    job: Job,
    shards: Mapping[int, Shards],
    output_dir: Path,
) -> dict[str, Any]:
    """Return what the plan file says of one arm and seed."""
    runs = []
    for stage, run in zip(planned, job.stages, strict=True):
        corpus = describe_corpus(shards[stage.recipe.data.length])
        runs.append(plan_run(stage, str(run.folder.relative_to(output_dir)), corpus))
    tasks = {}
    for scoring in job.scorings:
        folder = str(scoring.folder.relative_to(output_dir))
        tasks[scoring.task] = {"folder": folder, "seeds": scoring.seeds}
    return {"arm": arm.name, "seed": seed, "runs": runs, "tasks": tasks}


def plan_run(stage: PlannedStage, folder: str, corpus: dict[str, Any]) -> dict[str, Any]:
    """Return what the plan file says of one pre-training run."""
    return {
        "folder": folder,
        "steps": stage.steps,
        "tokens_per_step": stage.tokens_per_step,
        "flops_per_step": stage.flops_per_step,
        "official_flops_per_step": stage.official_flops_per_step,
        "corpus": corpus,
    }
