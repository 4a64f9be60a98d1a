"""The status of a run while it trains."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from electra.pretraining.pretrain import pretrain
from electra.pretraining.recipe import load_recipe
from electra.runs import run_dir
from tests.conftest import TOY_FLAGS


@pytest.mark.usefixtures("few_threads")
def test_the_status_is_current_between_checkpoints(
    toy_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[dict[str, Any]] = []

    def set_status(run: Path, status: run_dir.Status, **facts: Any) -> None:
        written.append({"status": status, **facts})

    monkeypatch.setattr("electra.runs.run_dir.STATUS_SECONDS", 0)
    monkeypatch.setattr(run_dir, "set_status", set_status)
    flags = [*TOY_FLAGS, "--max-steps", "6", "--logging-steps", "2", "--save-steps", "100"]
    pretrain(load_recipe("tiny", flags=flags), data=toy_shards, output_dir=tmp_path, quiet=True)
    running = [facts["step"] for facts in written if facts["status"] == "running"]
    assert set(running) >= {0, 2, 4, 6}
    assert written[-1]["status"] == "finished"
    assert written[-1]["checkpoint"] == "checkpoint-6"


@pytest.mark.usefixtures("few_threads")
@pytest.mark.parametrize(
    ("options", "command"),
    [
        ({}, "the same command"),
        ({"resume": "never"}, "the same command without --resume never"),
        (
            {"resume": "never", "overwrite": True},
            "the same command without --resume never --overwrite",
        ),
    ],
)
def test_a_run_that_is_stopped_names_the_command_that_continues_it(
    toy_shards: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: dict[str, Any],
    command: str,
) -> None:
    def terminate(_: object, step: int) -> None:
        if step == 1:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("electra.runs.journal.Journal.advance", terminate)
    recipe = load_recipe("tiny", flags=[*TOY_FLAGS, "--max-steps", "6"])
    outcome = pretrain(recipe, data=toy_shards, output_dir=tmp_path, **options)
    assert outcome.status == "stopped"
    assert capsys.readouterr().err.rstrip().endswith(f"{command} continues the run")
