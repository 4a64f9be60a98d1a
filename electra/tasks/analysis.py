"""What a model gets wrong: a confusion matrix, scores by class, and the examples to look at.

An analysis is plain data, and quotes texts of the examples. `mistakes` makes one for each kind of
task, and `electra.reports` a page of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from electra.config import SettingError
from electra.tasks.class_scores import MEASURES, ClassScores
from electra.tasks.task import Example

MAX_EXAMPLES = 50  # in a list
MAX_CLASSES = 20  # in a confusion matrix
MAX_POINTS = 2_000  # in a scatter plot
MAX_TEXT, MAX_LABEL = 400, 60  # characters
OTHERS = "others"

# Texts, each with a mark: right, wrong or missed; note: in small type; or none.
Cell = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """How often each true label got each answer."""

    labels: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]  # by true label, then by answer
    note: str = ""

    def __post_init__(self) -> None:
        check_sizes("counts", [len(self.counts), *map(len, self.counts)], len(self.labels))


@dataclass(frozen=True, kw_only=True)
class Points:
    """The scores that were given beside the true ones."""

    true: tuple[float, ...]
    predicted: tuple[float, ...]
    note: str = ""

    def __post_init__(self) -> None:
        check_sizes("predicted", [len(self.predicted)], len(self.true))


@dataclass(frozen=True, kw_only=True)
class ExampleList:
    """Examples to look at, the worst first."""

    title: str
    note: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __post_init__(self) -> None:
        check_sizes("rows", map(len, self.rows), len(self.head))


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """What the answers of a model to labelled examples show."""

    examples: int
    classes: tuple[dict[str, Any], ...] = ()  # see `class_scores`
    matrix: Matrix | None = None
    points: Points | None = None
    lists: tuple[ExampleList, ...] = ()

    def __post_init__(self) -> None:
        for scores in self.classes:
            values = [scores.get(name) for name in (*MEASURES, "support")]
            if not all(isinstance(value, (int, float)) for value in values):
                raise SettingError("classes", "classes: a score is missing, or is no number")


def check_sizes(name: str, sizes: Iterable[int], expected: int) -> None:
    """Raise SettingError for lists of different lengths, as a damaged file may have them."""
    if any(size != expected for size in sizes):
        raise SettingError(name, f"{name}: should have {expected} entries each")


# ---- cells ---------------------------------------------------------------------------------------


def plain(text: str, limit: int = MAX_TEXT) -> Cell:
    """Return a cell of text, shortened at its end."""
    return ((shorten(text, limit), ""),)


def shorten(text: str, limit: int = MAX_TEXT) -> str:
    """Return text as one line of at most about `limit` characters."""
    line = " ".join(text[: 4 * limit].split())
    if len(line) <= limit and len(text) <= 4 * limit:
        return line
    return line[:limit].rstrip() + " …"


def around(text: str, start: int, end: int, limit: int = MAX_TEXT) -> tuple[int, int]:
    """Return the part of a text, in characters, that shows what stands from `start` to `end`."""
    room = max(0, limit - (end - start))
    first = max(0, start - room // 2)
    last = min(len(text), max(first + limit, end))
    return max(0, min(first, last - limit)), last


def file_and_line(example: Example) -> Cell:
    """Return where an example was read, without the folders."""
    return plain(example.where.rpartition("/")[2], 120)


def percent(probability: float) -> Cell:
    return plain(f"{100 * probability:.1f} %")


def worst(order: Iterable[float], *, largest: bool = True) -> list[int]:
    """Return the positions of the largest values, or of the smallest; not more than are listed."""
    values = np.fromiter(order, dtype=np.float64)
    if largest:
        values = -values
    return [int(index) for index in np.argsort(values, kind="stable")[:MAX_EXAMPLES]]


# ---- tables --------------------------------------------------------------------------------------


def confusion_matrix(true: Sequence[str], predicted: Sequence[str]) -> Matrix:
    """Count each pair of a true label and an answer; of many labels the rare ones are joined."""
    frequency = Counter([*true, *predicted])
    shown = [label for label, _ in Counter(true).most_common(MAX_CLASSES)]
    for label, _ in frequency.most_common():
        if len(shown) < MAX_CLASSES and label not in shown:
            shown.append(label)
    names, note = list(shown), ""
    if len(frequency) > len(shown):
        names.append(OTHERS)
        note = (
            f"The {len(shown)} most frequent of {len(frequency)} labels; {OTHERS} stands for the "
            f"other {len(frequency) - len(shown)}."
        )
    index = {label: number for number, label in enumerate(shown)}
    counts = np.zeros((len(names), len(names)), dtype=int)
    for pair in zip(true, predicted, strict=True):
        row, column = (index.get(label, len(shown)) for label in pair)
        counts[row, column] += 1
    labels = tuple(shorten(name, MAX_LABEL) for name in names)
    return Matrix(labels=labels, counts=tuple(tuple(map(int, row)) for row in counts), note=note)


def frequent_classes(scores: Sequence[ClassScores]) -> tuple[ClassScores, ...]:
    """Return the scores of the most frequent classes, in their order, labels shortened."""
    frequent = sorted(scores, key=lambda each: -each["support"])[: 5 * MAX_CLASSES]
    return tuple(
        each | {"label": shorten(each["label"], MAX_LABEL)} for each in scores if each in frequent
    )


def scatter(true: Sequence[float], predicted: Sequence[float]) -> Points:
    """Return the points of a scatter plot that are finite; of many, an even part."""
    pairs = [pair for pair in zip(true, predicted, strict=True) if np.isfinite(pair).all()]
    step = -(-len(pairs) // MAX_POINTS) or 1
    note = ""
    if step > 1:
        note = f"One in {step} of {len(true):,} examples is shown."
    return Points(
        true=tuple(a for a, _ in pairs[::step]),
        predicted=tuple(b for _, b in pairs[::step]),
        note=note,
    )
