"""The arms and stages of `benchmarks.record`, read from record.toml, and the steps of a run."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.harness import Result
from electra.config import SettingError, UserError, build, flatten
from electra.files import read_toml
from electra.pretraining.budget import warmup_in
from electra.pretraining.recipe import Recipe, load_recipe
from electra.settings import as_dict, fingerprint

if TYPE_CHECKING:
    from benchmarks.record_results import Record

PLAN = Path(__file__).with_name("record.toml")
FEWEST_FACTORS = 4  # eight runs, to which five numbers are fitted
# Settings that change no shape and no operation, so that runs which differ in them are as fast.
SAME_SPEED = (
    "optimizer.learning_rate",
    "optimizer.muon_learning_rate",
    "optimizer.warmup_steps",
    "optimizer.schedule",
    "optimizer.decay_ratio",
    "optimizer.weight_decay",
    "optimizer.muon_weight_decay",
    "optimizer.betas",
    "objective.discriminator_weight",
    "training.seed",
    "training.max_steps",
    "training.initial_batch_size",
    "training.batch_ramp_steps",
)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """How long the runs of a stage are, and what they are scored on."""

    name: str
    share: float  # of the minutes
    finetune_seeds: int
    evaluations: int  # held-out, during a run
    tasks: tuple[str, ...]  # a task and flags of `electra finetune`
    finetune_minutes: float = 0.0  # of one run on all tasks, estimated
    reference: str = "base"  # of arms whose own reference is not run in this stage

    @property
    def task_names(self) -> list[str]:
        return [task.split()[0] for task in self.tasks]

    def tasks_left(self, run: Result) -> list[str]:
        """Return the tasks, with their flags, that a run has no scores of."""
        return [task for task in self.tasks if task.split()[0] not in run.get("tuned", {})]


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One pre-training setting that is tried."""

    name: str
    question: str
    recipe: str = ""  # by default the plan's, with the plan's flags
    flags: str = ""  # of `electra pretrain`, after those of its reference
    data: str = ""  # the folder of its shards; by default its reference's
    # by default the plan's; an arm with its own recipe warms up as with `--budget`
    warmup_ratio: float | None = None
    initial_batch_share: float = 1.0
    ramp_ratio: float = 0.0  # of the steps, in which the batch grows
    reference: str = "base"  # the arm that it changes, and is compared with
    # the stages that it is part of, with its seeds there
    stages: dict[str, list[int]] = field(default_factory=lambda: {"screen": [0]})

    def initial_batch(self, batch_size: int) -> int:
        return round(self.initial_batch_share * batch_size)


@dataclass(frozen=True, kw_only=True)
class Factorial:
    """Changes of one arm, the factors, that are tried together: half of all their combinations,
    those of an even number. Each is in half of the runs, and any two are in a quarter.
    """

    stage: str
    reference: str  # the arm that they change, which is the run without any
    question: str
    factors: dict[str, str]  # flags of `electra pretrain`

    def __post_init__(self) -> None:
        if len(self.factors) < FEWEST_FACTORS:
            raise SettingError(
                "factors", f"must be at least {FEWEST_FACTORS}: fewer leave no run for chance", self
            )

    def combinations(self) -> dict[str, tuple[str, ...]]:
        """Return the factors of each arm, by its name; the reference has none."""
        names = {self.reference: ()}
        for count in range(2, len(self.factors) + 1, 2):
            names |= {" + ".join(each): each for each in combinations(self.factors, count)}
        return names

    def arms(self) -> Iterator[Arm]:
        """Yield the arms with factors."""
        for name, factors in self.combinations().items():
            if factors:
                yield Arm(
                    name=name,
                    question=self.question,
                    flags=" ".join(self.factors[factor] for factor in factors),
                    reference=self.reference,
                    stages={self.stage: [0]},
                )


