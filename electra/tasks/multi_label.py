"""Classification where a text has any number of labels, each predicted by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from electra.config import UserError, suggest_or_list
from electra.data.sources import warn
from electra.data.tables import find_column
from electra.model.weight_files import CONFIG
from electra.tasks.class_scores import ClassScores, class_scores
from electra.tasks.class_weights import positive_weights
from electra.tasks.classification_heads import LinearHead, MultiLabelHead
from electra.tasks.classify import Classify
from electra.tasks.features import Array, Features
from electra.tasks.labels import (
    LIST_TEXT,
    label_config,
    label_text,
    labels_from_config,
    list_labels,
    sort_labels,
    warn_of_doubtful_labels,
)
from electra.tasks.metrics import MULTI_LABEL_METRICS
from electra.tasks.texts import Columns, Text, TextTask

SEPARATORS = ("|", ";", ",")
SEPARATOR_NAMES = {"tab": "\t", "space": " "}
TRUTH = {"1": True, "0": False, "1.0": True, "0.0": False, "true": True, "false": False}
THRESHOLD = 0.5
MAX_CONSTANT = 20  # labels in an answer that ignores the text


@dataclass(frozen=True, kw_only=True)
class MultiLabel(Classify):
    """An answer is the probability of each label [labels]."""

    inference_options: ClassVar[tuple[str, ...]] = (
        *TextTask.inference_options,
        "label_separator",
        "threshold",
    )
    head_class: ClassVar[type[LinearHead]] = MultiLabelHead

    def __post_init__(self) -> None:
        if self.threshold is not None and not 0 < self.threshold < 1:
            raise UserError(f"--threshold {self.threshold:g}: must be between 0 and 1")
        if self.regression:
            raise UserError("--multi-label is for labels; leave out --regression, which is scores")

    # ---- labels ----------------------------------------------------------------------------------

    def label_columns(self, columns: Columns) -> tuple[str, ...]:
        return tuple(name.strip() for name in columns.label.split(","))

    def read_label(
        self, row: Mapping[str, Any], columns: Columns, where: str, *, labelled: bool
    ) -> tuple[str | None, tuple[str, ...] | None]:
        names = self.label_columns(columns)
        if len(names) > 1:
            return None, read_indicators(row, names, where)
        value = row.get(columns.label)
        if isinstance(value, (list, tuple)):
            return None, self.read_list(value, columns.label, where)
        label = label_text(value, where)
        if label is None and labelled:
            return None, ()
        if label is not None and labelled and LIST_TEXT.fullmatch(label):
            raise UserError(
                f"{where}: {columns.label!r} holds a list as text, {label[:40]!r}; write labels as "
                "a|b, or rows with lists to a .jsonl file"
            )
        return label, None

    def read_list(self, items: Sequence[Any], column: str, where: str) -> tuple[str, ...]:
        labels = []
        for item in items:
            label = label_text(item, where)
            if label is None:
                raise UserError(
                    f"{where}: {column!r} holds {item!r} in its list, which is no label; correct "
                    "it, or leave it out of the list"
                )
            labels.append(self.part_of(label))
        return tuple(dict.fromkeys(label for label in labels if label))

    def part_of(self, label: str) -> str:
        if self.label_part == "coarse":
            label = label.partition(":")[0]
        return label.strip()

    def labels_of(self, example: Text) -> tuple[str, ...]:
        """Return the labels of an example; none where it has none or they are not known."""
        if example.labels is not None or example.label is None:
            return example.labels or ()
        separator = self.label_separator or ""
        parts = [example.label]
        if separator:
            parts = example.label.split(SEPARATOR_NAMES.get(separator, separator))
        return tuple(dict.fromkeys(label for part in parts if (label := self.part_of(part))))

    def fit_labels(self, examples: Sequence[Text]) -> Self:
        task = self.remember_pair(examples)
        if task.label_separator is None:
            task = replace(task, label_separator=detect_separator(examples))
        counts = Counter(label for example in examples for label in task.labels_of(example))
        names = self.label_columns(Columns("", "", self.label, ""))
        labels = sort_labels(set(counts))
        if len(names) > 1:
            labels = names
        if len(counts) < 2:
            raise UserError(
                f"{examples[0].where}: {len(counts)} labels in {len(examples)} training rows "
                f"({', '.join(counts) or 'all are empty'}); --multi-label learns two or more. "
                "Check --label and --label-separator"
            )
        if all(len(task.labels_of(example)) < 2 for example in examples):
            warn(
                f"{examples[0].where}: none of the {len(examples):,} training rows has two labels; "
                "if a text has exactly one, leave out --multi-label. Check --label-separator"
            )
        warn_of_doubtful_labels(
            [(label, example.where) for example in examples for label in task.labels_of(example)]
        )
        task = replace(task, labels=self.labels or labels, regression=False).fit_metrics()
        task.check(examples)
        return task

    def fit_metrics(self) -> Self:
        """Return the task with its metrics; raise UserError for one that is not of labels."""
        metrics = self.metrics or tuple(MULTI_LABEL_METRICS)
        metric = self.metric or metrics[0]
        if metric not in MULTI_LABEL_METRICS:
            hint = suggest_or_list(metric, MULTI_LABEL_METRICS)
            raise UserError(f"metric {metric!r} does not fit a multi-label classification{hint}")
        return replace(self, metric=metric, metrics=metrics)

    def check(self, examples: Sequence[Text]) -> None:
        for example in examples:
            for label in self.labels_of(example):
                if label not in self.label2id:
                    raise UserError(
                        f"{example.where}: label {label!r} was never seen in training, where they "
                        f"are {list_labels(self.labels)}; correct it, add rows with it to the "
                        "training file, or check --label-separator"
                    )

    def stratum(self, example: Text) -> str:
        """Return the first label: whole sets of labels are often unique."""
        return min(self.labels_of(example), default="")

    def count_labels(self, examples: Sequence[Text]) -> list[int]:
        return [int(count) for count in self.indicators(examples).sum(axis=0)]

    def balance(self, examples: Sequence[Text]) -> tuple[float, ...]:
        return positive_weights(self.count_labels(examples), len(examples))

    def weight(self, features: Features) -> Array:
        """Return the number of labels: the loss is a mean over them too, as in transformers."""
        return np.full(len(features), float(len(self.labels)))

    def target(self, example: Text) -> list[float]:
        target = [0.0] * len(self.labels)
        for label in self.labels_of(example):
            if label in self.label2id:
                target[self.label2id[label]] = 1.0
        return target

    def indicators(self, examples: Sequence[Text]) -> Array:
        """Return which labels the examples have: bool [N, labels]."""
        rows = np.array([self.target(example) for example in examples], dtype=bool)
        return rows.reshape(len(examples), len(self.labels))

    @property
    def task_type(self) -> str:
        return "multi-label classification"

    @property
    def description(self) -> str:
        split = ""
        if self.label_separator:
            split = f", separated by {self.label_separator!r}"
        labels = f"{len(self.labels)} labels{split}: {list_labels(self.labels)}"
        return f"{self.task_type}, {labels}; given from probability {self.cut:g}{self.pair_note}"

    def with_transformers_config(self, config: Mapping[str, Any], *, folder: Path) -> Self:
        source = str(folder / CONFIG)
        labels = labels_from_config(config, default=self.labels, source=source)
        task = replace(self, labels=labels, regression=False, text_pair=self.text_pair or "")
        return task.fit_metrics()

    def config(self) -> dict[str, Any]:
        return {**label_config(self.labels), "problem_type": "multi_label_classification"}

    # ---- answers ---------------------------------------------------------------------------------

    @property
    def cut(self) -> float:
        """The probability from which a label is given."""
        if self.threshold is None:
            return THRESHOLD
        return self.threshold

    def activate(self, logits: Array) -> Array:
        # The tanh never overflows, whatever the logits are.
        return np.asarray(0.5 * (1.0 + np.tanh(0.5 * logits)))

    def compute_metric(
        self, name: str, examples: Sequence[Text], answers: Sequence[Array]
    ) -> float:
        probabilities = np.array(answers).reshape(len(examples), len(self.labels))
        return MULTI_LABEL_METRICS[name](
            self.indicators(examples), np.nan_to_num(probabilities), self.cut
        )

    def class_scores(self, examples: Sequence[Text], answers: Sequence[Array]) -> list[ClassScores]:
        given = np.array(answers).reshape(len(examples), len(self.labels)) >= self.cut
        return class_scores(self.labels, self.indicators(examples), given)

    def baseline(self, examples: Sequence[Text]) -> float:
        """Compute the score of the best of these: the most frequent set, the k most frequent."""
        true = self.indicators(examples)
        frequent = np.argsort(-true.sum(axis=0), kind="stable")
        sets = [np.array(Counter(map(tuple, true)).most_common(1)[0][0], dtype=float)]
        for count in range(min(MAX_CONSTANT, len(self.labels)) + 1):
            answer = np.zeros(len(self.labels))
            answer[frequent[:count]] = 1.0
            sets.append(answer)
        constant = [[answer] * len(examples) for answer in sets]
        return max(self.compute_metric(self.metric, examples, answers) for answers in constant)

    def record(self, example: Text, answer: Array) -> dict[str, Any]:
        record: dict[str, Any] = {}
        if example.id is not None:
            record["id"] = example.id
        pairs = list(zip(self.labels, map(float, answer), strict=True))
        record["labels"] = [label for label, probability in pairs if probability >= self.cut]
        record["probabilities"] = dict(pairs)
        if example.label is not None or example.labels is not None:
            record["gold"] = list(self.labels_of(example))
        return record


def read_indicators(
    row: Mapping[str, Any], names: Sequence[str], where: str
) -> tuple[str, ...] | None:
    """Return the labels whose columns hold 1; None where all columns are empty or missing."""
    labels, is_empty = [], True
    for name in names:
        value = row.get(find_column(row, name))
        text = label_text(value, where)
        if text is None:
            continue
        if text.lower() not in TRUTH:
            raise UserError(
                f"{where}: {name!r} holds {value!r}; a column of one label holds 1 or 0. A column "
                "that names labels is the only one of --label"
            )
        is_empty = False
        if TRUTH[text.lower()]:
            labels.append(name)
    if is_empty:
        return None
    return tuple(labels)


def detect_separator(examples: Sequence[Text]) -> str:
    """Return what separates the labels in one column; empty where there is nothing to separate."""
    found: dict[str, Text] = {}
    for example in examples:
        for separator in SEPARATORS:
            if example.label is not None and separator in example.label:
                found.setdefault(separator, example)
    if len(found) > 1:
        (one, first), (other, second), *_ = found.items()
        raise UserError(
            f"{first.where}: {first.label!r} could be separated by {one!r}, and {second.where}: "
            f"{second.label!r} by {other!r}; say which with --label-separator {one!r}"
        )
    return next(iter(found), "")
