"""Classification and regression of a text or a pair of texts: any table with a column of labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import numpy as np

from electra import tasks
from electra.config import UserError, build, suggest_or_list
from electra.data.sources import warn
from electra.data.tables import parse_number
from electra.data.wordpiece import WordPiece
from electra.model.family import OTHER_MODEL
from electra.model.weight_files import CONFIG
from electra.settings import as_flag
from electra.tasks.class_scores import ClassScores, class_scores, indicators
from electra.tasks.class_weights import balanced_weights, parse_weights
from electra.tasks.classification_heads import (
    ARCHITECTURE,
    ClassificationHead,
    ElectraClassificationHead,
    LinearHead,
)
from electra.tasks.features import Array, Features, encode_pair, split_windows
from electra.tasks.labels import (
    are_scores,
    check_score,
    class_metrics,
    label_config,
    labels_from_config,
    list_labels,
    merge_spellings,
    number_labels,
    sort_labels,
    unknown_label,
    warn_of_doubtful_labels,
    warn_of_possible_scores,
)
from electra.tasks.metrics import (
    METRICS,
    PROBABILITY_METRICS,
    SCORE_METRICS,
    TWO_CLASS_METRICS,
    direction,
)
from electra.tasks.task import Outputs, softmax
from electra.tasks.texts import Text, TextTask

WARNED_FROM = 10  # rows to score on, if they all have the same label


@dataclass(frozen=True, kw_only=True)
class Classify(TextTask):
    """An answer is the probabilities of the classes [labels], or a score [1]."""

    kind: ClassVar[str] = "classify"
    head_class: ClassVar[type[LinearHead]] = LinearHead
    metric: str = ""  # set by fit_labels, as are `metrics`, `labels`, `regression` and `extent`
    labels: tuple[str, ...] = ()
    regression: bool | None = None
    # of a regression: the least and the greatest label, by default of the training data
    extent: tuple[float, ...] = ()
    metrics: tuple[str, ...] = ()
    swapped: bool = False  # train on B, A as well as on A, B
    windows: bool | None = None  # read a long text in several rows, whose answers are averaged
    # balanced, or LABEL=WEIGHT,… ; None: every example counts the same
    class_weights: str | None = None
    label_weights: tuple[float, ...] | None = None  # in the order of `labels`; set by fit_weights
    multi_label: bool | None = None  # a row has any number of labels: electra.tasks.multi_label
    label_separator: str | None = None  # of several labels in one column; None: detected
    threshold: float | None = None  # the probability from which a label is given; None: 0.5

    @classmethod
    def from_name(cls, name: str = "classify", **options: Any) -> Self:
        return cls.class_for(options)(name=name, **options)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        plain = {key: value for key, value in settings.items() if key != "kind"}
        return build(cls.class_for(settings), plain, source="electra_task")

    @classmethod
    def class_for(cls, options: Mapping[str, Any]) -> type[Self]:
        """Return the class for rows of one label, or of several where the options say so."""
        if cls is not Classify:
            return cls
        for name in ("label_separator", "threshold"):
            if options.get(name) is not None and not options.get("multi_label"):
                raise UserError(f"{as_flag(name)} goes with --multi-label")
        if not options.get("multi_label"):
            return cls
        return cast(type[Self], tasks.import_task(tasks.MULTI_LABEL))

    def with_windows(self) -> Self:
        return replace(self, windows=True)

    @property
    def has_windows(self) -> bool:
        return bool(self.windows)

    # ---- labels ----------------------------------------------------------------------------------

    def fit_labels(self, examples: Sequence[Text]) -> Self:
        spellings = {example.label for example in examples if example.label is not None}
        if not self.regression:
            spellings = merge_spellings(spellings)
        if len(spellings) == 1:
            raise UserError(
                f"{examples[0].where}: all {len(examples)} training rows have the same label, "
                f"{spellings.pop()!r}; there is nothing to learn from fewer than two"
            )
        task = self.remember_pair(examples).with_scores(spellings)
        if not task.regression:
            warn_of_doubtful_labels([(each.label or "", each.where) for each in examples])
            labels = self.labels or sort_labels(spellings)
            task = replace(task, labels=labels, metrics=self.metrics or class_metrics(labels))
        task = replace(task, metric=self.metric or task.metrics[0])
        task.check_metric()
        task.check(examples)
        return task

    def fit_weights(self, examples: Sequence[Text]) -> Self:
        if self.class_weights is None:
            return self
        if self.regression:
            raise UserError("--class-weights is for classes, and these labels are scores")
        weights = parse_weights(self.class_weights, self.labels)
        return replace(self, label_weights=weights or self.balance(examples))

    def balance(self, examples: Sequence[Text]) -> tuple[float, ...]:
        """Return the weights with which all classes weigh the same."""
        counts = Counter(self.canonical_label(example.label) for example in examples)
        return balanced_weights([counts[label] for label in self.labels])

    def weight(self, features: Features) -> Array:
        if self.label_weights is None:
            return super().weight(features)
        return np.array(self.label_weights)[features.row_labels["target"]]

    def stratum(self, example: Text) -> str:
        if self.regression:
            return ""
        return self.canonical_label(example.label) or ""

    def with_scores(self, spellings: set[str]) -> Self:
        """Return the task as a regression on these labels, if it is one."""
        numbers = [parse_number(label) for label in spellings]
        values = [value for value in numbers if value is not None]
        regression = self.regression
        if regression is None:
            regression = len(values) == len(numbers) and are_scores(values)
            if not regression:
                warn_of_possible_scores(spellings)
        if not regression:
            return replace(self, regression=False, extent=())
        extent = self.extent
        if values and not extent:
            extent = min(values), max(values)
        metrics = self.metrics or SCORE_METRICS
        return replace(self, regression=True, labels=(), extent=extent, metrics=metrics)

    def check_metric(self) -> None:
        """Raise UserError for a metric that does not fit the labels."""
        known = [name for name in METRICS if (name in SCORE_METRICS) == self.regression]
        for name in (self.metric, *self.metrics):
            if name not in known:
                raise UserError(
                    f"metric {name!r} does not fit a {self.task_type}{suggest_or_list(name, known)}"
                )
            if name in TWO_CLASS_METRICS and len(self.labels) != 2:
                raise UserError(
                    f"metric {name!r} needs two classes, and there are {len(self.labels)}; use "
                    "f1_macro"
                )

    def check(self, examples: Sequence[Text]) -> None:
        for example in examples:
            if example.label is None:
                continue
            if self.regression:
                check_score(example.label, example.where, column=self.label)
            elif example.label not in self.label2id:
                is_stock = self.text_pair is None
                message = unknown_label(example.label, self.labels, is_stock=is_stock)
                raise UserError(f"{example.where}: {message}")

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
            return f"regression{extent} (--regression false makes them classes){self.pair_note}"
        more = ""
        if "f1" in self.metrics:
            more = f"; f1 is that of {self.labels[1]}"
        if len(self.labels) > 2 and all(parse_number(label) is not None for label in self.labels):
            more = " (--regression true makes them scores)"
        more += self.pair_note
        return f"classification, {len(self.labels)} classes: {list_labels(self.labels)}{more}"

    @property
    def weights_note(self) -> str:
        if self.label_weights is None:
            return ""
        pairs = zip(self.labels, self.label_weights, strict=True)
        return f"class weights: {list_labels([f'{label} {weight:.3g}' for label, weight in pairs])}"

    @cached_property
    def label2id(self) -> dict[str, int]:
        return number_labels(self.labels)

    def canonical_label(self, label: str | None) -> str | None:
        number = self.label2id.get(label or "")
        return label if number is None else self.labels[number]

    def target(self, example: Text) -> float | Sequence[float]:
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
        head = self.head_class(
            width,
            self.num_outputs,
            dropout=dropout,
            regression=bool(self.regression),
            extent=self.extent,
        )
        if self.label_weights is not None:
            head.set_class_weights(self.label_weights)
        return head

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
        if config.get("problem_type") == "multi_label_classification":
            several = self.from_settings(self.settings() | {"multi_label": True})
            several = several.with_transformers_config(config, folder=folder)
            return replace(several, text_pair=self.text_pair)
        labels = labels_from_config(config, default=self.labels, source=str(folder / CONFIG))
        if self.labels and len(self.labels) != len(labels):
            raise UserError(
                f"{folder} tells {len(labels)} classes apart ({', '.join(labels)}), and "
                f"{self.name} has {len(self.labels)}: {', '.join(self.labels)}"
            )
        is_regression = config.get("problem_type") == "regression"
        if is_regression and len(labels) > 1:
            raise UserError(
                f"{folder / CONFIG}: problem_type is 'regression' and id2label has {len(labels)} "
                f"scores; only models of one score can be loaded; {OTHER_MODEL}"
            )
        if is_regression or len(labels) == 1:
            metrics = self.metrics or SCORE_METRICS
            task = replace(self, labels=(), regression=True, metrics=metrics)
        else:
            metrics = self.metrics or class_metrics(labels)
            task = replace(self, labels=labels, regression=False, metrics=metrics)
        return replace(task, metric=self.metric or metrics[0])

    # ---- answers ---------------------------------------------------------------------------------

    def decode(
        self, examples: Sequence[Text], features: Features, outputs: Sequence[Outputs]
    ) -> list[Array]:
        answers = np.zeros((0, self.num_outputs))
        if outputs:
            answers = np.array([output["logits"] for output in outputs])
        answers = self.activate(answers)
        summed = np.zeros((len(examples), self.num_outputs))
        np.add.at(summed, features.examples, answers)  # A, B and B, A; windows of A
        return list(summed / np.bincount(features.examples, minlength=len(examples))[:, None])

    def activate(self, logits: Array) -> Array:
        """Return logits as probabilities; the scores of a regression as they are."""
        if self.regression:
            return logits
        return softmax(logits)

    def combine(self, answers: Sequence[Array]) -> Array:
        return np.asarray(np.mean(answers, axis=0))

    def score(self, examples: Sequence[Text], answers: Sequence[Array]) -> dict[str, float]:
        names = dict.fromkeys((self.metric, *self.metrics))
        return {name: self.compute_metric(name, examples, answers) for name in names}

    def compute_metric(
        self, name: str, examples: Sequence[Text], answers: Sequence[Array]
    ) -> float:
        true = np.array([self.target(example) for example in examples])
        if self.regression:
            predicted = np.array([answer[0] for answer in answers])
        elif name in PROBABILITY_METRICS:
            predicted = np.array([answer[1] for answer in answers])
        else:
            predicted = np.array([answer.argmax() for answer in answers])
        return METRICS[name](true, predicted)

    def class_scores(self, examples: Sequence[Text], answers: Sequence[Array]) -> list[ClassScores]:
        if self.regression:
            return []
        true = np.array([self.target(example) for example in examples], dtype=np.int64)
        predicted = np.array([answer.argmax() for answer in answers], dtype=np.int64)
        count = len(self.labels)
        return class_scores(self.labels, indicators(true, count), indicators(predicted, count))

    def baseline(self, examples: Sequence[Text]) -> float:
        constants = list(np.eye(self.num_outputs))
        if self.regression:
            labels = [self.target(example) for example in examples]
            constants = [np.array([np.mean(labels)]), np.array([np.median(labels)])]
        scores = []
        for answer in constants:
            scores.append(self.compute_metric(self.metric, examples, [answer] * len(examples)))
        return max(scores, key=lambda score: direction(self.metric) * score)

    def record(self, example: Text, answer: Array) -> dict[str, Any]:
        record: dict[str, Any] = {}
        if example.id is not None:
            record["id"] = example.id
        gold: str | float | None = self.canonical_label(example.label)
        if self.regression:
            record["score"] = float(answer[0])
            gold = parse_number(example.label)
        else:
            best, probabilities = int(answer.argmax()), answer.tolist()
            record["label"] = self.labels[best]
            record["probability"] = probabilities[best]
            record["probabilities"] = dict(zip(self.labels, probabilities, strict=True))
        if gold is not None:
            record["gold"] = gold
        return record
