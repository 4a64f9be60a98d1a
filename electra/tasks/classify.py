"""Classification and regression of a text or a pair of texts: any table with a column of labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np

from electra.config import UserError, suggest_or_list
from electra.data.sources import warn
from electra.data.table_layout import has_columns
from electra.data.tables import (
    LocatedRow,
    Table,
    find_column,
    parse_number,
    read_lines,
    read_rows,
    require_column,
    require_text,
)
from electra.data.wordpiece import WordPiece
from electra.model.weight_files import CONFIG
from electra.tasks.classification_heads import (
    ARCHITECTURE,
    ClassificationHead,
    ElectraClassificationHead,
    LinearHead,
)
from electra.tasks.conll import refuse_conll
from electra.tasks.features import Array, Features, encode_pair, split_windows
from electra.tasks.labels import (
    are_scores,
    class_metrics,
    label_config,
    label_text,
    labels_from_config,
    list_labels,
    sort_labels,
)
from electra.tasks.metrics import METRICS, REGRESSION_METRICS
from electra.tasks.splits import locate_files
from electra.tasks.task import Files, Outputs, Task

WARNED_FROM = 10  # rows to score on, if they all have the same label


@dataclass(frozen=True, slots=True)
class Text:
    """One row: its text or texts, and its label as the file spells it."""

    where: str
    first: str
    second: str | None = None
    label: str | None = None
    id: str | None = None
    row: Mapping[str, Any] | None = field(default=None, compare=False)  # as read, to predict


class Columns(NamedTuple):
    """The columns of a row; empty where there is none."""

    text: str
    text_pair: str
    label: str
    id: str


@dataclass(frozen=True, kw_only=True)
class Classify(Task[Text, Array]):
    """An answer is the probabilities of the classes [labels], or a score [1]."""

    kind: ClassVar[str] = "classify"
    inference_options: ClassVar[tuple[str, ...]] = (
        "text",
        "text_pair",
        "label",
        "label_part",
        "delimiter",
        "header",
    )
    metric: str = ""  # set by fit_labels, as are `metrics`, `labels`, `regression` and `extent`
    text: str = "text"
    text_pair: str = ""
    label: str = "label"
    labels: tuple[str, ...] = ()
    regression: bool | None = None
    # of a regression: the least and the greatest label, by default of the training data
    extent: tuple[float, ...] = ()
    metrics: tuple[str, ...] = ()
    swapped: bool = False  # train on B, A as well as on A, B
    windows: bool | None = None  # read a long text in several rows, whose answers are averaged
    # coarse: only what stands before the first colon
    label_part: Literal["fine", "coarse"] | None = None
    delimiter: str | None = None  # of files with columns; None: detected
    header: bool | None = None  # whether the first line names the columns; None: detected

    @classmethod
    def from_name(cls, name: str = "classify", **options: Any) -> Self:
        return cls(name=name, **options)

    def with_windows(self) -> Self:
        return replace(self, windows=True)

    # ---- reading ---------------------------------------------------------------------------------

    def locate(self, data: str) -> Files:
        return locate_files(data)

    def read(self, tables: Sequence[Table], *, labelled: bool) -> Iterator[Text]:
        for source in tables:
            blank = 0
            for where, row in self.rows(source, labelled=labelled):
                example = self.example(row, where, labelled=labelled)
                blank += not (example.first + (example.second or "")).strip()
                yield example
            if blank:
                warn(f"{source}: {blank} rows hold no text; they are kept")

    def rows(self, source: Table, *, labelled: bool) -> Iterator[LocatedRow]:
        """Yield the rows of a table; plain text without labels has one text a line."""
        refuse_conll(source)
        columns = [name for name in (self.text, self.text_pair) if name]
        may_be_plain = source.format == "text" and not (labelled or self.delimiter)
        if may_be_plain and not self.text_pair and not has_columns(source.source, columns):
            return ((where, {self.text: line}) for where, line in read_lines(source))
        if labelled:
            columns.append(self.label)
        table = replace(source, delimiter=self.delimiter or "", header=self.header)
        return read_rows(table, columns=columns)

    def columns(self, row: Mapping[str, Any]) -> Columns:
        """Return the columns that a row's texts and label are in."""
        text, text_pair, label = (
            find_column(row, name) for name in (self.text, self.text_pair, self.label)
        )
        return Columns(text, text_pair, label, "id" if "id" in row else "")

    def example(self, row: Mapping[str, Any], where: str, *, labelled: bool) -> Text:
        columns = self.columns(row)
        for flag, name in zip(("--text", "--text-pair", "--label"), columns, strict=False):
            if name and (labelled or flag != "--label"):
                require_column(row, name, where, flag=flag)
        value = row.get(columns.label)
        label = self.canonical_label(label_text(value, where))
        if label and self.label_part == "coarse":
            label = label.partition(":")[0]
        if labelled and label is None:
            raise UserError(
                f"{where}: {columns.label!r} holds {value!r}, which is no label; fill it in, or "
                "leave the row out"
            )
        first, second, id = require_text(row, columns.text, where), None, row.get(columns.id)
        if columns.text_pair:
            second = require_text(row, columns.text_pair, where)
        if id is not None:
            id = str(id)
        return Text(where, first, second, label, id, None if labelled else row)

    def canonical_label(self, label: str | None) -> str | None:
        """Return the label that a spelling stands for."""
        return label

    # ---- labels ----------------------------------------------------------------------------------

    def fit_labels(self, examples: Sequence[Text]) -> Self:
        spellings = {example.label for example in examples if example.label is not None}
        if len(spellings) == 1:
            raise UserError(
                f"{examples[0].where}: all {len(examples)} training rows have the same label, "
                f"{spellings.pop()!r}; there is nothing to learn from fewer than two"
            )
        task = self.with_scores(spellings)
        if not task.regression:
            labels = self.labels or sort_labels(spellings)
            task = replace(task, labels=labels, metrics=self.metrics or class_metrics(labels))
        task = replace(task, metric=self.metric or task.metrics[0])
        task.check_metric()
        task.check(examples)
        return task

    def stratum(self, example: Text) -> str:
        if self.regression:
            return ""
        return example.label or ""

    def with_scores(self, spellings: set[str]) -> Self:
        """Return the task as a regression on these labels, if it is one."""
        numbers = [parse_number(label) for label in spellings]
        values = [value for value in numbers if value is not None]
        regression = self.regression
        if regression is None:
            regression = len(values) == len(numbers) and are_scores(values)
        if not regression:
            return replace(self, regression=False, extent=())
        extent = self.extent
        if values and not extent:
            extent = min(values), max(values)
        metrics = self.metrics or REGRESSION_METRICS
        return replace(self, regression=True, labels=(), extent=extent, metrics=metrics)

    def check_metric(self) -> None:
        """Raise UserError for a metric that does not fit the labels."""
        known = [name for name in METRICS if (name in REGRESSION_METRICS) == self.regression]
        for name in (self.metric, *self.metrics):
            if name not in known:
                raise UserError(
                    f"metric {name!r} is none of a {self.task_type}{suggest_or_list(name, known)}"
                )
        if "f1" in (self.metric, *self.metrics) and len(self.labels) != 2:
            raise UserError(
                f"metric 'f1' is of two classes, and there are {len(self.labels)}; use f1_macro"
            )

    def check(self, examples: Sequence[Text]) -> None:
        for example in examples:
            if example.label is None:
                continue
            if self.regression and parse_number(example.label) is None:
                raise UserError(
                    f"{example.where}: label {example.label!r} is not a number, and this is a "
                    "regression; correct it, or say --regression false for classes"
                )
            if not self.regression and example.label not in self.label2id:
                raise UserError(
                    f"{example.where}: label {example.label!r} was never seen in training, where "
                    f"they are {list_labels(self.labels)}; correct it, or add rows with it to the "
                    "training file"
                )

        labels = {example.label for example in examples}
        if len(labels) == 1 and None not in labels and len(examples) >= WARNED_FROM:
            warn(
                f"{examples[0].where}: all {len(examples):,} rows have the label {labels.pop()!r}; "
                "an answer that ignores the text is right about all of them. Check --label"
            )

    @property
    def task_type(self) -> str:
        return "regression" if self.regression else "classification"

    @property
    def description(self) -> str:
        if self.regression:
            extent = ""
            if self.extent:
                extent = f", labels from {self.extent[0]} to {self.extent[1]}"
            return f"regression{extent} (--regression false makes them classes)"
        more = ""
        if "f1" in self.metrics:
            more = f"; f1 is that of {self.labels[1]}"
        if len(self.labels) > 2 and all(parse_number(label) is not None for label in self.labels):
            more = " (--regression true makes them scores)"
        return f"classification, {len(self.labels)} classes: {list_labels(self.labels)}{more}"

    @cached_property
    def label2id(self) -> dict[str, int]:
        return {label: number for number, label in enumerate(self.labels)}

    def target(self, example: Text) -> float:
        """Return the index of an example's class, or its score; 0 where it has no label."""
        if self.regression:
            return float(parse_number(example.label) or 0.0)
        return self.label2id.get(example.label or "", 0)

    # ---- features and head -----------------------------------------------------------------------

    def features(
        self, examples: Sequence[Text], tokenizer: WordPiece, *, length: int, training: bool
    ) -> Features:
        pairs = [example.second for example in examples if example.second is not None]
        ids = tokenizer.encode([example.first for example in examples] + pairs)
        firsts, seconds = ids[: len(examples)], iter(ids[len(examples) :])
        encoded = []
        for index, (example, first) in enumerate(zip(examples, firsts, strict=True)):
            orders: list[tuple[Sequence[int], Sequence[int] | None]] = [(first, None)]
            if example.second is not None:
                second = next(seconds)
                orders = [(first, second)]
                if training and self.swapped:
                    orders.append((second, first))
            for order in orders:
                parts = [order]
                if self.windows:
                    parts = split_windows(*order, length=length)
                for a, b in parts:
                    row = encode_pair(index, tokenizer, a, b, length=length)
                    row.row_labels = {"target": self.target(example)}
                    encoded.append(row)
        return Features.from_rows(encoded)

    @property
    def num_outputs(self) -> int:
        return 1 if self.regression else len(self.labels)

    def head(self, width: int, *, dropout: float) -> ClassificationHead:
        return LinearHead(
            width,
            self.num_outputs,
            dropout=dropout,
            regression=bool(self.regression),
            extent=self.extent,
        )

    def stored_head(self, width: int, *, architecture: str) -> ClassificationHead:
        regression = bool(self.regression)
        if architecture != f"ElectraFor{ARCHITECTURE}":
            return LinearHead(width, self.num_outputs, dropout=0.0, regression=regression)
        return ElectraClassificationHead(width, self.num_outputs, regression=regression)

    def config(self) -> dict[str, Any]:
        if self.regression:
            return {**label_config(("score",)), "problem_type": "regression"}
        return {**label_config(self.labels), "problem_type": "single_label_classification"}

    def with_transformers_config(self, config: Mapping[str, Any], *, folder: Path) -> Self:
        labels = labels_from_config(config, default=self.labels, source=str(folder / CONFIG))
        if self.labels and len(self.labels) != len(labels):
            raise UserError(
                f"{folder} tells {len(labels)} classes apart ({', '.join(labels)}), and "
                f"{self.name} has {len(self.labels)}: {', '.join(self.labels)}"
            )
        if config.get("problem_type") == "regression" or len(labels) == 1:
            metrics = self.metrics or ("spearmanr",)
            task = replace(self, labels=(), regression=True, metrics=metrics)
        else:
            metrics = self.metrics or ("accuracy",)
            task = replace(self, labels=labels, regression=False, metrics=metrics)
        return replace(task, metric=self.metric or metrics[0])

    # ---- answers ---------------------------------------------------------------------------------

    def decode(
        self, examples: Sequence[Text], features: Features, outputs: Sequence[Outputs]
    ) -> list[Array]:
        answers = np.zeros((0, self.num_outputs))
        if outputs:
            answers = np.stack([output["logits"] for output in outputs])
        if not self.regression:
            exponentials = np.exp(answers - answers.max(axis=1, keepdims=True))
            answers = exponentials / exponentials.sum(axis=1, keepdims=True)
        summed = np.zeros((len(examples), self.num_outputs))
        np.add.at(summed, features.examples, answers)  # A, B and B, A; windows of A
        return list(summed / np.bincount(features.examples, minlength=len(examples))[:, None])

    def combine(self, answers: Sequence[Array]) -> Array:
        return np.asarray(np.mean(answers, axis=0))

    def score(self, examples: Sequence[Text], answers: Sequence[Array]) -> dict[str, float]:
        if self.regression:
            predicted = np.array([answer[0] for answer in answers])
        else:
            predicted = np.array([answer.argmax() for answer in answers])
        true = np.array([self.target(example) for example in examples])
        names = dict.fromkeys((self.metric, *self.metrics))
        return {name: METRICS[name](true, predicted) for name in names}

    def baseline(self, examples: Sequence[Text]) -> float:
        true = np.array([self.target(example) for example in examples])
        metric = METRICS[self.metric]
        return max(metric(true, np.full_like(true, answer)) for answer in range(self.num_outputs))

    def record(self, example: Text, answer: Array) -> dict[str, Any]:
        record: dict[str, Any] = {}
        if example.id is not None:
            record["id"] = example.id
        gold: str | float | None = example.label
        if self.regression:
            record["score"] = float(answer[0])
            gold = parse_number(example.label)
        else:
            best = int(answer.argmax())
            pairs = zip(self.labels, answer, strict=True)
            record["label"] = self.labels[best]
            record["probability"] = float(answer[best])
            record["probabilities"] = {label: float(probability) for label, probability in pairs}
        if gold is not None:
            record["gold"] = gold
        return record
