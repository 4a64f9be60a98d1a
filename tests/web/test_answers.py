"""The answers of fine-tuned models of every kind, and inputs that they refuse."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from electra.api.model import load
from electra.checksums import CHECKSUMS
from electra.tasks.choose import Choose
from electra.tasks.models import load_tuned
from electra.web.answers import Answerer, TextNotes
from electra.web.models import load_model
from electra.web.requests import Limits, RequestError


def answers(client: TestClient, address: str, *inputs: Any) -> list[dict[str, Any]]:
    answer = client.post(f"{address}/predict", json={"inputs": inputs})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["answers"])


def test_classes_are_those_of_electra_predict(
    client: TestClient, api: dict[str, str], folders: dict[str, Path]
) -> None:
    texts = ["the dog sat", "a cat ran home", ""]
    said = answers(client, api["classes"], *texts[:1], {"text": texts[1]}, texts[2])
    for answer, expected in zip(said, load(folders["classes"]).predict(texts), strict=True):
        assert answer["label"] == expected["label"]
        assert answer["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-6)
        assert answer["cut"] is False


def test_a_pair_gets_a_score(
    client: TestClient, api: dict[str, str], folders: dict[str, Path]
) -> None:
    (said,) = answers(client, api["scores"], {"text": "the dog", "text_pair": "a cat"})
    (expected,) = load(folders["scores"]).predict([("the dog", "a cat")])
    assert said["score"] == pytest.approx(expected["score"], abs=1e-6)


def test_an_answer_is_found_in_its_passage(client: TestClient, api: dict[str, str]) -> None:
    context = "😀 the dog ran home . anna lives in paris . " * 3
    (said,) = answers(client, api["spans"], {"question": "who lives in paris", "context": context})
    units = context.encode("utf-16-le")
    for found in (said, *said["alternatives"]):
        part = units[2 * found["start"] : 2 * found["end"]].decode("utf-16-le")
        assert part == found["answer"]
        assert 0 <= found["probability"] <= 1
    assert said["answer"]


def test_words_are_tagged_where_they_stand(client: TestClient, api: dict[str, str]) -> None:
    sentence = "  anna\tlives in 😀 paris "
    said, same = answers(client, api["tags"], sentence, {"tokens": sentence.split()})
    assert [token["text"] for token in said["tokens"]] == sentence.split()
    assert [token["tag"] for token in said["tokens"]] == [token["tag"] for token in same["tokens"]]
    assert said["tokens"][-1]["start"] == 19
    assert same["tokens"][-1]["start"] == 17
    for entity in said["entities"]:
        units = sentence.encode("utf-16-le")
        part = units[2 * entity["start"] : 2 * entity["end"]].decode("utf-16-le")
        assert part == entity["text"]
        assert entity["label"] in ("PER", "LOC")


def test_options_are_ranked(client: TestClient, api: dict[str, str]) -> None:
    options = ["paris", "the dog", "a mat"]
    (said,) = answers(client, api["choices"], {"context": "anna lives in", "options": options})
    assert said["choice"] == max(range(3), key=said["probabilities"].__getitem__)
    assert said["option"] == options[said["choice"]]
    assert sum(said["probabilities"]) == pytest.approx(1.0, abs=1e-5)


def test_a_text_gets_any_number_of_labels(client: TestClient, api: dict[str, str]) -> None:
    (said,) = answers(client, api["labels"], "the dog ran home")
    likely = [label for label, probability in said["probabilities"].items() if probability >= 0.5]
    assert said["labels"] == likely
    assert list(said["probabilities"]) == ["a", "b", "c"]


def test_a_text_that_was_cut_says_so(client: TestClient, api: dict[str, str]) -> None:
    long, short = answers(client, api["classes"], "the dog " * 40, "the dog")
    assert long["cut"] is True
    assert short["cut"] is False


def test_a_text_that_is_mostly_unknown_says_so(client: TestClient, api: dict[str, str]) -> None:
    said = answers(client, api["classes"], "\N{CLOUD} \N{CLOUD} dog", "the dog \N{CLOUD}", "")
    assert [answer["mostly_unknown"] for answer in said] == [True, False, False]


def test_the_answers_stand_in_the_order_of_the_inputs(
    client: TestClient, api: dict[str, str]
) -> None:
    texts = [f"{'dog ' * (number % 7)} cat {'mat ' * (number % 5)}" for number in range(64)]
    together = answers(client, api["classes"], *texts)
    for text, answer in zip(texts[:12], together, strict=False):
        (alone,) = answers(client, api["classes"], text)
        assert alone["probabilities"] == pytest.approx(answer["probabilities"], abs=1e-6)


@pytest.mark.parametrize(
    ("name", "given", "status", "part"),
    [
        ("classes", {"text": "a", "text_pair": "b"}, 400, 'give a string or {"text": …}'),
        ("classes", {"txt": "a"}, 400, "unknown key 'txt'; did you mean text?"),
        ("classes", {"review": "a"}, 400, "unknown key 'review'; known are text."),
        ("classes", {"text": "a", "text_pair": "b"}, 400, "takes no text_pair"),
        ("choices", {"review": "a"}, 400, "known are context, options."),
        ("classes", 3, 400, "inputs[0] is a number"),
        ("classes", {"text": None}, 400, "'text' is null"),
        ("classes", "a" * 20_001, 413, "20,001 characters, where at most 20,000"),
        ("scores", "a", 400, 'give {"text": …, "text_pair": …}'),
        ("scores", {"text": "a"}, 400, 'give {"text": …, "text_pair": …}'),
        ("spans", "a", 400, 'give {"question": …, "context": …}'),
        ("spans", {"question": "a"}, 400, "'context' is missing"),
        ("tags", "  ", 400, "has no words"),
        ("tags", {"tokens": ["a b"]}, 400, "white space"),
        ("tags", {"tokens": ["a"], "text": "a"}, 400, 'give a string or {"tokens": […]}'),
        ("tags", {"tokens": "a"}, 400, "must be an array of strings"),
        ("choices", {"context": "a", "options": ["b", "c"]}, 400, "2 options where 3"),
        ("choices", {"context": "a", "options": ["b", 1, "c"]}, 400, "'options'[1] is a number"),
        ("choices", {"context": "a", "question": "b", "options": []}, 400, "takes no question"),
    ],
)
def test_an_input_that_a_model_cannot_take_is_refused_with_the_remedy(
    client: TestClient, api: dict[str, str], name: str, given: Any, status: int, part: str
) -> None:
    answer = client.post(f"{api[name]}/predict", json={"inputs": [given]})
    assert answer.status_code == status, answer.text
    assert part in answer.json()["error"]


def test_a_model_of_option_columns_says_how_many_options_it_takes(
    folders: dict[str, Path],
) -> None:
    model = load_tuned(folders["choices"])
    task = Choose(name="choose", options=("a", "b", "c"), count=3)
    answerer = Answerer(replace(model, task=task), takes_any=False, device=torch.device("cpu"))
    (given,) = answerer.parse({"inputs": [{"context": "x", "options": ["1", "2", "3"]}]}, Limits())
    assert given.example.options == ("1", "2", "3")
    with pytest.raises(RequestError, match=r"inputs\[0\]: 2 options where 3 are expected"):
        answerer.parse({"inputs": [{"context": "x", "options": ["1", "2"]}]}, Limits())


@pytest.mark.parametrize(
    ("body", "status"),
    [({}, 400), ({"inputs": []}, 400), ({"inputs": ["a"] * 65}, 413), ({"input": ["a"]}, 400)],
)
def test_a_body_without_inputs_or_with_too_many_is_refused(
    client: TestClient, api: dict[str, str], body: Any, status: int
) -> None:
    assert client.post(f"{api['classes']}/predict", json=body).status_code == status


def test_a_stock_model_takes_a_text_or_a_pair(folders: dict[str, Path], tmp_path: Path) -> None:
    stock = tmp_path / "stock"
    shutil.copytree(folders["classes"], stock)
    (stock / CHECKSUMS).unlink()
    config = json.loads((stock / "config.json").read_text(encoding="utf8"))
    ours = [key for key in config if key.startswith("electra_")]
    plain = {key: value for key, value in config.items() if key not in ours}
    (stock / "config.json").write_text(json.dumps(plain), encoding="utf8")
    model = load_model(str(stock), Limits())
    answerer = model.answerer_for_inputs()
    assert model.describe()["takes"] == "text or pair"
    inputs = answerer.parse({"inputs": ["a", {"text": "a", "text_pair": "b"}]}, Limits())
    (single, _), (pair, _) = answerer.answer([each.example for each in inputs])
    notes = TextNotes(cut=False, mostly_unknown=False)
    said = [answerer.describe(each, single, notes)["label"] for each in inputs]
    assert set(said) <= {"cats", "dogs"}
    assert not np.allclose(np.asarray(single), np.asarray(pair), atol=1e-4)
