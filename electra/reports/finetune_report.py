"""The page about a fine-tuning: report.html, which needs no other file. It quotes the dev data."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from electra import atomic
from electra.config import UserError, build
from electra.console import ignore
from electra.files import read_json_object
from electra.finetuning.output_dir import CURVES_FILE, REPORT
from electra.finetuning.results import SeedResult, Summary, format_score
from electra.finetuning.scoring import ANALYSIS
from electra.reports import figures
from electra.reports.analysis import NO_FIGURES, analysis_blocks
from electra.reports.blocks import (
    Banner,
    Block,
    Bullets,
    Contents,
    Grid,
    Heading,
    Paragraph,
    Picture,
)
from electra.reports.finetune_figures import draw_learning_curves
from electra.reports.html import render_html
from electra.reports.report import INSTALL
from electra.runs import run_dir
from electra.runs.journal import read_metrics
from electra.tasks.analysis import Analysis


def write_finetune_report(
    output_dir: Path, summary: Summary, say: Callable[[str], None] = ignore
) -> None:
    """Write report.html and curves.svg about a finished fine-tuning, and say where they are.

    The results are safe already: what cannot be read or written is said, and does not fail.
    """
    curves = learning_curves(output_dir, summary)
    best = read_analysis(output_dir / Path(summary.best_model).parent / ANALYSIS, say)
    blocks = list(finetune_page(summary, best, curves))
    try:
        if curves is not None:
            atomic.write(output_dir / CURVES_FILE, curves.svg)
        atomic.write(output_dir / REPORT, render_html(blocks, title=f"{summary.task}: report"))
    except OSError as error:
        say(f"warning: {output_dir / REPORT}: cannot be written: {error.strerror}")
        return
    say(f"report: {output_dir / REPORT}")
    if not figures.is_available():
        say(f"without learning curves: matplotlib is not installed ({INSTALL}, the extra plots)")


def read_analysis(path: Path, say: Callable[[str], None]) -> Analysis | None:
    """Read the analysis of a seed; None where it has none, as of an earlier version."""
    if not path.is_file():
        return None
    try:
        return build(Analysis, read_json_object(path), source=str(path))
    except UserError as error:
        say(f"warning: {error}; the report has no examples")
        return None


def learning_curves(output_dir: Path, summary: Summary) -> Picture | None:
    if not figures.is_available():
        return None
    journals = {}
    for run in summary.runs:
        path = output_dir / f"seed-{run.seed}" / run_dir.METRICS
        journals[f"seed {run.seed}"] = read_metrics(path)
    return draw_learning_curves(
        journals,
        metric=summary.metric,
        split=summary.split,
        baseline=summary.baseline,
        origin=f"{summary.task}, fine-tuned from {summary.made.get('model', 'a model')}",
    )


# ---- the page ------------------------------------------------------------------------------------


def finetune_page(
    summary: Summary, analysis: Analysis | None, curves: Picture | None
) -> Iterator[Block]:
    """Yield the blocks of the page about a fine-tuning."""
    made, best = summary.made, Path(summary.best_model).parent.name
    yield Heading(1, f"{summary.task}: {summary.metric} {score_text(summary)}")
    yield Paragraph(
        f"{made.get('model', 'A model')} fine-tuned with recipe {made.get('recipe', '–')}, "
        f"{summary.protocol}; scored on {summary.split}. An answer that ignores the text gets "
        f"{format_score(summary.baseline, summary.metric)}. This page quotes texts of the dev "
        "data: share it only with those who may read them."
    )
    yield from warnings_of(summary)
    sections = list(analysis_blocks(analysis, of=f", {best.replace('-', ' ')}"))
    entries = [("Scores", "scores"), ("Learning curves", "curves"), ("Settings", "settings")]
    headings = [block for block in sections if isinstance(block, Heading)]
    entries[2:2] = [(block.text, block.anchor) for block in headings]
    if made.get("search"):
        entries.insert(-1, ("Search", "search"))
    yield Contents(entries)
    yield Heading(2, "Scores", anchor="scores")
    yield score_grid(summary)
    yield Heading(2, "Learning curves", anchor="curves")
    yield from curve_blocks(curves)
    yield from sections
    yield from search_blocks(made.get("search"), summary.metric)
    yield Heading(2, "Settings", anchor="settings")
    yield settings_grid(made.get("settings", {}))
    yield Bullets(list(facts(made)))


def score_text(summary: Summary) -> str:
    text = format_score(summary.median, summary.metric)
    if summary.sd is None:
        return text
    return f"{text} ± {format_score(summary.sd, summary.metric)}"


def warnings_of(summary: Summary) -> Iterator[Block]:
    """Yield a banner where the scores say little."""
    if summary.degenerate:
        seeds = ", ".join(map(str, summary.degenerate))
        headline = "Some seeds learnt nothing."
        if len(summary.degenerate) == len(summary.runs):
            headline = "Nothing was learnt."
        yield Banner(
            headline,
            [f"No better than an answer that ignores the text, or diverged: seed {seeds}."],
        )


def score_grid(summary: Summary) -> Grid:
    """Return a table of all scores of every seed."""
    names = [(split, name) for split, scores in summary.runs[0].scores.items() for name in scores]
    names.sort(key=lambda name: name != (summary.split, summary.metric))
    head = ["seed"]
    for split, name in names:
        if split == summary.split:
            head.append(name)
        else:
            head.append(f"{split} {name}")
    rows = [score_row(run, names) for run in summary.runs]
    if len(summary.runs) > 1:
        rows.append(["median", *median_cells(summary, names), "", ""])
    blank = [""] * (len(names) - 1)
    rows.append(["baseline", format_score(summary.baseline, summary.metric), *blank, "", ""])
    return Grid([*head, "steps", "seconds"], rows)


def median_cells(summary: Summary, names: Sequence[tuple[str, str]]) -> list[str]:
    cells = []
    for split, name in names:
        median = statistics.median(run.scores[split][name] for run in summary.runs)
        cells.append(format_score(median, name))
    return cells


def score_row(run: SeedResult, names: Sequence[tuple[str, str]]) -> list[str]:
    values = [format_score(run.scores[split][name], name) for split, name in names]
    return [str(run.seed), *values, f"{run.steps:,}", f"{run.seconds:,.0f}"]


def curve_blocks(curves: Picture | None) -> Iterator[Block]:
    if not figures.is_available():
        yield Paragraph(NO_FIGURES)
    elif curves is None:
        yield Paragraph("No losses were recorded.")
    else:
        yield curves
        yield Paragraph("Scores during training: --eval-steps N. More points: --logging-steps N.")


def search_blocks(search: Mapping[str, Any] | None, metric: str) -> Iterator[Block]:
    """Yield the trials of a search, the best first."""
    if not search or not search.get("trials"):
        return
    trials = search["trials"]
    names = list(trials[0]["settings"])
    rows = []
    for trial in trials:
        settings = [f"{trial['settings'][name]:g}" for name in names]
        scores = " / ".join(format_score(score, metric) for score in trial["scores"])
        mean = format_score(trial["mean"], metric)
        rows.append([str(trial["number"]), *settings, scores, mean, f"{trial['seconds']:,.0f}"])
    yield Heading(2, "Search", anchor="search")
    yield Paragraph(
        f"{len(trials)} settings, the best first: {search['flags']}. Its score on dev is "
        "optimistic, since it was chosen there; the seeds above were trained afterwards, with "
        "other seeds than the trials, and scored on the same dev data."
    )
    yield Grid(["trial", *names, f"{metric}, by seed", "mean", "seconds"], rows)


def settings_grid(settings: Mapping[str, Any]) -> Grid:
    return Grid(("setting", "value"), [(key, str(value)) for key, value in settings.items()], True)


def facts(made: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what a reader needs to reproduce the scores."""
    for name in ("date", "electra", "commit", "weights", "settings_hash", "selection"):
        if made.get(name):
            yield f"{name.replace('_', ' ')}:", str(made[name])
    train = made.get("data", {}).get("train", {})
    files = ", ".join(str(file.get("name", "")) for file in train.get("files", []))
    yield "training data:", f"{files} ({train.get('examples', 0):,} examples)"
