"""A text, or a pair of texts, becomes a class or a number: any table with a column of labels."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from electra.config import UserError, suggest_or_list
from electra.data.sources import warn
from electra.data.tables import (
    LocatedRow,
    Table,
    parse_number,
    read_lines,
    read_rows,
    require_column,
    require_text,
)
from electra.data.wordpiece import WordPiece
from electra.tasks.features import Array, Features, Row, pair
from electra.tasks.first_vector import ARCHITECTURE, LinearHead, StockHead, VectorHead
from electra.tasks.folders import splits
from electra.tasks.metrics import METRICS, OF_NUMBERS
from electra.tasks.task import Files, Outputs, Task

MOST_NUMBERED_CLASSES = 20  # more distinct whole numbers than this are taken for scores
SHOWN_CLASSES = 20
NO_LABEL = re.compile(
    r"([+-]?(nan|inf|infinity)|<na>)?", re.IGNORECASE
)  # a missing or broken number, in a table


@dataclass(frozen=True, slots=True)
class Text:
    """One row: its text or texts, and its label as the file spells it."""

    where: str
    first: str
    second: str | None = None
    label: str | None = None
    id: str | None = None


class Columns(NamedTuple):
    """Which columns of a row hold what; empty: there is none."""

    text: str
    text_pair: str
    label: str
    id: str


@dataclass(frozen=True, kw_only=True)
class Classify(Task[Text, Array]):
    """Answers are the probabilities of the classes [labels], or a score [1]."""

    kind: ClassVar[str] = "classify"
    inference_options: ClassVar[tuple[str, ...]] = ("text", "text_pair", "label")
    metric: str = ""  # empty until learnt, as are `metrics`, `labels` and `regression`
    text: str = "text"
    text_pair: str = ""
    label: str = "label"
    labels: tuple[str, ...] = ()
    regression: bool | None = None
    extent: tuple[float, ...] = ()  # of a regression: the least and the greatest label in training
    metrics: tuple[str, ...] = ()
    swapped: bool = False  # train on B, A as well as on A, B

    @classmethod
    def from_name(cls, name: str = "classify", **options: Any) -> Self:
        return cls(name=name, **options)

    # ---- reading ---------------------------------------------------------------------------------

    def locate(self, data: str) -> Files:
        found = splits(data)
        return Files(
            train=found.get("train", ()),
            dev={"dev": found["dev"]} if "dev" in found else {},
            test={"test": found["test"]} if "test" in found else {},
        )

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
        if (
            source.format == "text" and not labelled and not self.text_pair
        ):  # to be asked about: a text a line
            return ((where, {self.text: line}) for where, line in read_lines(source))
        return read_rows(source)

    def columns(self, row: Mapping[str, Any]) -> Columns:
        return Columns(self.text, self.text_pair, self.label, "id" if "id" in row else "")

    def example(self, row: Mapping[str, Any], where: str, *, labelled: bool) -> Text:
        columns = self.columns(row)
        for flag, name in zip(("--text", "--text-pair", "--label"), columns, strict=False):
            if name and (labelled or flag != "--label"):
                require_column(row, name, where, flag=flag)
        found = row.get(columns.label)
        label = self.meaning(spelled(found, where))
        if labelled and label is None:
            raise UserError(
                f"{where}: {columns.label!r} holds {found!r}, which is no label; fill it in, or "
                "leave the "
                "row out"
            )
        return Text(
            where,
            require_text(row, columns.text, where),
            require_text(row, columns.text_pair, where) if columns.text_pair else None,
            label,
            None if row.get(columns.id) is None else str(row[columns.id]),
        )

    def meaning(self, label: str | None) -> str | None:
        """The label that a spelling stands for."""
        return label

    # ---- what training examples tell -------------------------------------------------------------

    def fit_labels(self, examples: Sequence[Text]) -> Self:
        spellings = {example.label for example in examples if example.label is not None}
        if len(spellings) == 1:
            raise UserError(
                f"{examples[0].where}: all {len(examples)} training rows have the same label, "
                f"{spellings.pop()!r}; there is nothing to learn from fewer than two"
            )
        numbers = [parse_number(label) for label in spellings]
        regression = self.regression
        if regression is None:
            regression = (
                bool(numbers)
                and all(n is not None for n in numbers)
                and (
                    len(set(numbers)) > MOST_NUMBERED_CLASSES
                    or any(n != int(n) for n in numbers if n is not None)
                )
            )
        labels = () if regression else self.labels or in_order(spellings)
        metrics = self.metrics or (
            OF_NUMBERS if regression else ("accuracy", "f1" if len(labels) == 2 else "f1_macro")
        )
        values = [n for n in numbers if n is not None]
        learnt = replace(
            self,
            regression=regression,
            labels=labels,
            metrics=metrics,
            metric=self.metric or metrics[0],
            extent=(min(values), max(values)) if regression and values else (),
        )
        learnt.check_metric()
        learnt.check(examples)
        return learnt

    def check_metric(self) -> None:
        known = [name for name in METRICS if (name in OF_NUMBERS) == self.regression]
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
                    "regression; "
                    "mend it, or say --regression false for classes"
                )
            if not self.regression and example.label not in self.numbers:
                raise UserError(
                    f"{example.where}: label {example.label!r} was never seen in training, where "
                    "they are "
                    f"{shortened(self.labels)}; mend it, or add rows with it to the training file"
                )

    @property
    def task_type(self) -> str:
        return "regression" if self.regression else "classification"

    @property
    def description(self) -> str:
        """What was found in the labels, for the user to disagree with."""
        if self.regression:
            found = f", labels from {self.extent[0]} to {self.extent[1]}" if self.extent else ""
            return f"regression{found} (--regression false makes them classes)"
        more = f"; f1 is that of {self.labels[1]}" if "f1" in self.metrics else ""
        if len(self.labels) > 2 and all(parse_number(label) is not None for label in self.labels):
            more = " (--regression true makes them scores)"
        return f"classification, {len(self.labels)} classes: {shortened(self.labels)}{more}"

    # ---- rows and answers ------------------------------------------------------------------------

    def features(
        self, examples: Sequence[Text], tokenizer: WordPiece, *, length: int, training: bool
    ) -> Features:
        ids = tokenizer.encode(
            [e.first for e in examples] + [e.second for e in examples if e.second is not None]
        )
        firsts, seconds = ids[: len(examples)], iter(ids[len(examples) :])
        found = []
        for n, (example, first) in enumerate(zip(examples, firsts, strict=True)):
            second = None if example.second is None else next(seconds)
            orders = [(first, second)]
            if training and self.swapped and second is not None:
                orders.append((second, first))
            for a, b in orders:
                row, begins, was_cut = pair(tokenizer, a, b, length=length)
                found.append(Row(n, row, begins, {"target": self.target(example)}, was_cut=was_cut))
        return Features.of(found)

    def target(self, example: Text) -> float:
        if self.regression:
            return float(parse_number(example.label) or 0.0)
        return self.numbers.get(example.label or "", 0)

    @cached_property
    def numbers(self) -> dict[str, int]:
        return {label: n for n, label in enumerate(self.labels)}

    def head(self, width: int, *, dropout: float) -> VectorHead:
        return LinearHead(width, self.outputs, dropout=dropout, regression=bool(self.regression))

    def stored_head(self, width: int, *, architecture: str) -> VectorHead:
        if architecture == ARCHITECTURE:
            return StockHead(width, self.outputs, regression=bool(self.regression))
        return self.head(width, dropout=0.0)

    @property
    def outputs(self) -> int:
        return 1 if self.regression else len(self.labels)

    def decode(
        self, examples: Sequence[Text], features: Features, outputs: Sequence[Outputs]
    ) -> list[Array]:
        answers = (
            np.stack([output["logits"] for output in outputs])
            if outputs
            else np.zeros((0, self.outputs))
        )
        if not self.regression:
            grown = np.exp(answers - answers.max(axis=1, keepdims=True))
            answers = grown / grown.sum(axis=1, keepdims=True)
        summed = np.zeros((len(examples), self.outputs))
        np.add.at(summed, features.examples, answers)  # A, B and B, A are one example
        return list(summed / np.bincount(features.examples, minlength=len(examples))[:, None])

    def combine(self, answers: Sequence[Array]) -> Array:
        return np.asarray(np.mean(answers, axis=0))

    def score(self, examples: Sequence[Text], answers: Sequence[Array]) -> dict[str, float]:
        given = np.array([answer[0] if self.regression else answer.argmax() for answer in answers])
        true = np.array([self.target(example) for example in examples])
        return {
            name: METRICS[name](true, given) for name in dict.fromkeys((self.metric, *self.metrics))
        }

    def baseline(self, examples: Sequence[Text]) -> float:
        true = np.array([self.target(example) for example in examples])
        return max(
            METRICS[self.metric](true, np.full_like(true, answer)) for answer in range(self.outputs)
        )

    def record(self, example: Text, answer: Array) -> dict[str, Any]:
        found: dict[str, Any] = {} if example.id is None else {"id": example.id}
        if self.regression:
            gold = parse_number(example.label)
            return found | {"score": float(answer[0])} | ({} if gold is None else {"gold": gold})
        best = int(answer.argmax())
        found |= {
            "label": self.labels[best],
            "probability": float(answer[best]),
            "probabilities": {
                label: float(p) for label, p in zip(self.labels, answer, strict=True)
            },
        }
        return found | ({} if example.label is None else {"gold": example.label})

    def config(self) -> dict[str, Any]:
        names = ("score",) if self.regression else self.labels
        return {
            "id2label": {str(n): name for n, name in enumerate(names)},
            "label2id": {name: n for n, name in enumerate(names)},
            "problem_type": "regression" if self.regression else "single_label_classification",
        }


# ---- labels --------------------------------------------------------------------------------------


def spelled(value: Any, where: str) -> str | None:
    """A label as text, so that 1 in JSON and 1 in CSV are the same class; None where there is none."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return str(int(value)) if value.is_integer() else repr(value)
    if isinstance(value, (int, str)):
        label = str(value).strip()
        return None if NO_LABEL.fullmatch(label) else label
    if value is None:
        return None
    raise UserError(f"{where}: the label is a {type(value).__name__}; it must be text or a number")


def in_order(labels: set[str]) -> tuple[str, ...]:
    """By value where all are whole numbers, else by spelling."""
    if all(re.fullmatch(r"[+-]?\d{1,18}", label) for label in labels):
        return tuple(sorted(labels, key=lambda label: (int(label), label)))
    return tuple(sorted(labels))


def shortened(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - SHOWN_CLASSES} more" if len(labels) > SHOWN_CLASSES else ""
    return ", ".join(labels[:SHOWN_CLASSES]) + more
