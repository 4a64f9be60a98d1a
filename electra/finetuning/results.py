"""What fine-tuning came to: every run, the median that the paper reports, and how it was made."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from electra import __version__, atomic
from electra.provenance import commit
from electra.settings import as_dict, fingerprint
from electra.tasks.models import RESULTS

if TYPE_CHECKING:
    from rich.table import Table

    from electra.finetuning.setup import FinetuneSetup

RESULT = "result.json"  # of one seed


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A task's result over its seeds. The score that counts is the median: the paper's protocol."""

    task: str
    metric: str
    split: str
    baseline: float  # the score of an answer that ignores the text
    median: float
    mean: float
    sd: float | None  # of one run, over seeds; None for a single one
    best: float
    runs: list[dict[str, Any]] = field(default_factory=list)
    made: dict[str, Any] = field(default_factory=dict)
    best_model: str = ""

    @property
    def protocol(self) -> str:
        return f"median of {len(self.runs)} seeds" if len(self.runs) > 1 else "one seed"

    @property
    def degenerate(self) -> list[int]:
        return [run["seed"] for run in self.runs if run["degenerate"] or run["diverged"]]

    def save(self, output_dir: Path) -> None:
        atomic.write_json(output_dir / RESULTS, {"protocol": self.protocol, **asdict(self)})


def summarise(setup: FinetuneSetup, runs: Sequence[dict[str, Any]]) -> Summary:
    """Degenerate runs count like all others: a protocol that drops them is another protocol."""
    scores = [run["score"] for run in runs]
    best = max(runs, key=lambda run: run["score"])
    return Summary(
        task=setup.task.name,
        metric=setup.task.metric,
        split=next(iter(setup.dev)),
        baseline=runs[0]["baseline"],
        median=statistics.median(scores),
        mean=statistics.fmean(scores),
        sd=statistics.stdev(scores) if len(scores) > 1 else None,
        best=best["score"],
        runs=list(runs),
        made=provenance(setup),
        best_model=f"seed-{best['seed']}/model",
    )


def provenance(setup: FinetuneSetup) -> dict[str, Any]:
    """How the number was made."""
    settings = as_dict(setup.config)
    return {
        "date": time.strftime("%Y-%m-%d"),
        "electra": __version__,
        "commit": commit(),
        "recipe": setup.recipe,
        "settings": settings,
        "settings_hash": fingerprint(settings),
        "model": setup.model.name,
        "weights": setup.weights,
        "data": dict(setup.data),
        "selection": "none: the last step's weights",
        "task": setup.task.settings(),
    }


def shown(value: float, metric: str) -> str:
    """Scores are shown in points, as papers do; an error or a threshold is not a share of anything."""
    return (
        f"{value:.4f}"
        if metric in ("mse", "loss") or metric.endswith("_threshold")
        else f"{100 * value:.1f}"
    )


def table(summaries: Sequence[Summary], *, missing: Sequence[str] = ()) -> Table:
    """One line a task. The average is of what was run, and says over how many."""
    from rich import box
    from rich.table import Column, Table

    names = ("task", "metric", "median", "mean ± sd", "best", "baseline", "seeds")
    drawn = Table(
        *(Column(name, no_wrap=True) for name in names), "other scores", box=box.SIMPLE_HEAD
    )
    for summary in summaries:
        spread = "" if summary.sd is None else f" ± {shown(summary.sd, summary.metric)}"
        marks = f" ({len(summary.degenerate)} degenerate)" if summary.degenerate else ""
        drawn.add_row(
            summary.task,
            summary.metric,
            shown(summary.median, summary.metric),
            shown(summary.mean, summary.metric) + spread,
            shown(summary.best, summary.metric),
            shown(summary.baseline, summary.metric),
            f"{len(summary.runs)}{marks}",
            others(summary),
        )
    if len(summaries) > 1:
        average = statistics.fmean(summary.median for summary in summaries)
        drawn.add_section()
        drawn.add_row(
            f"average of {len(summaries)}",
            "",
            f"{100 * average:.1f}",
            "",
            "",
            "",
            "",
            f"without {', '.join(missing)}" if missing else "",
        )
    return drawn


def others(summary: Summary) -> str:
    """Medians of the other metrics, and of the other parts of the dev data."""
    found = []
    for part, scores in summary.runs[0]["scores"].items():
        for name in scores:
            if (part, name) != (summary.split, summary.metric):
                values = [run["scores"][part][name] for run in summary.runs]
                prefix = "" if part == summary.split else f"{part} "
                found.append(f"{prefix}{name} {shown(statistics.median(values), name)}")
    return ", ".join(found)


def facts(setup: FinetuneSetup, result: Mapping[str, Any]) -> dict[str, object]:
    """What a fine-tuned model's card says of it."""
    task = setup.task
    return {
        "Task": task.name,
        f"{task.metric} on {next(iter(setup.dev))}": shown(result["score"], task.metric),
        "An answer that ignores the text": shown(result["baseline"], task.metric),
        "Seed": result["seed"],
        "Steps": f"{result['steps']:,}",
        "Recipe": setup.recipe,
        "Fine-tuned from": "random weights" if setup.loaded is None else setup.model.name,
        "Training examples": f"{setup.data['train']['examples']:,}",
        "electra": __version__,
    }
