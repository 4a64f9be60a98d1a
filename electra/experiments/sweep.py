"""Run what is missing, never what is done. Killed at any moment, the same command goes on.

Every pre-training has a folder named by what decides its weights, so that arms of several trials
that are the same run are run once. A plan file for each trial says which folders its arms consist
of; `findings` reads it back.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from electra import atomic, tasks
from electra.config import UserError, flatten, suggest
from electra.data.prepare import DataConfig
from electra.data.shards import Shards
from electra.data.tables import is_hub_name
from electra.experiments.arms import at_scale
from electra.experiments.budget import SMOKE, Planned, parsed, planned
from electra.experiments.claims import claimed
from electra.experiments.findings import FORMAT, RUNS, Filed
from electra.experiments.plan import Arm, Evaluation, Scale, Trial, load_scale, load_trial, trials
from electra.files import read_json_object_or_empty
from electra.settings import fingerprint

SCHEDULE = (
    "fresh for each run: warm-up and decay over its own steps, never the beginning of a longer run"
)


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """What a user asks for, all of it checked to exist."""

    trials: Sequence[Trial]
    scale: Scale
    budget: Fraction
    output_dir: Path
    corpus: Sequence[str] | None = None
    data: Path | None = None
    folders: Mapping[str, str] = field(
        default_factory=dict
    )  # "glue" and "squad": where their data lies
    seeds: int = 1
    seed: int = 0  # the first
    tasks: tuple[str, ...] = ()  # none: as trial and scale say
    arms: tuple[str, ...] = ()  # none: all

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise UserError(f"--seeds {self.seeds}: at least one run of each arm is needed")
        if self.seed < 0:
            raise UserError(f"--seed {self.seed}: must not be negative")
        if self.corpus is not None and self.data is not None:
            raise UserError(
                "give either --corpus (text files) or --data (shards from `electra shard`), not "
                "both"
            )

        inside = [
            given
            for given in self.corpus or ()
            if Path(given).resolve() in self.output_dir.resolve().parents
        ]
        if inside:
            raise UserError(
                f"--output-dir {self.output_dir} lies inside the corpus {inside[0]} and would "
                "become part "
                f"of it; name a folder elsewhere"
            )

    def chosen(self) -> Iterator[tuple[int, Trial, Arm]]:
        """Each arm once with the first seed, then with the next: a sweep that is stopped has
        something of everything.
        """
        for seed in range(self.seed, self.seed + self.seeds):
            for trial in self.trials:
                for arm in trial.to_run(self.arms):
                    yield seed, trial, arm

    def tasks_of(self, trial: Trial) -> tuple[str, ...]:
        return self.tasks or (*(trial.tasks or self.scale.evaluation.tasks), *trial.more_tasks)


def checked(
    names: Sequence[str],
    *,
    scale: str | None,
    budget: str,
    tasks: Sequence[str],
    arms: Sequence[str],
    folders: Mapping[str, str | None],
    **more: Any,
) -> SweepOptions:
    """What the words of a command line ask for; `more` are fields of `Asked`."""
    if budget == SMOKE:
        if scale not in (None, SMOKE):
            raise UserError(
                f"--budget {SMOKE} is short for --scale {SMOKE} --budget 1; found --scale {scale} "
                "too"
            )
        scale, budget = SMOKE, "1"
    chosen = [load_trial(name) for name in (trials() if "all" in names else dict.fromkeys(names))]
    check_arms(arms, chosen)
    size = load_scale(scale or "paper")
    return SweepOptions(
        trials=[at_scale(trial, size) for trial in chosen],
        scale=size,
        budget=parsed(budget),
        arms=tuple(arms),
        tasks=tuple(dict.fromkeys(each for task in tasks for each in spelled(task))),
        folders={name: given for name, given in folders.items() if given is not None},
        **more,
    )


def spelled(task: str) -> Sequence[str]:
    """glue stands for its nine tasks, glue/sst2 for glue/sst-2."""
    from electra.tasks.glue import GLUE, canonical_name

    if task.lower() == "glue":
        return GLUE
    source_of(task.lower())
    return [canonical_name(task)] if task.lower().startswith("glue/") else [task.lower()]


def check_arms(names: Sequence[str], chosen: Sequence[Trial]) -> None:
    """Every name is an arm of one of these trials, and one that can be run."""
    ours = list(dict.fromkeys(arm.name for trial in chosen for arm in trial.to_run()))
    published = [arm.name for trial in chosen for arm in trial.arms if not arm.stages]
    for name in names:
        if name in ours:
            continue
        if name in published:
            raise UserError(
                f"--arms {name}: a published row, not ours to run; those are {', '.join(ours)}"
            )
        raise UserError(
            f"--arms {name}: unknown{suggest(name, ours) or '; there are ' + ', '.join(ours)}"
        )


@dataclass(frozen=True, kw_only=True)
class Step:
    """One pre-training of a job: what, from which shards, in which folder."""

    folder: Path
    recipe: Any  # a Recipe
    data: Path


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """One task of a job."""

    task: str
    data: str
    folder: Path
    seeds: int
    recipe: str
    flags: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Job:
    """Stages in a row, and what their last network is scored on."""

    label: str
    steps: tuple[Step, ...]
    scorings: tuple[Scoring, ...]


# ---- what an arm is scored on --------------------------------------------------------------------


def scorable(asked: SweepOptions) -> tuple[dict[str, str], list[str]]:
    """The tasks whose data is there, with where it lies; and what is to be said of the others."""
    for source, folder in asked.folders.items():
        if not Path(folder).is_dir() and not is_hub_name(folder):
            raise UserError(f"--{source} {folder}: no such folder, nor a data set on the hub")
    found: dict[str, str] = {}
    missing: dict[str, str] = {}
    for task in dict.fromkeys(task for trial in asked.trials for task in asked.tasks_of(trial)):
        source = source_of(task)
        if source not in asked.folders:
            missing[task] = f"no --{source}"
        elif not is_there(task, asked.folders[source]):
            missing[task] = f"no files of it in {asked.folders[source]}"
        else:
            found[task] = asked.folders[source]
    if refused := [task for task in asked.tasks if task in missing]:
        raise UserError(
            f"--tasks {refused[0]}: {missing[refused[0]]}; name the folder that holds its "
            "official files "
            f"with --{source_of(refused[0])}"
        )
    return found, [f"not scored on {task}: {why}" for task, why in missing.items()]


def source_of(task: str) -> str:
    if task.startswith("glue/"):
        return "glue"
    if task in ("squad-1.1", "squad-2.0"):
        return "squad"
    raise UserError(
        f"--tasks {task}: trials are scored on glue (all nine), glue/NAME, squad-1.1 and squad-2.0"
    )


def is_there(task: str, folder: str) -> bool:
    if task.startswith("glue/"):
        from electra.tasks.glue import available_tasks

        return task in available_tasks(folder)[0]
    try:
        files = tasks.find_task(task).locate(folder)
    except UserError:
        return False
    return bool(files.train and files.dev)


def scoring(task: str, data: str, how: Evaluation, run: Path) -> Scoring:
    """How a task is fine-tuned at a scale; the folder is named by what decides the result, beside
    the seeds.
    """
    settings = how.settings | how.settings_of.get(task, {})
    flags = tuple(f"--{key.replace('_', '-')}={written(value)}" for key, value in settings.items())
    files = tasks.find_task(task).locate(data)
    key = fingerprint(
        [
            task,
            how.recipe,
            sorted(flags),
            [table.fingerprint() for table in files.train],
            {part: [table.fingerprint() for table in found] for part, found in files.dev.items()},
        ]
    )
    folder = run / "tasks" / f"{task.replace('/', '-')}-{key[:8]}"
    return Scoring(
        task=task, data=data, folder=folder, seeds=how.seeds, recipe=how.recipe, flags=flags
    )


def written(value: Any) -> str:
    return ",".join(map(written, value)) if isinstance(value, (list, tuple)) else str(value)


# ---- data ----------------------------------------------------------------------------------------


def shards_of(asked: SweepOptions, *, quiet: bool = False) -> dict[int, Shards]:
    """Shards for every length of row that the arms need, by that length; cut where they are not
    there yet.
    """
    wanted: dict[int, DataConfig] = {}
    for seed, trial, arm in asked.chosen():
        for stage in planned(trial, arm, asked.scale, budget=asked.budget, seed=seed):
            wanted[stage.recipe.data.length] = stage.recipe.data
    if asked.data is not None:
        shards = Shards.open(asked.data)
        if other := [length for length in wanted if length != shards.length]:
            raise UserError(
                f"{asked.data} holds rows of {shards.length} tokens, but these arms need rows of "
                f"{other[0]} at scale {asked.scale.name}; cut those with `electra shard --length "
                f"{other[0]}`, or give text with --corpus"
            )
        return {shards.length: shards}
    return {length: cut(asked, settings, quiet=quiet) for length, settings in wanted.items()}


def cut(asked: SweepOptions, settings: DataConfig, *, quiet: bool) -> Shards:
    from electra.console import progress_bars
    from electra.data.prepare import prepare_data

    assert asked.corpus is not None
    folder = asked.output_dir / "data" / f"{settings.vocab_size}x{settings.length}"
    with alone(folder, quiet=quiet), progress_bars(quiet=quiet) as (stage, report):
        return Shards.open(prepare_data(asked.corpus, folder, settings, stage=stage, report=report))


@contextmanager
def alone(place: Path, *, quiet: bool) -> Iterator[None]:
    """Nobody else cuts these shards or changes this plan meanwhile; Ctrl-C ends the waiting."""

    def say(text: str) -> None:
        if not quiet:
            print(text, file=sys.stderr)

    with claimed(place, interrupted=lambda: False, say=say):
        yield


def check_enough(shards: Shards, batch_size: int) -> None:
    """What every arm would otherwise fail of, one after the other."""
    rows, held_out = shards.manifest.rows, shards.manifest.held_out_rows
    if rows < batch_size:
        raise UserError(
            f"{shards.folder} holds {rows} rows for training, fewer than one batch of "
            f"{batch_size}; add "
            "text, or choose a smaller --scale"
        )
    if not held_out:
        raise UserError(
            f"{shards.folder} has no held-out rows to measure progress on; separate documents by "
            "blank "
            "lines, or cut it with a larger `electra shard --held-out` share"
        )


def corpus_facts(shards: Shards) -> dict[str, Any]:
    manifest = shards.manifest
    return {
        "fingerprint": shards.fingerprint,
        "tokens": manifest.tokens,
        "rows": manifest.rows,
        "held_out_rows": manifest.held_out_rows,
        "documents": manifest.documents,
        "vocabulary": manifest.vocab_size,
        "length": manifest.length,
    }


# ---- jobs ----------------------------------------------------------------------------------------


def arranged(
    asked: SweepOptions, shards: Mapping[int, Shards], data: Mapping[str, str]
) -> list[Job]:
    """Every run that is asked for, once, in the order of work; plan files are written on the way."""
    sizes = {length: each.manifest.vocab_size for length, each in shards.items()}
    jobs: dict[Path, Job] = {}
    plans: dict[str, list[dict[str, Any]]] = {trial.name: [] for trial in asked.trials}
    for seed, trial, arm in asked.chosen():
        stages = planned(
            trial, arm, asked.scale, budget=asked.budget, seed=seed, vocabularies=sizes
        )
        steps = tuple(placed(stages, asked.output_dir, shards))
        last = steps[-1].folder
        scorings = tuple(
            scoring(task, data[task], asked.scale.evaluation, last)
            for task in asked.tasks_of(trial)
            if task in data
        )
        earlier = jobs.get(last)
        label = f"{trial.name}/{arm.name}, seed {seed}"
        check_alone(arm, last, plans[trial.name], asked)
        if earlier is not None:
            label, scorings = (
                f"{earlier.label} and {label}",
                tuple(dict.fromkeys(earlier.scorings + scorings)),
            )
        jobs[last] = Job(label=label, steps=steps, scorings=scorings)
        plans[trial.name].append(
            entry(arm, seed, stages, steps, scorings, shards, asked.output_dir)
        )
    for trial in asked.trials:
        if plans[trial.name]:  # none of the arms asked for may be this one's
            file(asked, trial, plans[trial.name], data)
    return list(jobs.values())


def check_alone(
    arm: Arm, folder: Path, before: Sequence[Mapping[str, Any]], asked: SweepOptions
) -> None:
    """Two rows of one table with the numbers of one run would look like a finding."""
    for each in before:
        if each["arm"] != arm.name and asked.output_dir / each["runs"][-1]["folder"] == folder:
            raise UserError(
                f"--budget {asked.budget}: too small to tell {each['arm']} from {arm.name}, which "
                "takes as "
                "many steps; ask for more, or choose one of them with --arms"
            )


def placed(
    stages: Sequence[Planned], output_dir: Path, shards: Mapping[int, Shards]
) -> Iterator[Step]:
    """Each stage in the folder that its settings, its data and the stage before it give it."""
    before = ""
    for stage in stages:
        rows = shards[stage.recipe.data.length]
        check_enough(rows, stage.recipe.training.batch_size)
        before = fingerprint([stage.identity(), rows.fingerprint, before])
        yield Step(
            folder=output_dir / RUNS / f"{stage.name}-{before[:12]}",
            recipe=stage.recipe,
            data=rows.folder,
        )


def entry(
    arm: Arm,
    seed: int,
    stages: Sequence[Planned],
    steps: Sequence[Step],
    scorings: Sequence[Scoring],
    shards: Mapping[int, Shards],
    output_dir: Path,
) -> dict[str, Any]:
    """What the plan file says of one arm and seed."""
    return {
        "arm": arm.name,
        "seed": seed,
        "runs": [
            {
                "folder": str(step.folder.relative_to(output_dir)),
                "steps": stage.steps,
                "tokens_of_step": stage.tokens_of_step,
                "operations_of_step": stage.operations_of_step,
                "official_of_step": stage.official_of_step,
                "corpus": corpus_facts(shards[stage.recipe.data.length]),
            }
            for stage, step in zip(stages, steps, strict=True)
        ],
        "tasks": {
            each.task: {"folder": str(each.folder.relative_to(output_dir)), "seeds": each.seeds}
            for each in scorings
        },
    }


def file(
    asked: SweepOptions, trial: Trial, entries: list[dict[str, Any]], data: Mapping[str, str]
) -> None:
    """What was asked for, with what earlier commands asked of the same trial at this scale and
    budget.
    """
    budget = str(asked.budget)
    path = asked.output_dir / f"{trial.name}-{asked.scale.name}-{budget.replace('/', '_')}.json"
    with alone(path, quiet=True):
        there = read_json_object_or_empty(path)
        if there.get("entries"):
            check_format(path, there)
            check_settings(path, there, {"trial": asdict(trial), "scale": asdict(asked.scale)})
            check_text(path, [*there["entries"], *entries])
        kept = {(each["arm"], each["seed"]): each for each in there.get("entries", ())}
        for each in entries:
            before = kept.get((each["arm"], each["seed"]), {})
            if before.get("runs") == each["runs"]:  # what it was scored on before still counts
                each["tasks"] = before["tasks"] | each["tasks"]
            kept[each["arm"], each["seed"]] = each
        check_scoring(path, list(kept.values()))
        now = [task for task in asked.tasks_of(trial) if task in data]
        atomic.write_json(
            path,
            asdict(
                Filed(
                    trial=asdict(trial),
                    scale=asdict(asked.scale),
                    budget=budget,
                    schedule=SCHEDULE,
                    tasks=list(dict.fromkeys([*there.get("tasks", ()), *now])),
                    corpus=entries[0]["runs"][0]["corpus"],
                    entries=list(kept.values()),
                )
            ),
        )


def check_format(path: Path, before: Mapping[str, Any]) -> None:
    """Refuse a plan file of an earlier version: its runs measured under other names."""
    if before.get("format") != FORMAT:
        raise UserError(
            f"{path}: plan of format {before.get('format')!r}, this version reads {FORMAT}; give "
            "another --output-dir"
        )


def check_settings(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Arms of one table are of one scale and one trial: networks, steps, and how they are scored."""
    for part, settings in now.items():
        old, new = (
            dict(flatten(json.loads(json.dumps(each)))) for each in (before.get(part, {}), settings)
        )
        if other := [key for key in {**old, **new} if old.get(key) != new.get(key)]:
            raise UserError(
                f"{path} was begun when {part} {settings['name']} had another {other[0]}, and one "
                "table "
                "would compare its arms with these; remove that file to begin the table anew "
                "(runs whose "
                "settings are the same are found again), or give another --output-dir"
            )


def check_scoring(path: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    """Arms of one table are scored alike: a scoring's folder is named by its data and settings."""
    found: dict[str, str] = {}
    for task, how in (item for entry in entries for item in entry["tasks"].items()):
        name = Path(how["folder"]).name
        if found.setdefault(task, name) != name:
            raise UserError(
                f"{path} has arms that were scored on other data of {task}, and one table would "
                "compare "
                "them with these; give the data of before, ask for all arms and seeds again with "
                "these, or "
                "give another --output-dir"
            )


def check_text(path: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    """Arms of one table read the same text: rows of each length come from one cut of it."""
    found: dict[int, str] = {}
    for corpus in (
        run["corpus"]
        for entry in entries
        for run in entry["runs"]
        if "fingerprint" in run["corpus"]
    ):
        if found.setdefault(corpus["length"], corpus["fingerprint"]) != corpus["fingerprint"]:
            raise UserError(
                f"{path} has arms that were trained on other text, and one table would compare "
                "them with "
                "these; give the text or shards of before, or another --output-dir"
            )
