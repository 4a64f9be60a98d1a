"""A sweep: the trials, arms and tasks that its options name, looked up and checked. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from electra.config import UserError, suggest
from electra.data.sources import check_outside_corpus
from electra.experiments.arms import at_scale
from electra.experiments.options import SMOKE, SweepOptions
from electra.experiments.plan import Arm, Scale, Trial, load_scale, load_trial, trial_names
from electra.pretraining.budget import parse_budget


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Trials with all that their runs depend on: the options with every name looked up."""

    trials: Sequence[Trial]
    scale: Scale
    budget: Fraction
    output_dir: Path
    corpus: Sequence[str] | None = None
    data: Path | None = None
    task_folders: Mapping[str, str] = field(default_factory=dict)  # "glue" or "squad" → folder
    seeds: int = 1
    seed: int = 0  # the first
    tasks: tuple[str, ...] = ()  # none: the trial's and the scale's
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
        check_outside_corpus(self.output_dir, self.corpus or ())

    def runs(self) -> Iterator[tuple[int, Trial, Arm]]:
        """Yield seed, trial and arm of every run.

        Each arm comes once with the first seed, then with the next, so that a sweep that is stopped
        has something of everything.
        """
        for seed in range(self.seed, self.seed + self.seeds):
            for trial, arm in self.arms_to_run():
                yield seed, trial, arm

    def arms_to_run(self) -> list[tuple[Trial, Arm]]:
        """Return the arms that are asked for, each with its trial."""
        return [(trial, arm) for trial in self.trials for arm in trial.runnable_arms(self.arms)]

    def tasks_of(self, trial: Trial) -> tuple[str, ...]:
        """Return the tasks that a trial's arms are scored on, where there is data for them."""
        return self.tasks or (*(trial.tasks or self.scale.evaluation.tasks), *trial.more_tasks)


def resolve_sweep(names: Sequence[str], options: SweepOptions) -> Sweep:
    """Look up what the options name: trials (or all), arms, tasks, scale and budget."""
    if not names:
        raise UserError("name at least one trial, or all; `electra trials list` shows them")
    scale_name, budget = options.scale or "paper", options.budget
    if budget == SMOKE:
        scale_name, budget = SMOKE, "1"
    if "all" in names:
        names = [*trial_names(), *(name for name in names if name != "all")]
    trials = load_trials(dict.fromkeys(names))
    arms = tuple(options.arms or ())
    check_arms(arms, trials)
    scale = load_scale(scale_name)
    return Sweep(
        trials=[at_scale(trial, scale) for trial in trials],
        scale=scale,
        budget=parse_budget(budget),
        output_dir=options.output_dir,
        corpus=options.corpus,
        data=options.data,
        task_folders=task_folders(options),
        seeds=options.seeds,
        seed=options.seed,
        tasks=expand_tasks(options.tasks or ()),
        arms=arms,
    )


def load_trials(names: Iterable[str]) -> list[Trial]:
    """Load trials; raise for two files of one name, which would share a table."""
    trials: dict[str, Trial] = {}
    for name in names:
        trial = load_trial(name)
        if trial.name in trials:
            raise UserError(f"{name}: another trial is called {trial.name}, too; rename the file")
        trials[trial.name] = trial
    return list(trials.values())


def check_arms(names: Sequence[str], trials: Sequence[Trial]) -> None:
    """Raise for a name that is no arm of these trials, or one that cannot be run."""
    every_arm = [arm for trial in trials for arm in trial.arms]
    runnable = list(dict.fromkeys(arm.name for arm in every_arm if arm.stages))
    published = [arm.name for arm in every_arm if not arm.stages]
    for name in names:
        if name in runnable:
            continue
        if name in published:
            raise UserError(
                f"--arms {name}: a published row, not ours to run; those are {', '.join(runnable)}"
            )
        hint = suggest(name, runnable) or f"; there are {', '.join(runnable)}"
        raise UserError(f"--arms {name}: unknown{hint}")


# ---- tasks ---------------------------------------------------------------------------------------


def task_folders(options: SweepOptions) -> dict[str, str]:
    """Return the folders of task data that were given, by source."""
    folders = {"glue": options.glue, "squad": options.squad}
    return {source: folder for source, folder in folders.items() if folder is not None}


def expand_tasks(names: Sequence[str]) -> tuple[str, ...]:
    """Return the tasks of these names, each once: glue stands for its nine tasks."""
    tasks = [task for name in names for task in expand_task(name)]
    return tuple(dict.fromkeys(tasks))


def expand_task(name: str) -> Sequence[str]:
    """Return the official names of a task: glue/sst2 is glue/sst-2."""
    from electra.tasks.glue import GLUE, canonical_name

    if name.lower() == "glue":
        return GLUE
    if task_source(name.lower()) == "glue":
        return [canonical_name(name)]
    return [name.lower()]


def task_source(task: str) -> str:
    """Return the option that names the folder of a task's data: glue or squad."""
    if task.startswith("glue/"):
        return "glue"
    if task in ("squad-1.1", "squad-2.0"):
        return "squad"
    raise UserError(
        f"--tasks {task}: trials are scored on glue (all nine), glue/NAME, squad-1.1 and squad-2.0"
    )
