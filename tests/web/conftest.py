"""A server in this process over tiny real models, each loaded once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from electra.model.networks import Generator
from electra.web.models import Served, load_models
from electra.web.requests import Limits
from electra.web.routes import build_app
from tests.tasks.toys import tiny_model

TASKS = ("classes", "scores", "joint", "tags", "choices")


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
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run / "metrics.jsonl").write_text(text, encoding="utf8")
    status = {"status": "running", "step": steps, "max_steps": 100}
    (run / "status.json").write_text(json.dumps(status), encoding="utf8")
    (run / "config.toml").write_text('name = "tiny"\n', encoding="utf8")


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with both networks and a journal."""
    run = tmp_path_factory.mktemp("runs") / "pair"
    tiny_model(run / "discriminator")
    tiny_model(run / "generator", network=Generator, role="generator")
    write_journal(run)
    return run


@pytest.fixture(scope="session")
def folders(pair: Path, tiny: Path, by_heart: Callable[[str], Path]) -> dict[str, Path]:
    """The folders that are served, by name, in their order."""
    return {"pair": pair, "discriminator": tiny} | {name: by_heart(name) for name in TASKS}


@pytest.fixture(scope="session")
def served(folders: dict[str, Path]) -> Iterator[list[Served]]:
    models = load_models([str(folder) for folder in folders.values()], Limits())
    for model in models:
        model.worker.thread.start()
    yield models
    for model in models:
        model.worker.stop()


@pytest.fixture(scope="session")
def number(folders: dict[str, Path]) -> dict[str, int]:
    """The number of each model."""
    return {name: index for index, name in enumerate(folders)}


@pytest.fixture(scope="session")
def client(served: list[Served]) -> TestClient:
    app = build_app(served, limits=Limits())
    return TestClient(app, base_url="http://localhost:8000")
