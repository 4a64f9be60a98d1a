"""Choose among options: what happens next (SWAG), what answers the question (RACE), or any table
with options.

Own data: a `context`, perhaps a `question`, `options` (a list in one column, or several columns)
and a `label`: the position of the right one from 0, its letter from A, or its text.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from electra.config import UserError
from electra.data.corpus import check_encodable
from electra.data.tables import (
    LocatedRow,
    Table,
    find_table,
    read_json,
    read_rows,
    require_column,
    require_text,
)
from electra.data.wordpiece import WordPiece
from electra.model.dropout import Dropout
from electra.model.encoder import initialise
from electra.model.gelu import gelu
from electra.tasks.features import Array, Features, Row, TaskBatch
from electra.tasks.folders import Splits, splits
from electra.tasks.task import Files, Head, Outputs, Task

DROPOUT = 0.1
NAMED: dict[
    str, dict[str, Any]
] = {  # the columns of official files, and of the same data on the hub
    "swag": {
        "context": "sent1",
        "question": "sent2",
        "options": ("ending0", "ending1", "ending2", "ending3"),
    },
    "race": {"context": "article", "question": "question", "label": "answer"},
    "choose": {},
}
NAMES = tuple(NAMED)
LEVELS = ("middle", "high")  # of RACE: folders with a file for every passage
IDS = ("id", "example_id")


@dataclass(frozen=True, slots=True)
class Choice:
    """A question about a context. What completes the context is the question and an option, as one
    text.
    """

    where: str
    context: str
    completions: tuple[str, ...]
    options: tuple[str, ...]  # as the file has them
    answer: int | None = None
    id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Choose(Task[Choice, Array]):
    """One row for each option, one score for each row, a softmax over the scores: an answer is
    probabilities [C].
    """

    kind: ClassVar[str] = "choose"
    inference_options: ClassVar[tuple[str, ...]] = ("context", "question", "options", "label")
    metric: str = "accuracy"
    context: str = "context"
    question: str = ""
    options: tuple[str, ...] = ("options",)  # one column with a list, or a column for each option
    label: str = "label"
    count: int = 0  # options of a question; 0 until learnt, and in a model that others trained
    projected: bool = (
        False  # a dense layer before the score, as transformers has it by default; ours have none
    )

    @classmethod
    def from_name(cls, name: str, **options: Any) -> Self:
        return cls(name=name, **NAMED[name] | options)

    # ---- examples --------------------------------------------------------------------------------

    def locate(self, data: str) -> Files:
        found = passages(Path(data).expanduser()) or splits(data)
        return Files(
            train=found.get("train", ()),
            dev={"dev": found["dev"]} if "dev" in found else {},
            test={"test": found["test"]} if "test" in found else {},
        )

    def read(self, tables: Sequence[Table], *, labelled: bool) -> Iterator[Choice]:
        for source in tables:
            for where, row in whole_rows(source):
                for each in questions(row, where):
                    yield self.choice(each, where, labelled=labelled)

    def choice(self, row: Mapping[str, Any], where: str, *, labelled: bool) -> Choice:
        options = self.given_options(row, where)
        context = require_text(row, self.context, where)
        question = require_text(row, self.question, where) if self.question else ""
        given = require_column(row, self.label, where) if labelled else row.get(self.label)
        is_given = given is not None and given not in (
            "",
            -1,
            "-1",
        )  # the hub writes −1 for an answer kept secret
        if labelled and not is_given:
            raise UserError(
                f"{where}: {self.label!r} is empty; every question to learn from or to score "
                "needs its "
                "answer"
            )
        name = next((name for name in IDS if row.get(name) is not None), None)
        answer = (
            position(given, options, where, may_be_text=self.name == "choose") if is_given else None
        )
        return Choice(
            where,
            context,
            tuple(completed(question, option) for option in options),
            options,
            answer,
            None if name is None else str(row[name]),
        )

    def given_options(self, row: Mapping[str, Any], where: str) -> tuple[str, ...]:
        """The options of a row, as many as in any other."""
        named = [require_column(row, name, where) for name in self.options]
        listed = (
            named[0]
            if len(named) == 1
            else [option for option in named if option not in (None, "")]
        )
        if not isinstance(listed, (list, tuple)) or not all(
            isinstance(option, str) for option in listed
        ):
            raise UserError(
                f"{where}: {self.options[0]!r} holds {str(listed)[:60]!r}; a list of texts is "
                "expected, or "
                "a column for each option: --options a,b,c,d"
            )
        for option in listed:
            check_encodable(option, where)
        self.check_count(len(listed), where, expected=self.count)
        return tuple(listed)

    def check_count(self, found: int, where: str, *, expected: int) -> None:
        if found < 2 or (expected and found != expected):
            raise UserError(
                f"{where}: {found} options where {expected or 'at least 2'} are expected; every "
                "question "
                "needs as many as those of the training data"
            )

    def fit_labels(self, examples: Sequence[Choice]) -> Self:
        count = self.count or len(examples[0].options)
        for choice in examples:
            self.check_count(len(choice.options), choice.where, expected=count)
        return replace(self, count=count)

    @property
    def description(self) -> str:
        """What was learnt from the training data, in a line."""
        return f"a choice among {self.count} options, scored by accuracy"

    def check(self, examples: Sequence[Choice]) -> None:
        for choice in examples:
            self.check_count(len(choice.options), choice.where, expected=self.count)

    # ---- features --------------------------------------------------------------------------------

    def features(
        self, examples: Sequence[Choice], tokenizer: WordPiece, *, length: int, training: bool
    ) -> Features:
        room, count = length - 3, self.fit_labels(examples).count if examples else self.count
        unique = list(
            {part: None for choice in examples for part in (choice.context, *choice.completions)}
        )
        ids = dict(
            zip(unique, tokenizer.encode(unique), strict=True)
        )  # RACE asks several questions about one passage
        made = []
        for number, choice in enumerate(examples):
            for completion in choice.completions:
                # The context gives way. Should a completion alone be too long, its end is what
                # tells it from others.
                second = ids[completion][-room:]
                first = ids[choice.context][: room - len(second)]
                row = array(
                    "i", [tokenizer.cls, *first, tokenizer.sep, *second, tokenizer.sep]
                )  # half the size of a list
                made.append(
                    Row(
                        number,
                        row,
                        second=len(first) + 2,
                        values={"target": choice.answer or 0, "options": count},
                        was_cut=len(ids[choice.context]) + len(ids[completion]) > room,
                    )
                )
        return Features.of(made, together=count)

    def head(self, width: int, *, dropout: float) -> ChoiceHead:
        return ChoiceHead(width, count=self.count, dropout=dropout, projected=self.projected)

    def config(self) -> dict[str, Any]:
        """By default transformers puts a dense layer and gelu between the first vector and the
        scores.
        """
        return {
            "summary_type": "first",
            "summary_use_proj": False,
            "summary_activation": "",
            "summary_first_dropout": 0.0,
            "summary_last_dropout": DROPOUT,
        }

    # ---- answers ---------------------------------------------------------------------------------

    def decode(
        self, examples: Sequence[Choice], features: Features, outputs: Sequence[Outputs]
    ) -> list[Array]:
        scores = (
            np.stack([output["logits"] for output in outputs])
            if outputs
            else np.zeros((0, self.count))
        )
        odds = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return list(odds / odds.sum(axis=-1, keepdims=True))

    def combine(self, answers: Sequence[Array]) -> Array:
        mean: Array = np.mean(np.stack(answers), axis=0)
        return mean

    def score(self, examples: Sequence[Choice], answers: Sequence[Array]) -> dict[str, float]:
        right = sum(
            int(answer.argmax()) == choice.answer
            for choice, answer in zip(examples, answers, strict=True)
        )
        return {"accuracy": right / max(1, len(examples))}

    def baseline(self, examples: Sequence[Choice]) -> float:
        counts = Counter(choice.answer for choice in examples)
        return max(counts.values(), default=0) / max(1, len(examples))

    def record(self, example: Choice, answer: Array) -> dict[str, Any]:
        best = int(answer.argmax())
        return {
            **({"id": example.id} if example.id is not None else {}),
            "choice": best,
            "option": example.options[best],
            "probabilities": [round(float(p), 6) for p in answer],
            **({"gold": example.answer} if example.answer is not None else {}),
        }


class ChoiceHead(Head):
    """Dropout on the first vector and one linear layer to a score, the same for every option."""

    architecture: str | None = "ElectraForMultipleChoice"

    def __init__(self, width: int, *, count: int, dropout: float, projected: bool = False) -> None:
        super().__init__()
        self.count = count
        self.dense = nn.Linear(width, width) if projected else None
        self.dropout = Dropout(dropout)
        self.output = nn.Linear(width, 1)
        initialise(self.output)

    def forward(self, hidden: Tensor, batch: TaskBatch) -> dict[str, Tensor]:
        vectors = hidden[:, 0] if self.dense is None else gelu(self.dense(hidden[:, 0]))
        scores = self.output(self.dropout(vectors))[:, 0]
        # Bare rows, without a column, are the options of one question: this is how transformers
        # takes them.
        if not batch.labels:
            return {"logits": scores[None]}
        return {
            "logits": scores.reshape(-1, self.count or int(batch.labels["options"][0]))
        }  # [U, C]

    def loss(self, hidden: Tensor, batch: TaskBatch) -> Tensor:
        logits = self(hidden, batch)["logits"].float()
        return F.cross_entropy(logits, batch.labels["target"][:: logits.shape[1]], reduction="sum")


# ---- files ---------------------------------------------------------------------------------------


def passages(folder: Path) -> Splits:
    """RACE as it was released: train/high/1.txt and so on, one JSON object for a passage and its
    questions.
    """
    found: Splits = {}
    for split in ("train", "dev", "test"):
        files = [
            path for level in LEVELS for path in sorted((folder / split / level).glob("*.txt"))
        ]
        if files:
            found[split] = tuple(find_table(path, format="json") for path in files)
    return found


def whole_rows(source: Table) -> Iterator[LocatedRow]:
    """Rows; a file that is one JSON value is a row itself, or a list of rows."""
    if source.format not in ("json", "text"):
        yield from read_rows(source)
        return
    found = read_json(source)
    for number, row in enumerate(found if isinstance(found, list) else [found], start=1):
        if not isinstance(row, dict):
            raise UserError(
                f"{source}: a JSON object, or a list of them, is expected; found "
                f"{type(row).__name__}"
            )
        yield f"{source}, row {number}" if isinstance(found, list) else str(source), row


def questions(row: dict[str, Any], where: str) -> Iterator[dict[str, Any]]:
    """RACE keeps the questions about a passage together; each becomes a row."""
    if not isinstance(row.get("questions"), list):
        yield row
        return
    columns = {"question": row["questions"], "options": require_column(row, "options", where)}
    columns |= {"answer": row["answers"]} if row.get("answers") is not None else {}
    for name, values in columns.items():
        if not isinstance(values, list) or len(values) != len(row["questions"]):
            raise UserError(
                f"{where}: {len(row['questions'])} questions, but {name!r} is not a list of as many"
            )
    for number, values in enumerate(zip(*columns.values(), strict=True)):
        numbered = {"id": f"{row['id']}-{number}"} if "id" in row else {}
        yield row | dict(zip(columns, values, strict=True)) | numbered


def completed(question: str, option: str) -> str:
    """The question with its one blank (`_`) filled, or the option after it."""
    if len(re.findall("_+", question)) == 1:
        return re.sub("_+", lambda _: option, question)
    return f"{question} {option}" if question else option


def position(label: Any, options: Sequence[str], where: str, *, may_be_text: bool) -> int:
    """Which option a label means: a number counts from 0, a letter from A; otherwise it may be an
    option's text.
    """
    said, letters = str(label).strip(), [chr(ord("A") + place) for place in range(len(options))]
    places = [
        place for place, option in enumerate(options) if may_be_text and option.strip() == said
    ]
    named = (
        letters.index(said.upper())
        if said.upper() in letters
        else int(said)
        if said.isdecimal()
        else -1
    )
    if 0 <= named < len(options):
        if isinstance(label, str) and places and named not in places:
            raise UserError(
                f"{where}: label {label!r} is a position and also the text of option {places[0]} "
                "(from 0); "
                f"write {letters[named]!r} or {letters[places[0]]!r} for the one that is meant"
            )
        return named
    if len(places) != 1:
        found = "the text of several options" if places else "none of the options"
        raise UserError(
            f"{where}: label {label!r} is {found}; write a number from 0 to {len(options) - 1}, a "
            "letter "
            f"from A to {letters[-1]}, or the text of one option"
        )
    return places[0]
