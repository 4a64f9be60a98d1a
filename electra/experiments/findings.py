"""What was run so far, read back from the folder that `sweep` fills. No torch: a report is made on
any machine.

OUTPUT/data/NAME/                   shards, cut once for each vocabulary and length
OUTPUT/runs/RECIPE-FINGERPRINT/     one pre-training, a run folder as `electra pretrain` writes it,
shared by every
                                    trial with an arm of the same settings; its checkpoints go when
                                    it is finished
OUTPUT/runs/…/tasks/TASK-…/         a fine-tuning of its network, as `electra finetune` writes it,
without models OUTPUT/TRIAL-SCALE-BUDGET.json      what was asked for: each arm and seed, and the
run folders it consists of
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from electra.config import SettingError, UserError, build
from electra.experiments.plan import Scale, Trial, built_scale, built_trial
from electra.files import read_json_object_or_empty, read_toml
from electra.runs import journal

FORMAT = 2
LAST_SECOND = 2**33  # of what a clock may say, in the year 2242
RUNS = "runs"
CONFIG, STATUS, ENVIRONMENT, METRICS, RESULTS = (
    "config.toml",
    "status.json",
    "environment.json",
    "metrics.jsonl",
    "results.json",
)  # of run folders
CONCURRENCY = "concurrency.json"  # in a run folder: how many runs shared the machine
OLD_CONCURRENCY = "company.json"  # what earlier versions wrote instead


@dataclass(frozen=True, kw_only=True)
class Score:
    """A task's result on one pre-trained network."""

    task: str
    metric: str
    values: tuple[float, ...]  # one for each fine-tuning seed; shares, not points
    baseline: float

    def __post_init__(self) -> None:
        if not self.values:
            raise SettingError("values", "must hold a score for each fine-tuning seed", self)

    @property
    def value(self) -> float:
        return statistics.median(self.values)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One arm with one seed, as far as it has come. Sums go over its stages."""

    arm: str
    seed: int
    runs: tuple[Path, ...]
    done: bool  # pre-trained and scored on every task that was asked for
    steps: int  # taken
    wanted: int
    before: int = 0  # of the wanted ones, those of the stages before the last
    tokens: int
    minutes: float  # of training, evaluation on held-out rows and checkpoints left out
    operations: float  # by the standard convention
    official: float  # by the official script's
    journal: list[dict[str, Any]] = field(
        default_factory=list
    )  # metrics.jsonl of the stages in a row; steps, tokens,
    #                                               `operations` and `minutes` of each entry counted
    # over stages
    scores: list[Score] = field(default_factory=list)
    made: dict[str, Any] = field(default_factory=dict)  # recipe, commit, versions, hardware, date


@dataclass(frozen=True, kw_only=True)
class Findings:
    """A trial at one scale and budget."""

    trial: Trial
    scale: Scale
    budget: str  # "1/256"
    tasks: tuple[str, ...]
    corpus: dict[str, Any]  # tokens, rows, vocabulary, length
    found: list[Finding]


@dataclass(frozen=True, kw_only=True)
class Filed:
    """A plan file. Trial and scale stand in it as they were, whatever becomes of ours."""

    trial: dict[str, Any]
    scale: dict[str, Any]
    budget: str
    schedule: str
    tasks: list[str]
    corpus: dict[str, Any]
    entries: list[dict[str, Any]]
    format: int = FORMAT


@dataclass(frozen=True, kw_only=True)
class FiledRun:
    """One pre-training of an entry, its folder below that of the plan file."""

    folder: str
    steps: int
    operations_of_step: float
    official_of_step: float
    tokens_of_step: float = 0.0
    corpus: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FiledTask:
    """One fine-tuning of an entry's last network."""

    folder: str
    seeds: int


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One arm and seed, as a plan file has it."""

    arm: str
    seed: int
    runs: list[FiledRun]
    tasks: dict[str, FiledTask]


def collect(output_dir: str | Path, names: Sequence[str] = ()) -> list[Findings]:
    """Everything that was begun in this folder, or what of it belongs to these trials."""
    folder = Path(output_dir)
    found = [
        (path, values)
        for path in sorted(folder.glob("*.json"))
        if "entries" in (values := read_json_object_or_empty(path))
    ]
    for path, values in found:
        if missing := [each.name for each in fields(Filed) if each.name not in values]:
            raise UserError(
                f"{path}: a plan without {missing[0]!r}; remove it and run the trial again, which "
                "goes on "
                "where it was"
            )
    if not found:
        raise UserError(
            f"{folder}: no trial was run here; begin with `electra trials run NAME --output-dir "
            f"{folder}`"
        )
    several = [gathered(values, path) for path, values in found]
    return [findings for findings in several if not names or findings.trial.name in names]


def gathered(values: dict[str, Any], path: Path) -> Findings:
    if values.get("format") != FORMAT:
        raise UserError(
            f"{path}: plan of format {values.get('format')!r}, this version reads {FORMAT}; run "
            "the trial "
            "again, which goes on where it was"
        )
    filed = build(Filed, values, source=str(path))
    trial = built_trial(filed.trial, source=str(path))
    known = {arm.name for arm in trial.arms}
    entries = [build(Entry, each, source=str(path), prefix="entries.") for each in filed.entries]
    return Findings(
        trial=trial,
        scale=built_scale(filed.scale, source=str(path)),
        budget=filed.budget,
        tasks=tuple(filed.tasks),
        corpus=filed.corpus,
        found=[finding(entry, path.parent) for entry in entries if entry.arm in known],
    )


def finding(entry: Entry, output_dir: Path) -> Finding:
    """One arm and seed, its stages added up."""
    story: list[dict[str, Any]] = []
    steps, tokens, minutes, operations, official, whole = 0, 0, 0.0, 0.0, 0.0, True
    runs = tuple(output_dir / run.folder for run in entry.runs)
    for run, folder in zip(entry.runs, runs, strict=True):
        entries = with_minutes(journal.read(folder / METRICS))
        taken = max((each["step"] for each in entries), default=0)
        for each in entries:
            story.append(
                each
                | {
                    "step": steps + each["step"],
                    "minutes": minutes + each["minutes"],
                    "tokens_seen": tokens + each["tokens_seen"],
                    "operations": operations + each["step"] * run.operations_of_step,
                }
            )
        steps, tokens = steps + taken, story[-1]["tokens_seen"] if story else 0
        minutes = story[-1]["minutes"] if story else 0.0
        operations += taken * run.operations_of_step
        official += taken * run.official_of_step
        whole &= is_finished(folder, run.steps)
    scores = [
        score
        for task, how in entry.tasks.items()
        if (score := scored(task, output_dir / how.folder))
    ]
    enough = [score for score in scores if len(score.values) >= entry.tasks[score.task].seeds]
    return Finding(
        arm=entry.arm,
        seed=entry.seed,
        runs=runs,
        steps=steps,
        done=whole and len(enough) == len(entry.tasks),
        wanted=sum(run.steps for run in entry.runs),
        before=sum(run.steps for run in entry.runs[:-1]),
        tokens=tokens,
        minutes=minutes,
        operations=operations,
        official=official,
        journal=story,
        scores=scores,
        made=provenance(runs),
    )


def with_minutes(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each entry with the minutes and tokens of training up to it, however often the run was
    stopped: a window of the journal says how many tokens it had and how fast they went.
    """
    minutes, tokens, timed = 0.0, 0, []
    for each in entries:
        if each.get("tokens_per_second") and each.get("tokens_seen"):
            minutes += (each["tokens_seen"] - tokens) / each["tokens_per_second"] / 60
            tokens = each["tokens_seen"]
        timed.append({**each, "minutes": minutes, "tokens_seen": tokens})
    return timed


