"""Figures of scores: as bars, by cost, and along an axis of the paper's."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from electra.experiments.findings import Findings
from electra.experiments.plan import Arm
from electra.reports.blocks import INK
from electra.reports.comparison import figure_lines
from electra.reports.figure_style import COSTS, WIDTH, Looks, add_legend, look, wrap
from electra.reports.samples import Sample, baseline, findings_of, ranking_column, shared_tasks

Samples = Mapping[str, Sample]  # by arm


def scored_arms(findings: Findings, samples: Samples) -> list[Arm]:
    return [arm for arm in findings.trial.arms if arm.name in samples]


def score_label(findings: Findings) -> str:
    tasks = shared_tasks(findings)
    if len(tasks) == 1:
        return f"{tasks[0]}, points"
    return f"average of {len(tasks)} tasks, points"


def draw_point(axis: Any, x: float, sample: Sample, looks: Mapping[str, Any]) -> None:
    """Draw a mean with its standard deviation."""
    error = None
    if sample.sd is not None:
        error = [sample.sd]
    axis.errorbar([x], [sample.mean], yerr=error, capsize=3, **{**looks, "linestyle": "none"})


def draw_scores_by_cost(figure: Any, findings: Findings, samples: Samples, looks: Looks) -> None:
    """Draw the average score of each arm over FLOPs, and over minutes."""
    axes = figure.subplots(1, len(COSTS), sharey=True)
    arms = scored_arms(findings, samples)
    for axis, (label, cost) in zip(axes, COSTS.values(), strict=True):
        most = 0.0
        for arm in arms:
            done = [finding for finding in findings_of(findings, arm) if finding.done]
            spent = statistics.fmean(cost(finding) for finding in done)
            draw_point(axis, spent, samples[arm.name], looks[arm.name])
            most = max(most, spent)
        axis.set_xlabel(label)
        axis.set_xlim(0, 1.08 * most or None)
        axis.margins(y=0.1)
        axis.locator_params(axis="x", nbins=6)
    axes[0].set_ylabel(score_label(findings))
    add_legend(figure, [(arm.label, {**looks[arm.name], "linestyle": "none"}) for arm in arms])


def draw_along_axis(figure: Any, findings: Findings, samples: Samples) -> None:
    """Draw a figure of the paper: a line for each series."""
    axis = figure.subplots()
    entries: list[tuple[str, dict[str, Any]]] = []
    for series, line in figure_lines(findings).items():
        looks = look(len(entries))
        entries.append((series or "ours", looks))
        axis.plot([arm.x for arm in line], [samples[arm.name].mean for arm in line], **looks)
        for arm in line:
            draw_point(axis, arm.x or 0.0, samples[arm.name], looks)
    for arm in scored_arms(findings, samples):
        if arm.x is None:  # beside the lines: a unigram generator has no size
            looks = {**look(len(entries)), "marker": ""}
            entries.append((arm.label, looks))
            axis.axhline(samples[arm.name].mean, **looks)
    axis.set_xlabel(findings.trial.x_label)
    axis.set_ylabel(score_label(findings))
    add_legend(figure, entries)


def draw_bars(figure: Any, findings: Findings, samples: Samples, looks: Looks) -> None:
    """Draw our scores as bars, and the published ones in a panel of their own.

    A bar begins at the baseline: from zero on, bars of one length would hide what was found. The
    published values have an axis of their own, so that nobody reads them off against ours.
    """
    arms = scored_arms(findings, samples)[::-1]
    column = ranking_column(findings.trial)
    figure.set_size_inches(WIDTH, 1.4 + 0.36 * len(arms))
    if column is None:
        ours = figure.subplots()
    else:
        ours, theirs = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        draw_published(theirs, arms, column, looks)
    start = baseline(findings, *shared_tasks(findings)) or 0.0
    for y, arm in enumerate(arms):
        draw_bar(ours, y, samples[arm.name], start, looks[arm.name]["color"])
    ours.set_yticks(range(len(arms)), [wrap(arm.label, 30) for arm in arms])
    ours.set_xlabel(
        f"ours: {score_label(findings)} ± sd;\nbars begin at an answer that ignores the text"
    )
    ours.margins(x=0.12)
    ours.grid(visible=False, axis="y")
    ours.axvline(start, color=INK, linewidth=0.8)


def draw_bar(axis: Any, y: int, sample: Sample, start: float, color: str) -> None:
    """Draw a mean as a bar from `start`, with its standard deviation and its number."""
    axis.barh(y, sample.mean - start, left=start, height=0.6, color=color, alpha=0.75)
    if sample.sd is not None:
        axis.errorbar([sample.mean], [y], xerr=[sample.sd], color=INK, capsize=3)
    end = max(sample.mean + (sample.sd or 0.0), start)
    annotate(axis, end, y, f"{sample.mean:.1f}")


def draw_published(axis: Any, arms: list[Arm], column: str, looks: Looks) -> None:
    """Draw the published values of a column."""
    for y, arm in enumerate(arms):
        value = arm.published.get(column)
        if isinstance(value, (int, float)):
            axis.plot([value], [y], **{**looks[arm.name], "linestyle": "none"})
            annotate(axis, value, y, str(value))
    axis.margins(x=0.25)
    axis.set_xlabel(f"published: {column}\nat the paper's size and budget")


def annotate(axis: Any, x: float, y: float, text: str) -> None:
    axis.annotate(text, (x, y), xytext=(6, 0), textcoords="offset points", va="center")
