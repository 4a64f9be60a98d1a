"""A server in this process over tiny real models with random weights, each loaded once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

from electra.model.networks import Generator
from electra.tasks.choose import Choose
from electra.tasks.classify import Classify
from electra.tasks.models import build_network, load_pretrained, save_tuned
from electra.tasks.multi_label import MultiLabel
from electra.tasks.span import Span
from electra.tasks.tag import Tag
from electra.tasks.task import Task
from electra.web.models import Served, load_models
from electra.web.requests import Limits
from electra.web.routes import build_app
from tests.tasks.toys import tiny_model

TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
TASKS: dict[str, Task[Any, Any]] = {
    "classes": Classify(
        name="classify",
        text_pair="",
        labels=("cats", "dogs"),
        regression=False,
        metrics=("accuracy",),
    ),
    "scores": Classify(
        name="classify",
        text="a",
        text_pair="b",
        regression=True,
        extent=(0.0, 5.0),
        metrics=("pearson",),
    ),
    "spans": Span(name="span", head_kind="simple", stride=8),
    "tags": Tag(name="ner", labels=TAGS),
    "choices": Choose(name="choose", count=3),
    "labels": MultiLabel(
        name="classify",
        text_pair="",
        labels=("a", "b", "c"),
        multi_label=True,
        metrics=("f1_micro",),
    ),
}


def write_task(task: Task[Any, Any], pretrained: Path, folder: Path) -> Path:
    """A fine-tuned folder with random weights, which score texts differently."""
    source = load_pretrained(pretrained)
    torch.manual_seed(1)
    network = build_network(source, task, dropout=0.0)
    save_tuned(network, task, source.tokenizer, folder, length=32, extra={})
    return folder


def write_journal(run: Path, steps: int = 4) -> None:
    """The files of a run that trains: a journal with an evaluation at each second step."""
    lines = []
    for step in range(1, steps + 1):
        values = {"mlm": 5.0 / step, "rtd": 0.5 / step, "learning_rate": 1e-3 * step}
        lines.append({"step": step, "time": 1.0, **values, "tokens_per_second": 100.0})
        if step % 2 == 0:
            scores = {"eval_auc": 0.5 + step / 100, "eval_rtd_loss": 0.4, "eval_mlm_loss": 4.0}
            baselines = {"eval_baseline_rtd_loss": 0.42, "eval_baseline_mlm_loss": 4.5}
            lines.append({"step": step, "time": 1.0, **scores, **baselines})
    run.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run / "metrics.jsonl").write_text(text, encoding="utf8")
    status = {"status": "running", "step": steps, "max_steps": 100}
    (run / "status.json").write_text(json.dumps(status), encoding="utf8")
    (run / ".lock").write_text("process 1 on another-machine", encoding="utf8")
    (run / "config.toml").write_text('name = "tiny"\n', encoding="utf8")


def write_generator(folder: Path) -> Path:
    return tiny_model(folder, network=Generator, role="generator")


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with both networks and a journal."""
    run = tmp_path_factory.mktemp("runs") / "pair"
    tiny_model(run / "discriminator")
    write_generator(run / "generator")
    write_journal(run)
    return run


@pytest.fixture(scope="session")
def folders(pair: Path, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders that are served, by name, in their order."""
    root = tmp_path_factory.mktemp("tasks")
    tasks = {name: write_task(task, tiny, root / name) for name, task in TASKS.items()}
    return {"pair": pair, "discriminator": tiny} | tasks


@pytest.fixture(scope="session")
def served(folders: dict[str, Path]) -> Iterator[list[Served]]:
    models = load_models([str(folder) for folder in folders.values()], Limits())
    for model in models:
        model.worker.thread.start()
    yield models
    for model in models:
        model.worker.stop()


@pytest.fixture(scope="session")
def api(folders: dict[str, Path]) -> dict[str, str]:
    """The address of each model."""
    return {name: f"/api/models/{index}" for index, name in enumerate(folders)}


@pytest.fixture(scope="session")
def client(served: list[Served]) -> Iterator[TestClient]:
    app = build_app(served, limits=Limits())
    with TestClient(app, base_url="http://localhost:8000") as client:
        yield client
