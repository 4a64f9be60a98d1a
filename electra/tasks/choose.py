"""Multiple choice: what happens next (SWAG), what answers a question (RACE), or your own options.

Own data: a `context`, perhaps a `question`, `options` (a list in one column, or several columns)
and a `label`: the position of the right one from 0 or from 1, its letter from A, or its text.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from electra.config import UserError
from electra.data.lines import check_encodable
from electra.data.sources import warn
from electra.data.tables import Table, require_column, require_text
from electra.data.wordpiece import WordPiece
from electra.model.dropout import Dropout
from electra.model.encoder import initialise_glorot
from electra.model.gelu import gelu
from electra.model.weight_files import CONFIG
from electra.tasks.choice_files import (
    complete,
    first_position,
    option_index,
    parse_list,
    race_splits,
    read_questions,
)
from electra.tasks.features import Array, Features, Row, TaskBatch
from electra.tasks.splits import files_of, find_splits
from electra.tasks.task import Files, Head, Outputs, Task, softmax

DROPOUT = 0.1
# The columns of official files, and of the same data on the hub.
COLUMNS: dict[str, dict[str, Any]] = {
    "swag": {
        "context": "sent1",
        "question": "sent2",
        "options": ("ending0", "ending1", "ending2", "ending3"),
    },
    "race": {"context": "article", "question": "question", "label": "answer"},
    "choose": {},
}
IDS = ("id", "example_id")
WARNED_FROM = 10  # questions, if they all have the same answer


@dataclass(frozen=True, slots=True)
class Choice:
    """A question about a context. A completion is the question and an option, as one text."""

    where: str
    context: str
    completions: tuple[str, ...]
    options: tuple[str, ...]  # as the file has them
    answer: int | None = None
    id: str | None = None
    first_label: int = 0  # the number that the file gives the first option
    row: Mapping[str, Any] | None = field(default=None, compare=False)  # as read, to predict


@dataclass(frozen=True, kw_only=True)
class Choose(Task[Choice, Array]):
    """Each option is a row with one score. An answer is their softmax, probabilities [C]."""

    kind: ClassVar[str] = "choose"
    inputs: ClassVar[tuple[str, ...]] = ("context", "question", "options")
    inference_options: ClassVar[tuple[str, ...]] = (
        "context",
        "question",
        "options",
        "label",
        "first_label",
    )
    metric: str = "accuracy"
    context: str = "context"
    question: str = ""
    options: tuple[str, ...] = ("options",)  # one column with a list, or a column for each option
    label: str = "label"
    count: int = 0  # options of a question; 0 until fit_labels, and in a model that others trained
    first_label: int | None = None  # the number of the first option, 0 or 1; None: detected
    # A dense layer before the score, as transformers has it by default; ours have none.
    projected: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.first_label not in (None, 0, 1):
            raise UserError(
                f"--first-label {self.first_label}: positions are counted from 0 or from 1"
            )

    @property
    def metric_names(self) -> tuple[str, ...]:
        return ("accuracy",)

    @classmethod
    def from_name(cls, name: str, **options: Any) -> Self:
        return cls(name=name, **COLUMNS[name] | options)

    def with_windows(self) -> Self:
        raise UserError(
            f"--too-long window: {self.name} reads a context in one row with each option; use cut "
            "or refuse, or raise --length"
        )

    # ---- examples --------------------------------------------------------------------------------

    def locate(self, data: str) -> Files:
        return files_of(race_splits(Path(data).expanduser()) or find_splits(data))

    def read(self, tables: Sequence[Table], *, labelled: bool) -> Iterator[Choice]:
        if self.first_label is None and labelled and self.name == "choose":
            return self.with_first_label(tables).read(tables, labelled=True)
        return self.read_tables(tables, labelled=labelled)

    def read_tables(self, tables: Sequence[Table], *, labelled: bool) -> Iterator[Choice]:
        for where, question in read_questions(tables):
            yield self.choice(question, where, labelled=labelled)

    def with_first_label(self, tables: Sequence[Table]) -> Self:
        """Return the task with the number that the labels of these tables give the first option."""
        labels, count = set(), 0
        for where, question in read_questions(tables):
            options = self.read_options(question, where)
            label = str(question.get(self.label)).strip()
            if label in options:  # labels are texts, though these may be numbers
                return replace(self, first_label=0)
            labels.add(label)
            count = max(count, len(options))
        first_label = first_position(labels, count=count)
        if first_label is None:
            raise UserError(
                f"{tables[0]}: the labels of {count} options are {', '.join(sorted(labels))}; they "
                "may count from 0 or from 1; say which with --first-label 0 or --first-label 1"
            )
        return replace(self, first_label=first_label)

    def choice(self, row: Mapping[str, Any], where: str, *, labelled: bool) -> Choice:
        options = self.read_options(row, where)
        require_column(row, self.context, where, flag="--context")
        context = require_text(row, self.context, where)
        question = ""
        if self.question:
            require_column(row, self.question, where, flag="--question")
            question = require_text(row, self.question, where)
        completions = tuple(complete(question, option) for option in options)
        answer = self.read_answer(row, options, where, labelled=labelled)
        ids = [str(row[name]) for name in IDS if row.get(name) is not None]
        id, first = next(iter(ids), None), self.first_label or 0
        kept = None if labelled else row
        return Choice(where, context, completions, options, answer, id, first, kept)

    def read_options(self, row: Mapping[str, Any], where: str) -> tuple[str, ...]:
        """Return the options of a row; raise UserError unless there are as many as in others."""
        options = self.option_values(row, where)
        if not isinstance(options, (list, tuple)) or not all(
            isinstance(option, str) for option in options
        ):
            name = self.list_column if self.list_column in row else self.options[0]
            raise UserError(
                f"{where}: {name!r} holds {str(options)[:60]!r}; a list of texts is expected (in "
                'a table as JSON: ["one", "two"]), or a column for each option: --options a,b,c,d'
            )
        for option in options:
            check_encodable(option, where)
        self.check_count(len(options), where, expected=self.count)
        return tuple(options)

    def option_values(self, row: Mapping[str, Any], where: str) -> Any:
        """Return a row's list of options, or those of its columns that are not empty."""
        flag = "--options (--options a,b,c,d for a column each)"
        has_columns = any(name in row for name in self.options)
        if len(self.options) == 1 or (self.list_column in row and not has_columns):
            return parse_list(require_column(row, self.list_column, where, flag=flag))
        values = [require_column(row, name, where, flag=flag) for name in self.options]
        return [option for option in values if option not in (None, "")]

    @property
    def list_column(self) -> str:
        """The column with a list of options; rows may also have one where training had several."""
        if len(self.options) == 1:
            return self.options[0]
        return "options"

    def read_answer(
        self, row: Mapping[str, Any], options: Sequence[str], where: str, *, labelled: bool
    ) -> int | None:
        """Return the index of the right option; None where the row does not say."""
        if labelled:
            require_column(row, self.label, where, flag="--label")
        label = row.get(self.label)
        # The hub writes −1 for an answer that is kept secret.
        if label is None or label in ("", -1, "-1"):
            if labelled:
                raise UserError(
                    f"{where}: {self.label!r} is empty; every question to learn from or to score "
                    "needs its answer"
                )
            return None
        may_be_text, first = self.name == "choose", self.first_label or 0
        return option_index(label, options, where, may_be_text=may_be_text, first=first)

    def check_count(self, count: int, where: str, *, expected: int) -> None:
        if count < 2 or (expected and count != expected):
            raise UserError(
                f"{where}: {count} options where {expected or 'at least 2'} are expected; every "
                "question needs as many as those of the training data"
            )

    def fit_labels(self, examples: Sequence[Choice]) -> Self:
        """Return the task with the number of options, and the number that the first one has."""
        warn_of_one_answer(examples)
        count = self.count_options(examples)
        return replace(self, count=count, first_label=examples[0].first_label)

    def count_options(self, examples: Sequence[Choice]) -> int:
        """Return the number of options that every question has."""
        count = self.count or len(examples[0].options)
        for choice in examples:
            self.check_count(len(choice.options), choice.where, expected=count)
        return count

    def stratum(self, example: Choice) -> str:
        return str(example.answer)

    @property
    def description(self) -> str:
        return f"a choice among {self.count} options, scored by accuracy"

    def check(self, examples: Sequence[Choice]) -> None:
        for choice in examples:
            self.check_count(len(choice.options), choice.where, expected=self.count)
        warn_of_one_answer(examples)

    # ---- features and head -----------------------------------------------------------------------

    def features(
        self, examples: Sequence[Choice], tokenizer: WordPiece, *, length: int, training: bool
    ) -> Features:
        room, count = length - 3, self.count
        if examples:
            count = self.count_options(examples)
        texts: dict[str, None] = {}  # RACE asks several questions about one passage
        for choice in examples:
            texts |= dict.fromkeys((choice.context, *choice.completions))
        ids = dict(zip(texts, tokenizer.encode(list(texts)), strict=True))
        rows = []
        for index, choice in enumerate(examples):
            for completion in choice.completions:
                # The context gives way. Should a completion alone be too long, its end is what
                # tells it from others.
                second = ids[completion][-room:]
                first = ids[choice.context][: room - len(second)]
                row_ids = [tokenizer.cls, *first, tokenizer.sep, *second, tokenizer.sep]
                row = Row(index, array("i", row_ids), second_start=len(first) + 2)
                row.row_labels = {"target": choice.answer or 0, "options": count}
                row.truncated = len(ids[choice.context]) + len(ids[completion]) > room
                rows.append(row)
        return Features.from_rows(rows, num_choices=count)

    def head(self, width: int, *, dropout: float) -> ChoiceHead:
        return ChoiceHead(width, count=self.count, dropout=dropout, projected=self.projected)

    def config(self) -> dict[str, Any]:
        """By default transformers has a dense layer and gelu between [CLS] and the scores."""
        return {
            "summary_type": "first",
            "summary_use_proj": False,
            "summary_activation": "",
            "summary_first_dropout": 0.0,
            "summary_last_dropout": DROPOUT,
        }

    def with_transformers_config(self, config: Mapping[str, Any], *, folder: Path) -> Self:
        return replace(self, projected=has_projection(config, source=str(folder / CONFIG)))

    # ---- answers ---------------------------------------------------------------------------------

    def decode(
        self, examples: Sequence[Choice], features: Features, outputs: Sequence[Outputs]
    ) -> list[Array]:
        if not outputs:
            return []
        return list(softmax(np.stack([output["logits"] for output in outputs])))

    def combine(self, answers: Sequence[Array]) -> Array:
        mean: Array = np.mean(np.stack(answers), axis=0)
        return mean

    def score(self, examples: Sequence[Choice], answers: Sequence[Array]) -> dict[str, float]:
        pairs = zip(examples, answers, strict=True)
        correct = sum(int(answer.argmax()) == choice.answer for choice, answer in pairs)
        return {"accuracy": correct / max(1, len(examples))}

    def baseline(self, examples: Sequence[Choice]) -> float:
        counts = Counter(choice.answer for choice in examples)
        return max(counts.values(), default=0) / max(1, len(examples))

    def record(self, example: Choice, answer: Array) -> dict[str, Any]:
        best, first = int(answer.argmax()), example.first_label
        record: dict[str, Any] = {}
        if example.id is not None:
            record["id"] = example.id
        record["choice"] = best + first
        record["option"] = example.options[best]
        record["probabilities"] = [round(float(p), 6) for p in answer]
        if example.answer is not None:
            record["gold"] = example.answer + first
        return record


