"""What the functions of `import electra` return: dataclasses that notebooks show as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

import numpy as np

from electra.escape import escape_html
from electra.finetuning.results import Summary, format_score
from electra.tasks.class_scores import ClassScores
from electra.tasks.features import Array

MAX_ROWS, MAX_CHARACTERS = 20, 200  # of a table, of one of its cells


def html_table(rows: Sequence[Sequence[object]], *, header: Sequence[str] = ()) -> str:
    """Return an HTML table. Everything in it is escaped, since it may quote what others wrote."""
    lines = ["<table>"]
    if header:
        cells = "".join(f"<th>{escape_html(name)}</th>" for name in header)
        lines.append(f"<tr>{cells}</tr>")
    for row in rows[:MAX_ROWS]:
        cells = "".join(f"<td>{escape_html(as_cell(value))}</td>" for value in row)
        lines.append(f"<tr>{cells}</tr>")
    lines.append("</table>")
    if len(rows) > MAX_ROWS:
        lines.append(f"<p>{len(rows) - MAX_ROWS:,} more rows</p>")
    return "\n".join(lines)


def html_classes(classes: Sequence[ClassScores]) -> str:
    """Return the scores of each class as an HTML table."""
    names = ("label", "precision", "recall", "f1", "support")
    rows = [[scores[name] for name in names] for scores in classes]
    return html_table(rows, header=("class", *names[1:-1], "examples"))


def as_cell(value: object) -> str:
    text = str(value)
    if isinstance(value, float):
        text = f"{value:.4f}"
    if len(text) > MAX_CHARACTERS:
        return text[:MAX_CHARACTERS] + "…"
    return text


@dataclass(frozen=True)
class PretrainResult:
    """A finished pre-training. Wherever a model is asked for, it stands for its folder.

    Attributes
    ----------
    output_dir
        The run folder.
    step
        The step at which training ended.
    scores
        The metrics of the last evaluation, on held-out text.
    status
        The status in status.json: "finished". A run that is stopped raises KeyboardInterrupt.
    verdict
        The sentence in status.json that says whether fine-tuning from the model is likely to help.
    """

    output_dir: Path
    step: int
    scores: Mapping[str, float]
    status: str
    verdict: str

    def __fspath__(self) -> str:
        return str(self.output_dir)

    def _repr_html_(self) -> str:
        rows = [("run folder", self.output_dir), ("steps", self.step), *self.scores.items()]
        return html_table([*rows, ("verdict", self.verdict)])


@dataclass(frozen=True)
class FinetuneResult:
    """A finished fine-tuning. Wherever a model is asked for, it stands for its best model.

    Attributes
    ----------
    output_dir
        The folder with the results and the models of all seeds.
    task
        The name of the task.
    metric
        The name of the metric that counts.
    score
        That metric, the median over the seeds.
    baseline
        The score of the best answer that ignores the text.
    summary
        The results of all seeds, with settings and data.
    """

    output_dir: Path
    task: str
    metric: str
    score: float
    baseline: float
    summary: Summary = field(repr=False)

    def __fspath__(self) -> str:
        return str(self.output_dir)

    def _repr_html_(self) -> str:
        summary, metric = self.summary, self.metric
        rows: list[tuple[str, object]] = [
            ("folder", self.output_dir),
            ("task", self.task),
            (f"{metric} on {summary.split}, {summary.protocol}", format_score(self.score, metric)),
            ("an answer that ignores the text", format_score(self.baseline, metric)),
        ]
        for run in summary.runs:
            rows.append((f"seed {run.seed}", format_score(run.score, metric)))
        classes = summary.classes
        if not classes:
            return html_table(rows)
        return f"{html_table(rows)}\n{html_classes(classes)}"


@dataclass(frozen=True)
class Evaluation:
    """The scores of a model on labelled data.

    Attributes
    ----------
    task
        The name of the task.
    metric
        The name of the metric that counts.
    scores
        For each part of the data the value of each metric.
    classes
        For each part of the data precision, recall, F1 and support of each class.
    """

    task: str
    metric: str
    scores: Mapping[str, Mapping[str, float]]
    classes: Mapping[str, Sequence[ClassScores]] = field(default_factory=dict, repr=False)

    @property
    def score(self) -> float:
        """The metric that counts, on the first part of the data."""
        return next(iter(self.scores.values()))[self.metric]

    def _repr_html_(self) -> str:
        rows = []
        for part, metrics in self.scores.items():
            rows += [(self.task, part, name, value) for name, value in metrics.items()]
        tables = [html_table(rows, header=("task", "part", "metric", "score"))]
        tables += [html_classes(classes) for classes in self.classes.values()]
        return "\n".join(tables)


@dataclass(frozen=True)
class Predictions(Sequence[dict[str, Any]]):
    """One record for each input, in order: a label, an answer, tags or a choice.

    `pandas.DataFrame(predictions)` makes a table of them.
    """

    records: tuple[dict[str, Any], ...]

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Predictions: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | Predictions:
        if isinstance(index, slice):
            return Predictions(self.records[index])
        return self.records[index]

    def _repr_html_(self) -> str:
        header = list(dict.fromkeys(name for record in self.records for name in record))
        rows = [[record.get(name, "") for name in header] for record in self.records]
        return html_table(rows, header=header)


@dataclass(frozen=True, eq=False)
class Embeddings:
    """The vectors of texts. `numpy.asarray(embeddings)` is the array [texts, width].

    Attributes
    ----------
    texts
        The texts, in order.
    vectors
        An array [texts, width]; with `pool="tokens"` an array [tokens, width] for each text.
    """

    texts: tuple[str, ...]
    vectors: Array | tuple[Array, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.texts)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array: Array = np.array(self.vectors, dtype=dtype)
        return array

    def _repr_html_(self) -> str:
        rows = []
        for text, vector in zip(self.texts, self.vectors, strict=True):
            rows.append((text, str(np.shape(vector)), np.array2string(vector, threshold=4)))
        return html_table(rows, header=("text", "shape", "vector"))
