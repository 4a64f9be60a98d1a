"""A task of one's own is one class: how often does a word occur in a text? It is trained, saved and
asked like ours.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from electra import tasks
from electra.data.tables import Table, read_rows, require_column, require_text
from electra.data.wordpiece import WordPiece
from electra.finetuning.finetune import finetune
from electra.tasks.classification_heads import LinearHead
from electra.tasks.features import Array, Features, encode_pair
from electra.tasks.inference import predict
from electra.tasks.models import load_tuned
from electra.tasks.splits import locate_files
from electra.tasks.task import Files, Outputs, Task
from tests.tasks.toys import BY_HEART, written


@dataclass(frozen=True)
class Text:
    where: str
    text: str
    count: int


@dataclass(frozen=True, kw_only=True)
class HowMany(Task[Text, Array]):
    """Answers are the probabilities of none, one, two and three."""

    kind: ClassVar[str] = "how-many"
    name: str = "how-many"
    metric: str = "accuracy"

    def locate(self, data: str) -> Files:
        return locate_files(data)

    def read(self, tables: Sequence[Table], *, labelled: bool) -> Iterator[Text]:
        for where, row in (row for table in tables for row in read_rows(table)):
            yield Text(
                where,
                require_text(row, "text", where),
                int(require_column(row, "count", where)) if labelled else 0,
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
