"""Precision, recall and F1 of each class, and their table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from electra.tasks.features import Array

if TYPE_CHECKING:
    from rich.table import Table

# One class: {"label", "precision", "recall", "f1", "support": the examples that have it}
ClassScores = dict[str, Any]
MEASURES = ("precision", "recall", "f1")
MAX_ROWS = 10  # of a table


def class_scores(labels: Sequence[str], true: Array, predicted: Array) -> list[ClassScores]:
    """Compute the scores of each label from indicators [N, labels]; a quotient over 0 is 0."""
    right = (true & predicted).sum(axis=0)
    support, answered = true.sum(axis=0), predicted.sum(axis=0)
    return [
        scores_from_counts(
            label, hits=int(right[i]), answered=int(answered[i]), support=int(support[i])
        )
        for i, label in enumerate(labels)
    ]


def scores_from_counts(label: str, *, hits: int, answered: int, support: int) -> ClassScores:
    """Compute the scores of a class that `support` examples have and `answered` were given; `hits`
    are in both.
    """
    return {
        "label": label,
        "precision": hits / max(1, answered),
        "recall": hits / max(1, support),
        "f1": 2 * hits / max(1, answered + support),
        "support": support,
    }


def indicators(indices: Array, count: int) -> Array:
    """Return class indices [N] as indicators [N, count]."""
    rows: Array = indices[:, None] == np.arange(count)
    return rows


def average_scores(
    runs: Sequence[Sequence[ClassScores]], average: Callable[[Iterable[float]], float]
) -> list[ClassScores]:
    """Return the average over runs of each score of each class; none where a run has none."""
    averages: list[ClassScores] = []
    if not all(runs):
        return averages
    for of_class in zip(*runs, strict=True):
        scores = dict(of_class[0])
        for name in MEASURES:
            scores[name] = average(run[name] for run in of_class)
        averages.append(scores)
    return averages


def class_table(classes: Sequence[ClassScores]) -> Table:
    """Draw one line a class, in the order of the labels; of many classes the most frequent ones."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("class", overflow="ellipsis", no_wrap=True, max_width=36)
    for name in (*MEASURES, "examples"):
        table.add_column(name, justify="right")
    frequent = sorted(classes, key=lambda scores: -scores["support"])[:MAX_ROWS]
    for scores in classes:
        if scores in frequent:
            values = [f"{100 * scores[name]:.1f}" for name in MEASURES]
            table.add_row(scores["label"], *values, f"{scores['support']:,}")
    if len(classes) > MAX_ROWS:
        table.caption = f"the {MAX_ROWS} most frequent of {len(classes)} classes"
    return table
