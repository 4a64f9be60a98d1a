"""Classifiers that transformers made: pairs, lengths, labels, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

import electra
from electra.config import UserError
from tests.tasks.test_models import stock_folder

pytestmark = pytest.mark.usefixtures("few_threads")
CLASSES = {"id2label": {0: "cats", 1: "dogs"}, "label2id": {"cats": 0, "dogs": 1}}
PAIR = {"text": "anna lives in paris", "text_pair": "the cat sat on a mat"}


def classifier(folder: Path, **settings: Any) -> Path:
    return stock_folder(folder, "ElectraForSequenceClassification", **CLASSES | settings)


def stock_answer(folder: Path, given: object) -> dict[str, float]:
    pipeline = transformers.pipeline("text-classification", model=str(folder), device="cpu")
    if "problem_type" in json.loads((folder / "config.json").read_text()):
        return {each["label"]: each["score"] for each in pipeline([given], top_k=None)[0]}
    return {each["label"]: each["score"] for each in pipeline(given, top_k=None)}


@pytest.mark.parametrize("settings", [{}, {"problem_type": "multi_label_classification"}], ids=str)
def test_the_second_text_is_read_where_the_first_row_has_one(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    folder = classifier(tmp_path / "stock", **settings)
    model = electra.load(folder)
    theirs = {each: stock_answer(folder, PAIR)[each] for each in ("cats", "dogs")}
    (pair,) = model.predict([PAIR])
    assert pair["probabilities"] == pytest.approx(theirs, abs=1e-5)
    (single,) = model.predict([{"text": PAIR["text"]}])
    (left_out,) = model.predict([PAIR], text_pair="")
    assert single["probabilities"] == left_out["probabilities"] != pair["probabilities"]
    (bare,) = model.predict([tuple(PAIR.values())], text_pair="text_pair")
    assert bare["probabilities"] == pair["probabilities"]
    with pytest.raises(UserError, match=r'row 1.*set text_pair="text_pair"'):
        model.predict([tuple(PAIR.values())])


def test_labelled_pairs_are_scored_as_pairs(tmp_path: Path) -> None:
    folder = classifier(tmp_path / "stock")
    (pair,) = electra.load(folder).predict([PAIR])
    (scores,) = electra.evaluate(folder, [PAIR | {"label": pair["label"]}]).scores.values()
    assert scores["accuracy"] == 1.0


@pytest.mark.parametrize("stated", [None, 600, 10**30], ids=["nothing", "600", "no-limit"])
def test_a_text_is_read_to_the_length_that_transformers_reads(
    tmp_path: Path, stated: int | None
) -> None:
    folder = classifier(tmp_path / "stock", max_position_embeddings=1024)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config.pop("model_max_length", None)
    if stated is not None:
        config["model_max_length"] = stated
    path.write_text(json.dumps(config))
    text = "the cat sat on a mat " * 150  # 900 tokens
    if stated == 600:
        with pytest.warns(UserWarning, match=r"1 of 1 texts are longer than the 600 tokens that"):
            (ours,) = electra.load(folder).predict([text])
    else:
        (ours,) = electra.load(folder).predict([text])
    pipeline = transformers.pipeline("text-classification", model=str(folder), device="cpu")
    theirs = {each["label"]: each["score"] for each in pipeline(text, top_k=None, truncation=True)}
    assert ours["probabilities"] == pytest.approx(theirs, abs=1e-5)


def test_classes_of_one_name_are_refused(tmp_path: Path) -> None:
    folder = classifier(tmp_path / "stock", id2label={0: "a", 1: "a", 2: "b"}, label2id={"a": 1})
    with pytest.raises(UserError, match=r"config\.json: id2label gives several classes the name"):
        electra.load(folder)


def test_models_of_different_labels_are_refused_when_they_are_loaded(tmp_path: Path) -> None:
    first = classifier(tmp_path / "first")
    tagger = stock_folder(tmp_path / "second", "ElectraForTokenClassification", **CLASSES)
    message = r"first is of task classify \(cats, dogs\), and .*second is of task tag \(cats, dogs"
    with pytest.raises(UserError, match=message):
        electra.load([first, tagger])


def test_a_label_in_another_case_is_refused_with_the_spelling_of_the_model(tmp_path: Path) -> None:
    folder = classifier(tmp_path / "stock")
    for label, remedy in (("Cats", "spell it 'cats'"), ("birds", "correct it")):
        message = rf"label '{label}' is none of id2label in .* are cats, dogs; {remedy}, or rename"
        with pytest.raises(UserError, match=message):
            electra.evaluate(folder, [{"text": "a", "label": label}])


def test_several_scores_are_refused(tmp_path: Path) -> None:
    folder = classifier(tmp_path / "stock", problem_type="regression")
    with pytest.raises(UserError, match="id2label has 2 scores; only models of one score"):
        electra.load(folder)