@dataclass(frozen=True, kw_only=True)
class Tunings:
    """The settings of fine-tuning that are tried on one pre-trained model."""

    seeds: int
    tasks: tuple[str, ...]
    tunings: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What makes a plan smaller."""

    minutes: float | None = None
    max_steps: int | None = None
    flags: str = ""
    finetune_flags: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All arms and stages."""

    minutes: float
    max_parameters: int
    recipe: str
    warmup_ratio: float
    flags: str
    finetune_flags: str = ""  # of all arms of the plan's recipe; others keep the defaults
    stages: dict[str, Any]
    arms: tuple[Arm, ...]
    factorial: Factorial
    finetuning: Tunings
    scales: dict[str, Scale] = field(default_factory=dict)
    scale: Scale = Scale()

    def stage(self, name: str) -> Stage:
        values = {**self.stages[name], "name": name}
        return build(Stage, values, source=f"stages.{name}")

    def task_flags(self, task: str, *more: str) -> tuple[str, list[str]]:
        """Return the name of a task and its flags for `electra finetune`; later ones win."""
        name, *flags = shlex.split(task)
        for words in (*more, self.scale.finetune_flags):
            flags += shlex.split(words)
        return name, flags

    def minutes_of(self, stage: Stage) -> float:
        return self.minutes * stage.share

    def limit_steps(self, steps: int) -> int:
        """Return the steps of a run, fewer at a scale that has a limit."""
        return min(steps, self.scale.max_steps or steps)

    def runs(self, stage: Stage, only: Collection[str] | None = None) -> Iterator[tuple[Arm, int]]:
        """Yield the arms of a stage with each of their seeds."""
        known = [arm.name for arm in self.arms if stage.name in arm.stages]
        if only and (unknown := set(only) - set(known)):
            raise UserError(
                f"--arms {', '.join(sorted(unknown))}: not in stage {stage.name}, which has "
                f"{', '.join(known)}"
            )
        for arm in self.arms:
            if not only or arm.name in only:
                for seed in arm.stages.get(stage.name, ()):
                    yield arm, seed

    def flags_of(self, arm: Arm) -> list[str]:
        """Return the flags of an arm without those of a stage; of equal ones the last."""
        words = shlex.split(f"{arm.flags} {self.scale.flags}")
        if not arm.recipe:
            words = [*shlex.split(self.flags), *words]
        pairs = dict(zip(words[::2], words[1::2], strict=True))
        own = [word for pair in pairs.items() for word in pair]
        if arm.ramp_ratio:
            # Also when the batch has grown, a pass is no larger than the first batch.
            batch_size = load_recipe(arm.recipe or self.recipe, flags=own).training.batch_size
            own += ["--training.micro-batch-size", str(arm.initial_batch(batch_size))]
        return own

    def recipe_of(self, arm: Arm, *flags: str) -> Recipe:
        return load_recipe(arm.recipe or self.recipe, flags=[*self.flags_of(arm), *flags])


def load_plan(path: Path = PLAN, scale: str | None = None) -> Plan:
    """Read a plan, at a scale of its own where one is named."""
    plan = build(Plan, read_toml(path), source=str(path))
    arms: dict[str, Arm] = {}
    for arm in (*plan.arms, *plan.factorial.arms()):
        if arm.name in arms:
            raise UserError(f"{path}: two arms are named {arm.name}")
        if unknown := set(arm.stages) - set(plan.stages):
            raise UserError(f"{path}: arm {arm.name}: no stage {', '.join(sorted(unknown))}")
        if arm.name != Arm.reference:
            if arm.reference not in arms:
                raise UserError(f"{path}: arm {arm.name}: no arm {arm.reference} before it")
            arm = build_on_reference(arms[arm.reference], arm, source=str(path))
        arms[arm.name] = arm
    plan = replace(plan, arms=tuple(arms.values()))
    if plan.factorial.stage not in arms[plan.factorial.reference].stages:
        raise UserError(
            f"{path}: factorial.reference={plan.factorial.reference!r} is not run in stage "
            f"{plan.factorial.stage}"
        )
    if scale is None:
        return plan
    if scale not in plan.scales:
        raise UserError(f"--scale {scale}: there are {', '.join(plan.scales)}")
    smaller = plan.scales[scale]
    return replace(plan, scale=smaller, minutes=smaller.minutes or plan.minutes)


