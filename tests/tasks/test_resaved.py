"""Folders of `electra finetune` that transformers saved again are read as it saved them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from electra.checksums import CHECKSUMS
from electra.config import UserError
from electra.data.tables import table_of_rows
from electra.tasks import find_task
from electra.tasks.inference import predict, stream_answers
from electra.tasks.models import load_tuned, save_tuned
from tests.tasks.test_modernbert import TASKS, toy_network
from tests.tasks.toys import toy_tokenizer

pytestmark = pytest.mark.usefixtures("few_threads")
ByHeart = Callable[[str], Path]
TEXT = "the dog sat in paris"


def resave(folder: Path, target: Path, head: str, **settings: Any) -> Path:
    """Load a folder in transformers with other settings, and save it again."""
    torch.manual_seed(0)
    stock_class = getattr(transformers, f"AutoModelFor{head}")
    options = {"ignore_mismatched_sizes": True, **settings}
    stock_class.from_pretrained(folder, **options).save_pretrained(target)
    toy_tokenizer().copy_to(target)
    return target


def answer(folder: Path) -> dict[str, float]:
    """Return the probabilities that ours gives to the classes."""
    model = load_tuned(folder)
    examples = model.task.read(
        [table_of_rows([("row", {"text": TEXT})], name="rows")], labelled=False
    )
    ((example, found),) = stream_answers([model], examples)
    probabilities: dict[str, float] = model.task.record(example, found)["probabilities"]
    return probabilities


def stock_answer(folder: Path) -> dict[str, float]:
    pipeline = transformers.pipeline("text-classification", model=str(folder), device="cpu")
    return {each["label"]: each["score"] for each in pipeline(TEXT, top_k=None)}


def named(*labels: str) -> dict[str, Any]:
    numbers = {label: number for number, label in enumerate(labels)}
    return {"id2label": dict(enumerate(labels)), "label2id": numbers}


@pytest.mark.parametrize(
    ("family", "settings", "changed"),
    [
        ("electra", named("x", "y"), "id2label"),
        ("electra", {"num_labels": 4}, "id2label"),
        ("modernbert", named("x", "y", "z"), "id2label"),
        ("modernbert", {"classifier_pooling": "cls"}, "classifier_pooling"),
    ],
    ids=["names", "number", "names-modernbert", "pooling"],
)
def test_the_last_save_decides_on_labels_and_pooling(
    by_heart: ByHeart, tmp_path: Path, family: str, settings: dict[str, Any], changed: str
) -> None:
    folder = load_tuned(by_heart("classes")).folder
    if family == "modernbert":
        folder = tmp_path / "ours"
        task = find_task("classify", pooling="mean", **TASKS["SequenceClassification"][1])
        network = toy_network(task, pooling="mean")
        save_tuned(network, task, toy_tokenizer(), folder, length=32, extra={})
    again = resave(folder, tmp_path / "again", "SequenceClassification", **settings)
    theirs = stock_answer(again)
    if "num_labels" in settings:  # of classes that nobody named
        theirs = {label.removeprefix("LABEL_"): share for label, share in theirs.items()}
    with pytest.warns(UserWarning, match=f"an earlier fine-tuning: it differs in {changed};"):
        ours = answer(again)
    assert ours == pytest.approx(theirs, abs=1e-5)


def test_an_unchanged_save_keeps_the_task_with_its_columns(
    by_heart: ByHeart, tmp_path: Path
) -> None:
    for name in ("classes", "scores", "tags", "simple", "choices"):
        model = load_tuned(by_heart(name))
        head = model.network.architecture
        assert head is not None
        again = resave(model.folder, tmp_path / name, head.removeprefix("ElectraFor"))
        assert load_tuned(again).task == model.task


def test_another_class_makes_another_task(by_heart: ByHeart, tmp_path: Path) -> None:
    folder = load_tuned(by_heart("classes")).folder
    labels = ("O", "B-x", "I-x")
    again = resave(folder, tmp_path / "again", "TokenClassification", **named(*labels))
    with pytest.warns(UserWarning, match="it differs in id2label, architectures;"):
        task: Any = load_tuned(again).task
    assert (task.kind, task.labels) == ("tag", labels)


def test_labels_that_no_class_of_transformers_holds_are_refused_where_the_file_was_edited(
    by_heart: ByHeart,
) -> None:
    folder = load_tuned(by_heart("frozen")).folder
    path = folder / "config.json"
    before, listed = path.read_bytes(), (folder / CHECKSUMS).read_bytes()
    path.write_text(json.dumps(json.loads(before) | named("O", "B-x", "B-y")))
    (folder / CHECKSUMS).unlink()
    try:
        with pytest.raises(UserError, match="differs in id2label; correct these keys"):
            list(predict([load_tuned(folder)], []))
    finally:
        path.write_bytes(before)
        (folder / CHECKSUMS).write_bytes(listed)
