"""Results of fine-tuning: those of one seed, their summary over seeds, the table of summaries."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from electra import atomic
from electra.config import UserError, convert
from electra.files import parse_json, read_bounded_text
from electra.tasks.class_scores import ClassScores, average_scores, class_table
from electra.tasks.metrics import LOWER_IS_BETTER, direction
from electra.tasks.models import RESULTS

if TYPE_CHECKING:
    from rich.table import Table

RESULT = "result.json"  # of one seed
FOLDS = "folds"  # the split of scores that are means over folds
PLAIN_METRICS = ("mse", "loss", "r2")  # shown as they are, not in points
Scores = dict[str, dict[str, float]]  # dev split → metric → value


@dataclass(frozen=True, kw_only=True)
class SeedResult:
    """The scores of one seed, in the form of its result.json."""

    seed: int
    score: float  # the task's metric on the first dev split
    scores: Scores
    baseline: float  # the score of the best answer that ignores the text
    degenerate: bool  # no better than a baseline that can be beaten
    diverged: bool  # training ended at a gradient that was not finite
    steps: int
    micro_batch_size: int
    seconds: float
    # dev split → precision, recall and F1 of each class, where there are classes
    classes: dict[str, list[ClassScores]] = field(default_factory=dict)
    selected_step: int | None = None  # whose weights early stopping kept; None: the last one's
    # Of k-fold cross-validation: the results of each fold, whose mean the scores are.
    folds: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def load(cls, folder: Path) -> SeedResult | None:
        """Read the result of a seed; return None where it is missing or damaged."""
        path = folder / RESULT
        try:
            text = read_bounded_text(path)
            values = parse_json(text)
        except (OSError, ValueError):
            return None
        if isinstance(values, dict) and "trivial" in values:
            raise UserError(
                f"{path}: written by an earlier version of electra: its key trivial is now called "
                "baseline; choose another --output-dir, or start over with --resume never "
                "--overwrite"
            )
        # Settings are finite, but the scores of a run that diverged are not.
        finite = json.loads(text, parse_constant=lambda name: 0.0)
        try:
            result: SeedResult = convert(finite, cls, source=str(path), key="result")
        except UserError:
            return None
        if not result.scores:
            return None
        return cls(**values)

    def save(self, folder: Path) -> None:
        atomic.write_json(folder / RESULT, asdict(self))

    def __str__(self) -> str:
        first_split = next(iter(self.scores.values()))
        scores = ", ".join(f"{name} {value:.4f}" for name, value in first_split.items())
        text = f"seed {self.seed}: {scores} ({self.steps:,} steps in {self.seconds:.0f} s)"
        if self.selected_step is not None:
            text += f"; the weights of step {self.selected_step:,}"
        if self.degenerate:
            text += "; warning: no better than an answer that ignores the text"
        elif self.baseline >= 1:
            text += "; warning: every dev example has the same answer, so the score says nothing"
        return text


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A task's result over its seeds. The score that counts is the median, as in the paper."""

    task: str
    metric: str
    split: str
    baseline: float  # the score of the best answer that ignores the text
    median: float
    mean: float
    sd: float | None  # over seeds, or over all folds of all seeds; None for a single run
    best: float
    runs: list[SeedResult] = field(default_factory=list)
    made: dict[str, Any] = field(default_factory=dict)
    best_model: str = ""
    # Whether dev chose the step of each run, which makes the score on it optimistic.
    selected_on_dev: bool = False

    @classmethod
    def of_runs(
        cls,
        runs: Sequence[SeedResult],
        *,
        task: str,
        metric: str,
        made: dict[str, Any],
        selected_on_dev: bool = False,
    ) -> Summary:
        """Summarize the runs of all seeds.

        Degenerate runs count like all others: a protocol that drops them is another protocol.
        """
        scores = [run.score for run in runs]
        best = find_best(runs, metric)
        sd, spread = None, scores
        if runs[0].folds:
            spread = [fold["score"] for run in runs for fold in run.folds]
        if len(spread) > 1:
            sd = statistics.stdev(spread)
        return cls(
            task=task,
            metric=metric,
            split=next(iter(runs[0].scores)),
            baseline=runs[0].baseline,
            median=statistics.median(scores),
            mean=statistics.fmean(scores),
            sd=sd,
            best=best.score,
            runs=list(runs),
            made=made,
            best_model=f"seed-{best.seed}/model",
            selected_on_dev=selected_on_dev,
        )

    @property
    def protocol(self) -> str:
        folds = ""
        if self.runs and self.runs[0].folds:
            folds = f"mean of {len(self.runs[0].folds)} folds, "
        if len(self.runs) == 1:
            return f"{folds}one seed"
        return f"{folds}median of {len(self.runs)} seeds"

    @property
    def degenerate(self) -> list[int]:
        """The seeds that are no better than the baseline, or that diverged."""
        return [run.seed for run in self.runs if run.degenerate or run.diverged]

    @property
    def classes(self) -> list[ClassScores]:
        """Precision, recall and F1 of each class on the first dev split: the medians of seeds."""
        classes = [run.classes.get(self.split, []) for run in self.runs]
        return average_scores(classes, statistics.median)

    def as_json(self) -> dict[str, Any]:
        """Return the content of results.json."""
        return {"protocol": self.protocol, **asdict(self)}

    def save(self, output_dir: Path) -> None:
        atomic.write_json(output_dir / RESULTS, self.as_json())