def warn_of_one_answer(examples: Sequence[Choice]) -> None:
    """Warn of questions whose right answer has always the same position."""
    answers = {choice.answer for choice in examples}
    if len(answers) == 1 and None not in answers and len(examples) >= WARNED_FROM:
        warn(
            f"{examples[0].where}: the right answer is the same option "
            f"({answers.pop()}, counted from 0) in all {len(examples):,} questions; a model "
            "can choose it without reading. Check --label, or shuffle the options"
        )


class ChoiceHead(Head):
    """Dropout on the vector of [CLS] and one linear layer to a score, the same for every option."""

    architecture: str | None = "MultipleChoice"

    def __init__(self, width: int, *, count: int, dropout: float, projected: bool = False) -> None:
        super().__init__()
        self.count = count
        self.dense = nn.Linear(width, width) if projected else None
        self.dropout = Dropout(dropout)
        self.output = nn.Linear(width, 1)
        initialise_glorot(self.output)

    def forward(self, hidden: Tensor, batch: TaskBatch) -> dict[str, Tensor]:
        vectors = hidden[:, 0]
        if self.dense is not None:
            vectors = gelu(self.dense(vectors))
        scores = self.output(self.dropout(vectors))[:, 0]
        # Rows without labels are the options of one question: transformers takes them so.
        if not batch.labels:
            return {"logits": scores[None]}
        count = self.count or int(batch.labels["options"][0])
        return {"logits": scores.reshape(-1, count)}  # [U, C]

    def loss(self, hidden: Tensor, batch: TaskBatch) -> Tensor:
        logits = self(hidden, batch)["logits"].float()
        return F.cross_entropy(logits, batch.labels["target"][:: logits.shape[1]], reduction="sum")


def has_projection(config: Mapping[str, Any], *, source: str) -> bool:
    """Say whether transformers puts a dense layer and gelu before the scores, as by default."""
    if config.get("model_type") != "electra":  # ModernBERT's prediction head is no part of ours
        return False
    summary = config.get("summary_type", "first")
    activation = config.get("summary_activation", "gelu")
    projected = config.get("summary_use_proj", True) is True
    expected = {True: "gelu", False: None}[projected]
    if summary != "first" or (activation or None) != expected:
        raise UserError(
            f"{source}: summary_type {summary!r} with summary_activation {activation!r}; only the "
            "first vector, through a dense layer with gelu or as it is, can be read"
        )
    return projected
