"""What was run so far, read back from the folder of a sweep. No torch: a report can be made on any
machine.

OUTPUT/data/NAME/                 shards, cut once for each vocabulary and length
OUTPUT/runs/RECIPE-FINGERPRINT/   one pre-training run, a run folder as `electra pretrain` writes
                                  it, shared by all trials with an arm of the same settings; its
                                  checkpoints are removed when it is finished
OUTPUT/runs/…/tasks/TASK-…/       a fine-tuning of its network, as `electra finetune` writes it,
                                  without models
OUTPUT/TRIAL-SCALE-BUDGET.json    the plan file: each arm and seed, and its run folders
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from electra.config import SettingError, UserError, build, convert
from electra.experiments.plan import Scale, Trial, build_scale, build_trial
from electra.experiments.plan_file import PlanEntry, PlanFile, PlannedRun, check_format
from electra.files import check_inside, read_json_object_or_empty, read_toml
from electra.runs import journal
from electra.runs.run_dir import CONFIG, ENVIRONMENT, METRICS, STATUS

RUNS, RESULTS = "runs", "results.json"
CONCURRENCY = "concurrency.json"  # in a run folder: how many runs shared the machine
OLD_CONCURRENCY = "company.json"  # what earlier versions wrote instead
CORPUS_COUNTS = ("tokens", "rows", "vocabulary", "length")
MAX_TIME = 2**33  # seconds since 1970 that a date can be made of: the year 2242


@dataclass(frozen=True, kw_only=True)
class Score:
    """A task's result on one pre-trained network."""

    task: str
    metric: str
    values: tuple[float, ...]  # one for each fine-tuning seed; from 0 to 1, not points
    baseline: float

    def __post_init__(self) -> None:
        if not self.values:
            raise SettingError("values", "must hold a score for each fine-tuning seed", self)

    @property
    def value(self) -> float:
        return statistics.median(self.values)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One arm with one seed, as far as it was run. Sums go over its stages."""

    arm: str
    seed: int
    runs: tuple[Path, ...]
    done: bool  # pre-trained and scored on every task that was asked for
    steps: int  # taken
    max_steps: int
    earlier_steps: int = 0  # of max_steps, those of the stages before the last
    tokens: int
    minutes: float  # of training, without evaluation on held-out rows and checkpoints
    flops: float  # by the standard convention
    official_flops: float  # by the official script's
    # metrics.jsonl of the stages in a row. Steps, tokens, FLOPs and minutes are summed over stages.
    journal: list[dict[str, Any]] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    # recipe, earlier_recipes, commit, versions, hardware, date, concurrency
    provenance: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Findings:
    """A trial at one scale and budget."""

    trial: Trial
    scale: Scale
    budget: str  # "1/256"
    tasks: tuple[str, ...]
    corpus: dict[str, Any]  # tokens, rows, vocabulary, length
    results: list[Finding]


def collect(output_dir: str | Path, names: Sequence[str] = ()) -> list[Findings]:
    """Return the findings of every trial in the folder of a sweep, or of the trials named."""
    folder = Path(output_dir)
    plans = {path: read_json_object_or_empty(path) for path in sorted(folder.glob("*.json"))}
    plans = {path: plan for path, plan in plans.items() if "entries" in plan}
    for path, plan in plans.items():
        check_complete(path, plan)
    if not plans:
        raise UserError(
            f"{folder}: no trial was run here; begin with `electra trials run NAME --output-dir "
            f"{folder}`"
        )
    every_trial = [read_plan(plan, path) for path, plan in plans.items()]
    return [findings for findings in every_trial if not names or findings.trial.name in names]


def check_complete(path: Path, plan: Mapping[str, Any]) -> None:
    """Raise for a plan file that lacks a key."""
    for key in fields(PlanFile):
        if key.name not in plan:
            raise UserError(
                f"{path}: a plan without {key.name!r}; remove it and run the trial again, which "
                "continues where it was"
            )


def check_corpus(corpus: Mapping[str, Any], *, source: str, key: str) -> None:
    """Raise for counts of a corpus that are no whole numbers, or too large to compute with."""
    for name in CORPUS_COUNTS:
        convert(corpus.get(name), int | None, source=source, key=f"{key}.{name}")


def read_plan(values: dict[str, Any], path: Path) -> Findings:
    """Return the findings of one plan file."""
    check_format(path, values)
    plan = build(PlanFile, values, source=str(path))
    check_corpus(plan.corpus, source=str(path), key="corpus")
    trial = build_trial(plan.trial, source=str(path))
    known = {arm.name for arm in trial.arms}
    entries = [
        build(PlanEntry, entry, source=str(path), prefix="entries.") for entry in plan.entries
    ]
    return Findings(
        trial=trial,
        scale=build_scale(plan.scale, source=str(path)),
        budget=plan.budget,
        tasks=tuple(plan.tasks),
        corpus=plan.corpus,
        results=[read_finding(entry, path) for entry in entries if entry.arm in known],
    )


def read_finding(entry: PlanEntry, plan: Path) -> Finding:
    """Return the finding of one arm and seed, its stages added up."""
    check_folders(entry, plan)
    totals, output_dir = Totals(), plan.parent
    folders = tuple(output_dir / run.folder for run in entry.runs)
    for run, folder in zip(entry.runs, folders, strict=True):
        totals.add(run, with_minutes(journal.read_metrics(folder / METRICS)))
    scores, is_scored = [], True
    for task, planned in entry.tasks.items():
        score = read_score(task, output_dir / planned.folder)
        if score is not None:
            scores.append(score)
        is_scored &= score is not None and len(score.values) >= planned.seeds
    stages = list(zip(folders, entry.runs, strict=True))
    is_trained = all(is_finished(folder, run.steps) for folder, run in stages)
    return Finding(
        arm=entry.arm,
        seed=entry.seed,
        runs=folders,
        done=is_trained and is_scored,
        steps=totals.steps,
        max_steps=sum(run.steps for run in entry.runs),
        earlier_steps=sum(run.steps for run in entry.runs[:-1]),
        tokens=totals.tokens,
        minutes=totals.minutes,
        flops=totals.flops,
        official_flops=totals.official_flops,
        journal=totals.journal,
        scores=scores,
        provenance=read_provenance(folders),
    )


def check_folders(entry: PlanEntry, plan: Path) -> None:
    """Raise for an entry with folders outside of the plan file's."""
    folders = [run.folder for run in entry.runs] + [task.folder for task in entry.tasks.values()]
    for folder in folders:
        check_inside(folder, source=plan, key="entries.folder")


