"""A task of one's own is one class: how often does a word occur in a text? It is trained, saved and
asked like ours.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import electra
from electra import tasks
from electra.config import UserError
from electra.data.tables import Table, find_table, read_rows, require_column, require_text
from electra.data.wordpiece import WordPiece
from electra.finetuning.finetune import finetune
from electra.tasks import find_task
from electra.tasks.classification_heads import LinearHead
from electra.tasks.features import Array, Features, encode_pair
from electra.tasks.inference import predict
from electra.tasks.input_rows import input_row
from electra.tasks.input_text import as_file
from electra.tasks.models import load_tuned
from electra.tasks.splits import locate_files
from electra.tasks.task import Files, Outputs, Task
from tests.tasks.toys import BY_HEART, written
from tests.wording import wording_of

wording = wording_of(__file__)


@dataclass(frozen=True)
class Text:
    where: str
    text: str
    count: int
    row: dict[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, kw_only=True)
class HowMany(Task[Text, Array]):
    """Answers are the probabilities of none, one, two and three."""

    kind: ClassVar[str] = "how-many"
    inputs: ClassVar[tuple[str, ...]] = ("text",)
    name: str = "how-many"
    metric: str = "accuracy"

    @property
    def metric_names(self) -> tuple[str, ...]:
        return ("accuracy",)

    def locate(self, data: str) -> Files:
        return locate_files(data)

    def read(self, tables: Sequence[Table], *, labelled: bool) -> Iterator[Text]:
        for where, row in (row for table in tables for row in read_rows(table)):
            yield Text(
                where,
                require_text(row, "text", where),
                int(require_column(row, "count", where)) if labelled else 0,
                row,
            )

    def features(
        self, examples: Sequence[Text], tokenizer: WordPiece, *, length: int, training: bool
    ) -> Features:
        rows = []
        for number, (example, ids) in enumerate(
            zip(examples, tokenizer.encode([e.text for e in examples]), strict=True)
        ):
            row = encode_pair(number, tokenizer, ids, length=length)
            row.row_labels = {"target": example.count}
            rows.append(row)
        return Features.from_rows(rows)

    def head(self, width: int, *, dropout: float) -> LinearHead:
        head = LinearHead(width, 4, dropout=dropout, regression=False)
        head.architecture = None  # kept as it is, for us alone to read
        return head

    def decode(
        self, examples: Sequence[Text], features: Features, outputs: Sequence[Outputs]
    ) -> list[Array]:
        grown = [np.exp(output["logits"] - output["logits"].max()) for output in outputs]
        return [each / each.sum() for each in grown]

    def combine(self, answers: Sequence[Array]) -> Array:
        return np.asarray(np.mean(answers, axis=0))

    def score(self, examples: Sequence[Text], answers: Sequence[Array]) -> dict[str, float]:
        return {
            "accuracy": float(
                np.mean([a.argmax() == e.count for e, a in zip(examples, answers, strict=True)])
            )
        }

    def baseline(self, examples: Sequence[Text]) -> float:
        return max(np.bincount([e.count for e in examples])) / len(examples)

    def record(self, example: Text, answer: Array) -> dict[str, Any]:
        return {"count": int(answer.argmax()), "probability": float(answer.max())}


def test_a_task_of_ones_own_is_trained_saved_loaded_and_asked(
    tiny: Path, tmp_path: Path, few_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tasks.KINDS, "how-many", HowMany)
    data = written(
        tmp_path / "train.csv",
        "text,count\n"
        + "".join(
            f"{' '.join(['dog'] * count + ['cat'] * (3 - count))} ran {where},{count}\n"
            for count in range(4)
            for where in ("home", "to rome")
        ),
    )
    summary = finetune(
        tiny,
        HowMany(),
        output_dir=tmp_path / "run",
        train=[data],
        dev=[data],
        dev_on_train=True,
        flags=BY_HEART,
        quiet=True,
    )
    assert summary is not None
    assert (summary.task, summary.baseline, summary.median) == ("how-many", 0.25, 1.0)
    model = load_tuned(tmp_path / "run")
    assert model.task == HowMany()
    asked = written(tmp_path / "asked.jsonl", json.dumps({"text": "dog dog cat ran home"}) + "\n")
    assert [answer["count"] for answer in predict([model], [asked])] == [2]
    (answer,) = electra.load(tmp_path / "run").predict(["dog dog dog ran home"])
    assert (answer["text"], answer["count"]) == ("dog dog dog ran home", 3)
    monkeypatch.delitem(tasks.KINDS, "how-many")
    with pytest.raises(
        UserError, match=wording("a_model_of_a_task_that_is_not_imported_is_refused")
    ):
        load_tuned(tmp_path / "run")


def test_a_sentence_is_an_example_of_a_task_of_ones_own_that_reads_one_text() -> None:
    with as_file("dog cat ran", HowMany()) as path:
        assert [e.text for e in HowMany().read([find_table(path)], labelled=False)] == [
            "dog cat ran"
        ]


def test_a_task_that_does_not_say_its_columns_takes_rows_alone() -> None:
    class Silent(HowMany):
        inputs = ()

    with pytest.raises(UserError, match=wording("a_task_without_inputs_takes_no_bare_text")):
        input_row(Silent(), "dog", "inputs, row 1")
    with pytest.raises(UserError, match="in `inputs`"), as_file("dog cat ran", Silent()):
        pass


@pytest.mark.parametrize("task", [HowMany, partial(find_task, "span"), partial(find_task, "ner")])
def test_a_metric_that_a_task_is_not_scored_by_is_refused_before_training(
    task: Callable[..., Task[Any, Any]],
) -> None:
    with pytest.raises(UserError, match=wording("a_metric_that_the_task_has_not")):
        task(metric="kappa")
