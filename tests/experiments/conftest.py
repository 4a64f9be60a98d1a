"""Texts and labelled data small enough for every trial to run in seconds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import toy_text


@pytest.fixture(scope="session")
def toy_glue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SST-2 and RTE, eight examples each."""
    folder = tmp_path_factory.mktemp("glue")
    for name, header in (
        ("SST-2", "sentence\tlabel"),
        ("RTE", "index\tsentence1\tsentence2\tlabel"),
    ):
        (folder / name).mkdir()
        rows = [
            f"the old dog sees\t{n % 2}"
            if name == "SST-2"
            else f"{n}\tthe dog sees\tthe cat sees\t{'not_' * (n % 2)}entailment"
            for n in range(8)
        ]
        for split, animal in (("train", "dog"), ("dev", "horse")):
            text = "\n".join([header, *rows]).replace("dog", animal)
            (folder / name / f"{split}.tsv").write_text(f"{text}\n", encoding="utf8")
    return folder


@pytest.fixture(scope="session")
def toy_squad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both versions of SQuAD, four questions each."""
    folder = tmp_path_factory.mktemp("squad")
    context = "the old dog sees the green house ."
    for version in ("1.1", "2.0"):
        questions = [
            {
                "id": str(n),
                "question": "who sees ?",
                "answers": [{"text": "dog", "answer_start": 8}],
            }
            for n in range(4)
        ]
        if version == "2.0":
            questions[-1] |= {"answers": [], "is_impossible": True}
        whole = {
            "version": version,
            "data": [{"title": "toy", "paragraphs": [{"context": context, "qas": questions}]}],
        }
        for split, colour in (("train", "green"), ("dev", "brown")):
            text = json.dumps(whole).replace("green", colour)
            (folder / f"{split}-v{version}.json").write_text(text, encoding="utf8")
    return folder


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "toy.txt"
    path.write_text(toy_text(60), encoding="utf8")
    return path