@dataclass
class Totals:
    """Sums over the stages of an arm, and their journals in a row."""

    steps: int = 0
    tokens: int = 0
    minutes: float = 0.0
    flops: float = 0.0
    official_flops: float = 0.0
    journal: list[dict[str, Any]] = field(default_factory=list)

    def add(self, run: PlannedRun, entries: Sequence[Mapping[str, Any]]) -> None:
        """Add a stage with the entries of its journal."""
        steps = max((entry["step"] for entry in entries), default=0)
        for entry in entries:
            sums = {
                "step": self.steps + entry["step"],
                "minutes": self.minutes + entry["minutes"],
                "tokens_seen": self.tokens + entry["tokens_seen"],
                "flops": self.flops + entry["step"] * run.flops_per_step,
            }
            self.journal.append({**entry, **sums})
        self.steps += steps
        if self.journal:
            self.tokens = self.journal[-1]["tokens_seen"]
            self.minutes = self.journal[-1]["minutes"]
        self.flops += steps * run.flops_per_step
        self.official_flops += steps * run.official_flops_per_step


def with_minutes(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries of a journal with the minutes and tokens of training up to each.

    A window of the journal says how many tokens it had and at what speed, so that the time between
    a stop and a resume does not count.
    """
    minutes, tokens, timed = 0.0, 0, []
    for entry in entries:
        if entry.get("tokens_per_second") and entry.get("tokens_seen"):
            minutes += (entry["tokens_seen"] - tokens) / entry["tokens_per_second"] / 60
            tokens = entry["tokens_seen"]
        timed.append({**entry, "minutes": minutes, "tokens_seen": tokens})
    return timed


# ---- run folders ---------------------------------------------------------------------------------


def is_finished(run: Path, steps: int) -> bool:
    """Return whether a run trained to its end and wrote its networks."""
    status = read_json_object_or_empty(run / STATUS)
    return status.get("status") == "finished" and status.get("step") == steps


def read_score(task: str, folder: Path) -> Score | None:
    """Return the result of a fine-tuning; None while it is not done."""
    result = read_json_object_or_empty(folder / RESULTS)
    if not result.get("runs"):
        return None
    if "trivial" in result:
        raise UserError(
            f"{folder / RESULTS}: written by an earlier version of electra: its key trivial is now "
            "called baseline; remove the folder and run the trial again"
        )
    try:
        return Score(
            task=task,
            metric=str(result["metric"]),
            baseline=float(result["baseline"]),
            values=tuple(float(run["score"]) for run in result["runs"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UserError(
            f"{folder / RESULTS}: not a result of fine-tuning ({error!r}); remove the folder and "
            "run the trial again"
        ) from None


def read_provenance(runs: Sequence[Path]) -> dict[str, Any]:
    """Return how the last stage was made, and the recipes of those before it."""
    started = [run for run in runs if (run / CONFIG).is_file()]
    if not started:
        return {}
    last = started[-1]
    *earlier_recipes, recipe = [read_toml(run / CONFIG) for run in started]
    environment = read_json_object_or_empty(last / ENVIRONMENT)
    return {
        "recipe": recipe,
        "earlier_recipes": earlier_recipes,
        "commit": environment.get("commit"),
        "versions": versions(environment),
        "hardware": hardware(environment),
        "date": as_date(read_json_object_or_empty(last / STATUS).get("time")),
        "concurrency": read_concurrency(last),
    }


def versions(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the versions of this package, of Python and of the packages they use."""
    named = {key: environment.get(key) for key in ("electra", "python")}
    packages = environment.get("packages")
    if isinstance(packages, dict):
        named |= packages
    return named


def hardware(environment: Mapping[str, Any]) -> str:
    """Return the names of the GPUs, or a description of the CPU."""
    gpus = environment.get("gpus")
    if isinstance(gpus, list) and gpus:
        return ", ".join(map(str, gpus))
    return f"CPU, {environment.get('threads')} threads, {environment.get('platform')}"


def as_date(seconds: Any) -> str | None:
    """Return the date of a time stamp; None for anything else."""
    if not isinstance(seconds, (int, float)) or not 0 < seconds < MAX_TIME:
        return None
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))


def read_concurrency(run: Path) -> int | None:
    """Return how many runs shared the machine with a run; None where the file is corrupt."""
    if (run / OLD_CONCURRENCY).exists():
        raise UserError(
            f"{run / OLD_CONCURRENCY}: written by an earlier version; this version reads "
            f'{CONCURRENCY}, with "concurrency" for "at_once"; rename the file and the key'
        )
    concurrency = read_json_object_or_empty(run / CONCURRENCY).get("concurrency")
    if isinstance(concurrency, int):
        return concurrency
    return None
