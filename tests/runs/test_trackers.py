"""Trackers, tested against a stand-in for wandb and trackio that records every call."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from electra.__main__ import main
from electra.config import UserError
from electra.runs.journal import Journal
from electra.runs.trackers import Tracking, check_trackers
from tests.cli.conftest import pretrain_argv
from tests.tasks.toys import TOYS, written

STAND_IN = """
import json, os

def note(*call):
    with open(os.environ["CALLS"], "a") as file:
        file.write(json.dumps([__name__, *call]) + "\\n")

class Run:
    def log(self, values, step=None):
        if os.environ.get("FAIL") == "log":
            raise RuntimeError("secret-key")
        note("log", values, step)

    def finish(self, **options):
        note("finish", options)

def init(**options):
    if os.environ.get("FAIL") == "init":
        raise RuntimeError("secret-key")
    note("init", options)
    return Run()
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file with the calls of a stand-in for both packages, which is first on the path."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for name in ("wandb", "trackio"):
        (packages / f"{name}.py").write_text(STAND_IN)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(packages))
    monkeypatch.setenv("CALLS", str(tmp_path / "calls.jsonl"))
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    yield tmp_path / "calls.jsonl"
    for name in ("wandb", "trackio"):
        sys.modules.pop(name, None)


def read(calls: Path) -> list[list[Any]]:
    return [json.loads(line) for line in calls.read_text().splitlines()]


def journal(folder: Path, report_to: str = "wandb", after: int = 0) -> Journal:
    folder.mkdir(exist_ok=True)
    tracking = Tracking(report_to, {"learning_rate": 0.1}, "group")
    return Journal(folder / "metrics.jsonl", max_steps=9, after=after, tracking=tracking)


def test_metrics_are_logged_by_step_and_the_run_is_ended(calls: Path, tmp_path: Path) -> None:
    with journal(tmp_path / "run") as opened:
        opened.record(1, {"loss": 2.5, "grad_norm": float("inf")})
        opened.record(1, {"accuracy": 0.5}, prefix="dev_")
    start, *rest = read(calls)
    run_id = json.loads((tmp_path / "run" / "trackers.json").read_text())["wandb"]
    assert start[:2] == ["wandb", "init"]
    assert start[2] == {
        "project": "electra",
        "id": run_id,
        "name": "group-run",
        "group": "group",
        "dir": str(tmp_path / "run"),
        "resume": "allow",
        "config": {"learning_rate": 0.1},
    }
    assert rest == [
        ["wandb", "log", {"loss": 2.5}, 1],
        ["wandb", "log", {"dev_accuracy": 0.5}, 1],
        ["wandb", "finish", {"exit_code": 0}],
    ]


def test_a_resumed_run_has_its_id_and_one_that_starts_over_a_new_one(
    calls: Path, tmp_path: Path
) -> None:
    for after in (0, 4, 0):
        with journal(tmp_path / "run", after=after):
            pass
    first, resumed, new = [call[2]["id"] for call in read(calls) if call[1] == "init"]
    assert first == resumed != new


def test_several_trackers_take_the_same_metrics(calls: Path, tmp_path: Path) -> None:
    with journal(tmp_path / "run", "wandb,trackio") as opened:
        opened.record(3, {"loss": 1.0})
    logged = [call for call in read(calls) if call[1] == "log"]
    assert logged == [["wandb", "log", {"loss": 1.0}, 3], ["trackio", "log", {"loss": 1.0}, 3]]
    (start,) = [call[2] for call in read(calls) if call[:2] == ["trackio", "init"]]
    ids = json.loads((tmp_path / "run" / "trackers.json").read_text())
    assert (start["name"], start["resume"]) == (f"group-run-{ids['trackio']}", "allow")
    assert ["trackio", "finish", {}] in read(calls)


def test_a_run_that_was_stopped_or_failed_says_so(calls: Path, tmp_path: Path) -> None:
    with journal(tmp_path / "stopped") as opened:
        opened.exit_code = 75
    with pytest.raises(ValueError, match="x"), journal(tmp_path / "failed"):
        raise ValueError("x")
    ends = [call[2] for call in read(calls) if call[1] == "finish"]
    assert ends == [{"exit_code": 75}, {"exit_code": 1}]


def test_a_tracker_that_fails_is_warned_of_once_and_ends_nothing(
    calls: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAIL", "log")
    with journal(tmp_path / "run") as opened:
        for step in (1, 2, 3):
            opened.record(step, {"loss": 1.0})
    said = capsys.readouterr().err
    assert said.count("wandb failed (RuntimeError); the run continues without it") == 1
    assert "secret-key" not in said
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 3


def test_a_tracker_that_cannot_start_is_refused_without_its_key(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIL", "init")
    with pytest.raises(UserError, match="--report-to wandb: it could not be started") as refused:
        journal(tmp_path / "run")
    assert "secret-key" not in str(refused.value)


def test_a_tracker_that_cannot_be_imported_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wandb.py").write_text("raise AttributeError('np.float_ was removed')")
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match=r"wandb: it cannot be imported \(Attr.*pip install --up"):
        journal(tmp_path / "run")


def test_only_the_main_process_reports(calls: Path) -> None:
    with Journal(None, max_steps=2, tracking=Tracking("wandb")) as opened:
        opened.record(1, {"loss": 1.0})
    assert not calls.exists()


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="--report-to trackio needs: pip install trackio"):
        check_trackers("trackio")
    with pytest.raises(UserError, match="--report-to mlflow: must be none, or tensorboard"):
        check_trackers("mlflow")


@pytest.mark.usefixtures("few_threads")
def test_every_seed_of_a_fine_tuning_is_a_run(calls: Path, tiny: Path, tmp_path: Path) -> None:
    rows = written(tmp_path / "rows.csv", TOYS["classes"].content)
    argv = f"finetune {tiny} --task classify --train {rows} --dev {rows} --dev-on-train --seeds 2"
    argv += f" --output-dir {tmp_path / 'toy'} --max-steps 2 --length 16 --no-report --quiet"
    assert main([*argv.split(), "--report-to", "wandb"]) == 0
    starts = [call[2] for call in read(calls) if call[1] == "init"]
    assert [start["name"] for start in starts] == ["toy-seed-0", "toy-seed-1"]
    assert [start["config"]["seed"] for start in starts] == [0, 1]
    assert starts[0]["config"]["max_steps"] == 2
    assert [call[1] for call in read(calls)].count("finish") == 2


@pytest.mark.slow
@pytest.mark.usefixtures("few_threads")
def test_a_pretraining_that_is_extended_continues_its_run(
    calls: Path, toy_shards: Path, tmp_path: Path
) -> None:
    more = ["--report-to", "wandb,trackio", "--resume-schedule", "stretch"]
    for steps in (4, 6):
        argv = pretrain_argv(
            tmp_path / "run", *more, data=toy_shards, logging_steps=1, max_steps=steps
        )
        assert main(argv) == 0
    starts = [call[2] for call in read(calls) if call[:2] == ["wandb", "init"]]
    assert starts[0]["id"] == starts[1]["id"]
    assert starts[0]["config"]["training"]["max_steps"] == 4
    logged = [call[3] for call in read(calls) if call[:2] == ["trackio", "log"]]
    assert (logged, set(logged)) == (sorted(logged), set(range(1, 7)))