def build_on_reference(reference: Arm, arm: Arm, *, source: str) -> Arm:
    """Return an arm with the text and the flags of its reference before its own.

    A recipe of its own takes no flags of another.
    """
    data = arm.data or reference.data
    if arm.recipe:
        return replace(arm, data=data)
    if reference.recipe or reference.ramp_ratio or reference.warmup_ratio is not None:
        raise UserError(
            f"{source}: arm {arm.name}: its reference, {reference.name}, has a recipe, a warm-up "
            "or a ramp, which an arm does not take over; name another"
        )
    return replace(arm, data=data, flags=f"{reference.flags} {arm.flags}".strip())


class RunLength(NamedTuple):
    """How long a run is."""

    minutes: float
    rows_per_second: float  # measured alone
    steps: int


def length_file(run: Path) -> Path:
    return Path(f"{run}.length.json")


def speed_key(recipe: Recipe) -> str:
    """Return a key that runs share which are equally fast."""
    settings = {key: value for key, value in flatten(as_dict(recipe)) if key not in SAME_SPEED}
    return fingerprint(settings)[:12]


def steps_in(minutes: float, arm: Arm, recipe: Recipe, rows_per_second: float) -> int:
    """Return the steps that take so many minutes at this speed.

    A batch that grows is on average half as large during its ramp.
    """
    mean_batch = recipe.training.batch_size * (1 - arm.ramp_ratio / 2)
    return max(2, round(60 * minutes * rows_per_second / mean_batch))


def schedule_flags(plan: Plan, arm: Arm, stage: Stage, steps: int, recipe: Recipe) -> list[str]:
    """Return the flags of a schedule that decays within these steps."""
    ratio = plan.warmup_ratio
    if arm.warmup_ratio is not None:
        ratio = arm.warmup_ratio
    warmup_steps = round(ratio * steps)
    if arm.recipe and arm.warmup_ratio is None:
        warmup_steps = warmup_in(recipe, steps)
    every = max(1, -(-steps // stage.evaluations))
    flags = {
        "--training.max-steps": steps,
        "--optimizer.warmup-steps": warmup_steps,
        "--training.logging-steps": max(1, steps // 100),
        "--training.eval-steps": every,
        "--training.save-steps": every,
        "--training.save-total-limit": 1,
    }
    if arm.ramp_ratio:
        batch_size = recipe.training.batch_size
        initial = arm.initial_batch(batch_size)
        flags["--training.initial-batch-size"] = initial
        fewest = batch_size // initial - 1
        flags["--training.batch-ramp-steps"] = max(fewest, round(arm.ramp_ratio * steps))
    return [word for name, value in flags.items() for word in (name, str(value))]


def print_plan(
    plan: Plan,
    stage: Stage,
    record: Record,
    *,
    only: Sequence[str] | None = None,
    retry: bool = False,
) -> None:
    """Print the runs of a stage, those that are done, and the minutes of the others."""
    minutes, runs, pretrainings, tasks = plan.minutes_of(stage), 0, 0, 0
    for arm, seed in plan.runs(stage, only):
        plan.recipe_of(arm)  # refuses wrong flags before any run
        entry = record.entry(stage.name, arm.name, seed)
        left = stage.tasks_left(entry)
        if "failed" in entry and not retry:
            state = f"failed: {entry['failed']}"
        elif not left:
            state = "done"
        else:
            is_pretrained = "steps" in entry
            state = f"{minutes:.2f} min"
            if is_pretrained:
                state = f"fine-tuning on {len(left)} tasks, if its folder is still there"
            runs, pretrainings = runs + 1, pretrainings + (not is_pretrained)
            tasks += len(left)
        print(f"{arm.name}, seed {seed}: {state} ({arm.question})")
    pretraining = pretrainings * minutes
    finetuning = stage.finetune_minutes * tasks / len(stage.tasks)
    print(
        f"{runs} runs left: {pretraining:.1f} minutes of pre-training, and about {finetuning:.1f} "
        f"of fine-tuning with {stage.finetune_seeds} seeds on {', '.join(stage.task_names)}; "
        f"{pretraining + finetuning:.1f} in all"
    )
