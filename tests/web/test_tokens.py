"""Hiding words, sampling them, and judging every token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

from electra.config import UserError
from electra.model.families import build_networks
from electra.model.huggingface import Role, save
from electra.model.networks import Discriminator, Generator
from electra.model.shape import EncoderShape, GeneratorShape
from electra.objectives.trace import Pair
from electra.web.tokens import TokenNetworks, TokensRequest, load_networks, utf16_offsets
from tests.tasks.toys import tiny_model, toy_tokenizer

TEXT = "Anna lives in Paris, 😀 the dog ran home."


@pytest.fixture(scope="module")
def networks(pair: Path) -> TokenNetworks:
    folders = [pair / "generator", pair / "discriminator"]
    return load_networks(folders, device=torch.device("cpu"))


def ask(client: TestClient, address: str, **body: Any) -> dict[str, Any]:
    answer = client.post(f"{address}/tokens", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_words_and_tokens_have_the_places_of_javascript(
    client: TestClient, api: dict[str, str]
) -> None:
    answer = ask(client, api["pair"], text=TEXT)
    units = TEXT.encode("utf-16-le")
    for part in (*answer["words"], *answer["tokens"]):
        said = units[2 * part["start"] : 2 * part["end"]].decode("utf-16-le")
        assert said == part.get("text", said) or "word" in part
    assert [
        word["text"] for word in answer["words"]
    ] == "Anna lives in Paris , 😀 the dog ran home .".split()
    assert {token["word"] for token in answer["tokens"]} == set(range(11))


def test_a_hidden_word_gets_five_candidates_and_a_sample(
    client: TestClient, api: dict[str, str]
) -> None:
    answer = ask(client, api["pair"], text=TEXT, hidden=[3], seed=7)
    (token,) = [token for token in answer["tokens"] if token["hidden"]]
    probabilities = [candidate["probability"] for candidate in token["candidates"]]
    assert token["text"] == "paris"
    assert len(probabilities) == 5
    assert probabilities == sorted(probabilities, reverse=True)
    assert token["sampled"]["is_original"] == (token["sampled"]["text"] == "paris")
    sampled = token["sampled"]["text"].removeprefix("##")
    assert answer["filled"] == TEXT.replace("Paris", sampled)
    shown = [token for token in answer["tokens"] if not token["hidden"]]
    assert all(token["sampled"] is token["candidates"] is None for token in shown)


def test_the_same_seed_samples_the_same_word_alone_and_in_a_batch(networks: TokenNetworks) -> None:
    asked = TokensRequest(TEXT, (0, 3, 7), seed=5, temperature=1.0)
    others = [
        TokensRequest("the dog " * count, (1,), seed=count, temperature=0.5)
        for count in range(1, 9)
    ]
    (alone,) = networks.read([asked])
    together = networks.read([*others, asked])[-1]
    assert isinstance(alone, dict)
    assert isinstance(together, dict)
    assert together["filled"] == alone["filled"]
    for one, other in zip(alone["tokens"], together["tokens"], strict=True):
        assert one["replaced"] == pytest.approx(other["replaced"], abs=1e-6)


def test_another_seed_samples_another_word(networks: TokenNetworks) -> None:
    requests = [TokensRequest(TEXT, (3,), seed=seed, temperature=1.0) for seed in range(8)]
    assert len({str(answer) for answer in networks.read(requests)}) > 1


def test_a_low_temperature_samples_the_best_candidate(networks: TokenNetworks) -> None:
    (answer,) = networks.read([TokensRequest(TEXT, (3,), seed=1, temperature=0.01)])
    assert isinstance(answer, dict)
    (token,) = [token for token in answer["tokens"] if token["hidden"]]
    assert token["sampled"]["text"] == token["candidates"][0]["text"]


def test_the_discriminator_says_of_a_text_what_electra_show_says(
    networks: TokenNetworks, pair: Path
) -> None:
    both = Pair(pair)
    traces = [both.trace("anna lives in paris", seed=seed)[1:-1] for seed in range(9)]
    # A sampled piece of a word cannot be typed.
    traced = next(trace for trace in traces if all("##" not in t.corrupted for t in trace))
    corrupted = " ".join(token.corrupted for token in traced)
    (answer,) = networks.read([TokensRequest(corrupted, (), seed=0, temperature=1.0)])
    assert isinstance(answer, dict)
    said = [token["replaced"] for token in answer["tokens"]]
    assert said == pytest.approx([token.p_replaced for token in traced], abs=1e-6)


def test_a_word_of_several_pieces_is_hidden_whole(client: TestClient, api: dict[str, str]) -> None:
    answer = ask(client, api["pair"], text="a zebra ran", hidden=[1])
    assert [token["hidden"] for token in answer["tokens"]] == [False, *[True] * 5, False]
    assert answer["filled"].startswith("a ")
    assert answer["filled"].endswith(" ran")


def test_a_long_text_is_cut_and_says_so(client: TestClient, api: dict[str, str]) -> None:
    answer = ask(client, api["pair"], text="the dog ran home " * 100)
    assert answer["cut"] is True
    assert len(answer["tokens"]) == 62
    assert ask(client, api["pair"], text="the dog")["cut"] is False


def test_a_model_without_a_generator_judges_but_hides_nothing(
    client: TestClient, api: dict[str, str]
) -> None:
    answer = ask(client, api["discriminator"], text=TEXT)
    assert all(0 < token["replaced"] < 1 for token in answer["tokens"])
    refused = client.post(f"{api['discriminator']}/tokens", json={"text": TEXT, "hidden": [0]})
    assert refused.status_code == 422
    assert "generator" in refused.json()["error"]


def test_a_model_without_a_discriminator_fills_and_judges_nothing(pair: Path) -> None:
    networks = load_networks([pair / "generator"], device=torch.device("cpu"))
    (answer,) = networks.read([TokensRequest(TEXT, (0,), seed=0, temperature=1.0)])
    assert isinstance(answer, dict)
    assert answer["tokens"][0]["sampled"] is not None
    assert {token["replaced"] for token in answer["tokens"]} == {None}


def test_networks_of_the_modern_family_fill_and_judge(tmp_path: Path) -> None:
    shape = EncoderShape(
        family="modernbert", layers=2, width=32, heads=2, feedforward=48, embedding=16, positions=64
    )
    tokenizer = toy_tokenizer()
    generator, discriminator = build_networks(
        shape, GeneratorShape(tie="embeddings", width=16, heads=2), vocabulary=tokenizer.size
    )
    assert generator is not None
    named: dict[Role, Generator | Discriminator] = {
        "generator": generator,
        "discriminator": discriminator,
    }
    for role, network in named.items():
        save(network, tmp_path / role, role=role, tokenizer_files=tokenizer.copy_to)
    folders = [tmp_path / role for role in named]
    networks = load_networks(folders, device=torch.device("cpu"))
    (answer,) = networks.read([TokensRequest(TEXT, (1,), seed=0, temperature=1.0)])
    assert isinstance(answer, dict)
    assert networks.family == "modernbert"
    assert answer["tokens"][1]["sampled"]["probability"] > 0
    assert all(0 < token["replaced"] < 1 for token in answer["tokens"])


def test_a_masked_lm_that_stands_alone_fills_words(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "bert", network=Generator, role="encoder")
    networks = load_networks([folder], device=torch.device("cpu"))
    assert list(networks.networks) == ["generator"]


def test_a_left_to_right_model_is_refused(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "lm", network=Generator, role="encoder", causal=True)
    with pytest.raises(UserError, match="fills no masks"):
        load_networks([folder], device=torch.device("cpu"))


def test_offsets_count_utf16_units() -> None:
    assert list(utf16_offsets("aé")) == [0, 1, 2]
    assert list(utf16_offsets("a😀b")) == [0, 1, 3, 4]
    assert list(utf16_offsets("")) == [0]