def is_finished(run: Path, steps: int) -> bool:
    """Trained to the end, and its networks written."""
    status = read_json_object_or_empty(run / STATUS)
    return status.get("status") == "finished" and status.get("step") == steps


def scored(task: str, folder: Path) -> Score | None:
    """What fine-tuning came to; None while it is not done."""
    result = read_json_object_or_empty(folder / RESULTS)
    if not result.get("runs"):
        return None
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
            "run the "
            "trial again"
        ) from None


def provenance(runs: Sequence[Path]) -> dict[str, Any]:
    """How the last stage was made, and the recipes of those before it."""
    begun = [run for run in runs if (run / CONFIG).is_file()]
    if not begun:
        return {}
    recipes = [read_toml(run / CONFIG) for run in begun]
    environment = read_json_object_or_empty(begun[-1] / ENVIRONMENT)
    finished = read_json_object_or_empty(begun[-1] / STATUS).get("time")
    is_time = isinstance(finished, (int, float)) and 0 < finished < LAST_SECOND
    packages, gpus = environment.get("packages"), environment.get("gpus")
    concurrency = read_concurrency(begun[-1])
    return {
        "recipe": recipes[-1],
        "earlier_recipes": recipes[:-1],
        "commit": environment.get("commit"),
        "versions": {
            "electra": environment.get("electra"),
            "python": environment.get("python"),
            **(packages if isinstance(packages, dict) else {}),
        },
        "hardware": ", ".join(map(str, gpus if isinstance(gpus, list) else ()))
        or (f"CPU, {environment.get('threads')} threads, {environment.get('platform')}"),
        "date": time.strftime("%Y-%m-%d", time.gmtime(finished)) if is_time else None,
        "concurrency": concurrency,
    }


def read_concurrency(run: Path) -> int | None:
    """Return how many runs shared the machine with this one; None where the file is corrupt or
    missing.
    """
    if (run / OLD_CONCURRENCY).exists():
        raise UserError(
            f"{run / OLD_CONCURRENCY}: written by an earlier version; this version reads "
            f'{CONCURRENCY}, with "concurrency" for "at_once"; rename the file and the key'
        )
    concurrency = read_json_object_or_empty(run / CONCURRENCY).get("concurrency")
    if isinstance(concurrency, int):
        return concurrency
    return None
