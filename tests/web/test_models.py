"""What the folders of the command line are served as, and those that cannot be."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

from electra.checksums import CHECKSUMS
from electra.config import UserError
from electra.model.networks import Generator
from electra.web.models import ServedRun, display_name, load_model, load_models
from electra.web.requests import Limits, RequestError
from electra.web.routes import build_app
from tests.tasks.toys import tiny_model
from tests.web.conftest import TAGS, write_generator, write_journal
from tests.wording import wording_of

wording = wording_of(__file__)
LIMITS = Limits()


def test_the_list_of_models_says_what_each_takes(client: TestClient) -> None:
    answer = client.get("/api/models").json()
    models = {model["name"]: model for model in answer["models"]}
    assert [model["model"] for model in answer["models"]] == list(range(8))
    assert answer["limits"] == {
        "characters": 20_000,
        "inputs": 64,
        "table_bytes": 5_000_000,
        "table_rows": 10_000,
    }
    kinds = {name: (model["kind"], model["takes"]) for name, model in models.items()}
    assert kinds == {
        "pair": ("pretraining", "text"),
        "tiny": ("pretraining", "text"),
        "classes": ("classify", "text"),
        "scores": ("score", "pair"),
        "spans": ("span", "pair"),
        "tags": ("tag", "text"),
        "choices": ("choose", "pair"),
        "labels": ("multi-label", "text"),
    }
    assert models["pair"]["networks"] == ["generator", "discriminator"]
    assert models["pair"]["has_curves"] is True
    assert models["tiny"]["networks"] == ["discriminator"]
    assert models["tags"]["labels"] == list(TAGS)
    assert models["scores"]["range"] == [0.0, 5.0]
    assert models["classes"]["max_length"] == 32
    assert models["classes"]["family"] == "electra"
    assert all(model["parameters"] > 10_000 for model in models.values())


def test_to_load_models_changes_nothing_for_others_in_the_process(folders: dict[str, Path]) -> None:
    load_models([str(folders["pair"]), str(folders["classes"])], LIMITS)
    assert torch.is_grad_enabled()


def test_no_path_of_the_server_is_told(client: TestClient, folders: dict[str, Path]) -> None:
    assert str(folders["pair"].parent) not in client.get("/api/models").text


def test_a_folder_inside_a_run_has_the_name_of_the_run_too() -> None:
    assert display_name(Path("/a/run/discriminator")) == "run/discriminator"
    assert display_name(Path("/a/run/seed-1")) == "run/seed-1"
    assert display_name(Path("/a/run")) == "run"
    assert display_name(Path("/a/x\x1b[2Jy")) == r"x\x1b[2Jy"


def test_the_output_folder_of_a_fine_tuning_is_its_best_model(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    run = tmp_path / "tuned"
    shutil.copytree(folders["classes"], run / "seed-1" / "model")
    results = {"best_model": "seed-1/model"}
    (run / "results.json").write_text(json.dumps(results), encoding="utf8")
    model = load_model(str(run), LIMITS)
    assert (model.name, model.describe()["kind"]) == ("tuned", "classify")


def test_a_run_that_trains_shows_its_curves_and_later_its_networks(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_journal(run)
    models = load_models([str(run)], LIMITS)
    (model,) = models
    assert isinstance(model, ServedRun)
    model.worker.thread.start()
    client = TestClient(build_app(models, limits=LIMITS), base_url="http://localhost")
    body = {"text": "the dog", "hidden": []}
    answer = client.post("/api/models/0/tokens", json=body)
    assert answer.status_code == 422
    assert wording("not_exported") in answer.json()["error"]
    assert client.get("/api/models").json()["models"][0]["note"] == answer.json()["error"]
    assert client.get("/api/models/0/curves").status_code == 200
    tiny_model(run / "discriminator")
    assert client.post("/api/models/0/tokens", json=body).status_code == 200
    write_generator(run / "generator")
    body = {"text": "the dog", "hidden": [1]}
    assert client.post("/api/models/0/tokens", json=body).status_code == 200
    listed = client.get("/api/models").json()["models"][0]
    assert listed["networks"] == ["generator", "discriminator"]
    model.worker.stop()


def test_networks_that_cannot_be_loaded_leave_those_that_were(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_journal(run)
    tiny_model(run / "discriminator")
    model = load_model(str(run), LIMITS)
    assert isinstance(model, ServedRun)
    before = model.networks
    config: dict[str, Any] = json.loads((run / "discriminator" / "config.json").read_text())
    (run / "discriminator" / "config.json").write_text(json.dumps(config | {"hidden_size": 33}))
    model.compute("refresh", [None])
    assert model.networks is before


def test_a_left_to_right_run_shows_its_curves_alone(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_journal(run)
    tiny_model(run / "encoder", network=Generator, role="encoder", causal=True)
    model = load_model(str(run), LIMITS)
    assert model.describe()["networks"] == []
    with pytest.raises(RequestError, match="cannot be used"):
        model.compute("tokens", [None])


@pytest.mark.parametrize("case", ["missing", "empty", "hub", "file", "other", "headless"])
def test_a_folder_that_cannot_be_served_is_refused(tmp_path: Path, case: str) -> None:
    path: Path | str = tmp_path / case
    if case == "hub":
        path = "google/electra-small-discriminator"
    elif case == "file":
        Path(path).write_text("x")
    elif case != "missing":
        Path(path).mkdir()
    if case == "other":
        (tmp_path / case / "config.json").write_text('{"model_type": "gpt2"}')
    if case == "headless":
        folder = tiny_model(tmp_path / case)
        config = json.loads((folder / "config.json").read_text())
        config |= {"electra_role": "encoder", "architectures": ["ElectraModel"]}
        (folder / "config.json").write_text(json.dumps(config))
        (folder / CHECKSUMS).unlink()
    with pytest.raises(UserError, match=wording(case)):
        load_model(str(path), LIMITS)


def test_networks_of_different_vocabularies_are_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    tiny_model(run / "discriminator")
    write_generator(run / "generator")
    definition = json.loads((run / "generator" / "tokenizer.json").read_text())
    vocab = definition["model"]["vocab"]
    vocab["dog"], vocab["cat"] = vocab["cat"], vocab["dog"]
    (run / "generator" / "tokenizer.json").write_text(json.dumps(definition))
    (run / "generator" / CHECKSUMS).unlink()
    with pytest.raises(UserError, match="different vocabularies"):
        load_model(str(run), LIMITS)
