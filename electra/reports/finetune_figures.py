"""The figures of a fine-tuning: learning curves of all seeds, and scores beside the true ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from electra.reports.blocks import INK, Picture
from electra.reports.figure_style import BASELINE, COLOURS, add_legend, draw_picture, look
from electra.tasks.analysis import Points

MAX_POINTS = 400  # of a line
Entries = Sequence[Mapping[str, Any]]  # of metrics.jsonl
Curve = list[tuple[int, float]]


def draw_learning_curves(
    journals: Mapping[str, Entries], *, metric: str, split: str, baseline: float, origin: str
) -> Picture | None:
    """Draw the training loss and a metric over steps, a line for each seed; None without numbers.

    `split` is the dev data that the metric was computed on.
    """
    losses = {name: read_curve(entries, "loss") for name, entries in journals.items()}
    scores = {name: read_curve(entries, f"{split}_{metric}") for name, entries in journals.items()}
    if not any(losses.values()) and not any(scores.values()):
        return None
    label = f"{metric} on {split}"
    draw = partial(draw_panels, losses=losses, scores=scores, label=label, baseline=baseline)
    title = f"Training loss, and {label} (dotted: an answer that ignores the text), over steps"
    return draw_picture("curves", title, draw, origin)


def read_curve(entries: Entries, name: str) -> Curve:
    """Return the points of a metric that are numbers; of many, an even part and the last."""
    points = []
    for entry in entries:
        if entry.get(name) is not None:
            points.append((entry["step"], float(entry[name])))
    step = -(-len(points) // MAX_POINTS) or 1
    return points[::-1][::step][::-1]


def draw_panels(
    figure: Any,
    *,
    losses: Mapping[str, Curve],
    scores: Mapping[str, Curve],
    label: str,
    baseline: float,
) -> None:
    left, right = figure.subplots(1, 2)
    panels = ((left, losses, "training loss"), (right, scores, label))
    looks = {name: look(index) for index, name in enumerate(losses)}
    for axes, curves, name_of_axis in panels:
        for name, curve in curves.items():
            steps = [step for step, _ in curve]
            values = [value for _, value in curve]
            style = looks[name]
            if len(curve) > 12:  # markers would hide the line
                style = style | {"marker": ""}
            axes.plot(steps, values, **style)
        axes.set_xlabel("step")
        axes.set_ylabel(name_of_axis)
        axes.xaxis.get_major_locator().set_params(integer=True)
    right.axhline(baseline, **BASELINE)
    add_legend(figure, list(looks.items()))


def draw_scatter(points: Points, *, origin: str) -> Picture:
    """Draw the scores of a regression beside the true ones."""
    draw = partial(draw_points, points=points)
    title = "Scores beside the true ones; on the line they are equal"
    return draw_picture("scatter", f"{title}. {points.note}".strip(), draw, origin)


def draw_points(figure: Any, *, points: Points) -> None:
    axes = figure.subplots()
    axes.scatter(points.true, points.predicted, s=12, alpha=0.5, color=COLOURS[0], linewidths=0)
    ends = [min(points.true), max(points.true)]
    axes.plot(ends, ends, color=INK, linestyle=(0, (4, 3)), linewidth=1.0)
    axes.set_xlabel("truth")
    axes.set_ylabel("score of the model")