def find_best(runs: Sequence[SeedResult], metric: str) -> SeedResult:
    """Return the run with the best score; one that is no number is the best only of such."""
    return max(runs, key=lambda run: (not math.isnan(run.score), direction(metric) * run.score))


# ---- the table -----------------------------------------------------------------------------------


def format_score(value: float, metric: str) -> str:
    """Format a score in points, as papers do; an error or a threshold is no fraction of 1."""
    if metric in (*PLAIN_METRICS, *LOWER_IS_BETTER) or metric.endswith("_threshold"):
        return f"{value:.4f}"
    return f"{100 * value:.1f}"


def summary_table(summaries: Sequence[Summary]) -> Table:
    """Draw one line a task, then the average. It fits in 80 columns."""
    from rich import box
    from rich.table import Table

    names = ("task", "metric", "median", "mean ± sd", "best", "baseline", "seeds")
    table = Table(*names, box=box.SIMPLE_HEAD)
    for summary in summaries:
        table.add_row(*table_cells(summary))
    if len(summaries) > 1:
        average = statistics.fmean(summary.median for summary in summaries)
        table.add_section()
        table.add_row(f"average of {len(summaries)}", "", f"{100 * average:.1f}", *[""] * 4)
    return table


def table_cells(summary: Summary) -> list[str]:
    metric = summary.metric
    mean = format_score(summary.mean, metric)
    if summary.sd is not None:
        mean += f" ± {format_score(summary.sd, metric)}"
    return [
        summary.task,
        metric,
        format_score(summary.median, metric),
        mean,
        format_score(summary.best, metric),
        format_score(summary.baseline, metric),
        str(len(summary.runs)),
    ]


def summary_classes(summary: Summary) -> Table | None:
    """Draw precision, recall and F1 of each class, where there are classes."""
    if not summary.classes:
        return None
    return class_table(summary.classes)


def summary_notes(summaries: Sequence[Summary], missing: Sequence[str] = ()) -> list[str]:
    """Return what the table has no room for: other scores, degenerate seeds, tasks without data."""
    notes = []
    for summary in summaries:
        if scores := other_scores(summary):
            notes.append(f"{summary.task}, other scores: {scores}")
        if summary.degenerate:
            notes.append(
                f"{summary.task}: degenerate (no better than an answer that ignores the text) or "
                f"diverged: seed {', '.join(map(str, summary.degenerate))}"
            )
    if summaries[0].selected_on_dev:
        notes.append(
            f"early stopping chose the step on {summaries[0].split}, so these scores are "
            "optimistic; electra evaluate scores on other data"
        )
    if search := summaries[0].made.get("search"):
        notes.append(
            f"the best of {len(search['trials'])} settings on {summaries[0].split}, so this score "
            f"is optimistic; without the search: {search['flags']}"
        )
    notes.append(f"{summaries[0].protocol}; every run is in results.json")
    if missing:
        notes.append(f"no data for {', '.join(missing)}; the average is without them")
    return notes


def other_scores(summary: Summary) -> str:
    """List the medians of the other metrics, and of the other dev splits."""
    scores = []
    for split, metrics in summary.runs[0].scores.items():
        for name in metrics:
            if (split, name) == (summary.split, summary.metric):
                continue
            median = statistics.median(run.scores[split][name] for run in summary.runs)
            text = f"{name} {format_score(median, name)}"
            if split != summary.split:
                text = f"{split} {text}"
            scores.append(text)
    return ", ".join(scores)
