"""Held-out curves over FLOPs and over minutes: a line for each arm."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from electra.experiments.findings import Finding, Findings
from electra.reports.figure_style import BASELINE, COSTS, Looks, add_legend, wrap
from electra.reports.plateau import loss_shares
from electra.reports.samples import findings_of

MEASURES = {
    "mlm_loss": "masked words: loss (the generator's where there is one)",
    "mlm_accuracy": "masked words: accuracy (the generator's where there is one)",
    "restore_loss": "words predicted from corrupted text: loss",
    "restore_accuracy": "words predicted from corrupted text: accuracy",
    "rtd_loss": "replaced or original: loss",
    "auc": "replaced or original: AUC",
}
# Not a metric of the journal: each network's own loss.
SHARE = "loss, as a share of that without the text"
# The baseline of these is the same number for all networks.
LEVELS = {"auc": 0.5, SHARE: 1.0}
CAVEATS = {
    ("rtd_", "auc"): "Each discriminator judges its own generator's words, some of them at masked "
    "places alone: between arms these are different tasks, and a better generator makes a harder "
    "one",
    ("mlm_",): "How many of the words to be predicted are left to be read differs between "
    "objectives",
}
# RTD accuracy is nearly the share of words left alone, whatever the network learnt.
SKIPPED = ("baseline_", "rtd_accuracy")
DRAWN = ("_loss", "_accuracy", "entropy")
Point = dict[str, float]


def measures(findings: Findings) -> list[str]:
    """Return what was measured on held-out rows: `MEASURES` first, then an objective's others."""
    entries = [entry for finding in findings.results for entry in finding.journal]
    keys = {key for entry in entries for key in entry if key.startswith("eval_")}
    measured = {key.removeprefix("eval_") for key in keys}
    others = [key for key in measured - MEASURES.keys() if key.endswith(DRAWN)]
    others = sorted(key for key in others if not key.startswith(SKIPPED))
    return [key for key in MEASURES if key in measured] + others


def title_of(measure: str) -> str:
    return MEASURES.get(measure, measure.replace("_", " "))


def caveat(measure: str) -> str:
    """Return the end of a title: why arms do not compare by this measure, if so."""
    for beginnings, text in CAVEATS.items():
        if measure.startswith(beginnings):
            return f". {text}"
    return ""


def draw_curves(figure: Any, findings: Findings, measure: str, looks: Looks) -> None:
    """Draw a thick line for the mean of an arm's seeds, and a thin one for each of them."""
    axes = figure.subplots(1, len(COSTS), sharey=True)
    entries: list[tuple[str, Mapping[str, Any]]] = []
    for arm in findings.trial.arms:
        curves = [curve(finding, measure) for finding in findings_of(findings, arm)]
        curves = [points for points in curves if points]
        if curves:
            draw_arm(axes, curves, looks[arm.name])
            entries.append((arm.label, looks[arm.name]))
    level = baseline_level(findings, measure)
    for axis, (label, _) in zip(axes, COSTS.values(), strict=True):
        axis.set_xlabel(label)
        axis.set_xlim(left=0)
        axis.locator_params(axis="x", nbins=6)
        if level is not None:
            axis.axhline(level, **BASELINE, zorder=0)
    axes[0].set_ylabel(wrap(title_of(measure), 34))
    if level is not None:
        entries.append(("text ignored", BASELINE))
    add_legend(figure, entries)


def draw_arm(axes: Any, curves: Sequence[Sequence[Point]], looks: Mapping[str, Any]) -> None:
    """Draw the curves of an arm's seeds, and their mean, over each cost."""
    thin = {key: value for key, value in looks.items() if key != "marker"}
    thin |= {"linewidth": 0.6, "alpha": 0.6}
    mean = mean_curve(curves)
    for axis, cost in zip(axes, COSTS, strict=True):
        if len(curves) > 1:
            for points in curves:
                axis.plot(*columns(points, cost), **thin)
        axis.plot(*columns(mean, cost), **looks, markevery=max(1, len(mean) // 6))


def columns(points: Sequence[Point], cost: str) -> tuple[list[float], list[float]]:
    return [point[cost] for point in points], [point["value"] for point in points]


def curve(finding: Finding, measure: str) -> list[Point]:
    """Return the points of a curve; a loss that was not finite is left out."""
    values = {entry["step"]: entry.get(f"eval_{measure}") for entry in finding.journal}
    if measure == SHARE:
        values = dict(loss_shares(finding))
    points = []
    for entry in finding.journal:
        costs = {cost: entry.get(cost) for cost in COSTS}
        value = values.get(entry["step"])
        if value is not None and None not in costs.values():
            points.append({"step": entry["step"], "value": value, **costs})
    return points


def mean_curve(curves: Sequence[Sequence[Point]]) -> list[Point]:
    """Return the mean of seeds, as far as all of them go: a mean over fewer would jump."""
    by_step = [{point["step"]: point for point in points} for points in curves]
    shared = set.intersection(*(set(points) for points in by_step))
    return [mean_point([points[step] for points in by_step]) for step in sorted(shared)]


def mean_point(points: Sequence[Point]) -> Point:
    return {key: statistics.fmean(point[key] for point in points) for key in ("value", *COSTS)}


def baseline_level(findings: Findings, measure: str) -> float | None:
    """Return the baseline of a measure, where it is one number for all arms and steps."""
    if measure in LEVELS:
        return LEVELS[measure]
    entries = [entry for finding in findings.results for entry in finding.journal]
    values = [entry.get(f"eval_baseline_{measure}") for entry in entries]
    known = [value for value in values if value is not None]
    if not known or max(known) - min(known) > 0.03 * abs(max(known)):
        return None
    return statistics.fmean(known)
