"""A sweep runs what is missing and never what is done, whatever happened to it before."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from electra.__main__ import main
from electra.experiments import plan, run_job, worker_pool
from electra.experiments.findings import collect
from electra.experiments.plan import trial_names
from electra.runs.journal import read_metrics
from tests.experiments.sweeps import chained, command, jobs_of, sweep_of

pytestmark = pytest.mark.usefixtures("few_threads")


def longer_scale(folder: Path) -> Path:
    """The smoke scale with enough steps to be killed in."""
    text = (
        (plan.SCALES / "smoke.toml").read_text(encoding="utf8").replace("steps = 16", "steps = 64")
    )
    path = folder / "longer.toml"
    path.write_text(text, encoding="utf8")
    return path


def start_command(argv: list[str]) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "electra", *argv],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
    )


def wait_for(folder: Path, recipe: str, step: int) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        if any(
            entry["step"] >= step
            for path in folder.glob(f"runs/{recipe}-*/metrics.jsonl")
            for entry in read_metrics(path)
        ):
            return
        time.sleep(0.01)
    raise AssertionError(f"step {step} of {recipe} was not reached")


def weights(folder: Path) -> dict[str, object]:
    return {
        f"{path.parent.parent.name}/{path.parent.name}/{name}": tensor
        for path in folder.glob("runs/*/*/model.safetensors")
        for name, tensor in load_file(path).items()
    }


@pytest.mark.slow
def test_a_sweep_stopped_and_then_killed_ends_as_if_nothing_had_happened(
    texts, toy_glue, tmp_path, capsys
):
    def argv(folder: Path) -> list[str]:
        return command(
            "efficiency",
            "--arms",
            "electra",
            "bert",
            "--scale",
            longer_scale(tmp_path),
            "--corpus",
            texts,
            "--glue",
            toy_glue,
            "--tasks",
            "glue/rte",
            "--output-dir",
            folder,
        )

    broken, whole = tmp_path / "broken", tmp_path / "whole"
    threading.Thread(
        target=lambda: (wait_for(broken, "base", 20), signal.raise_signal(signal.SIGTERM))
    ).start()
    assert main(argv(broken)) == 75
    assert "the same command continues" in capsys.readouterr().out
    partly = {each.arm: each for each in collect(broken)[0].results}
    assert not partly["electra"].done
    assert 20 <= partly["electra"].steps < 64
    assert partly["bert"].steps == 0
    process = start_command(argv(broken))
    wait_for(broken, "bert-base", 20)
    process.kill()
    process.wait()
    assert main(argv(broken)) == main(argv(whole)) == 0
    ours, theirs = weights(broken), weights(whole)
    assert ours.keys() == theirs.keys()
    assert not [name for name in ours if not (ours[name] == theirs[name]).all()]
    (interrupted,), (never,) = collect(broken), collect(whole)
    assert [each.scores for each in interrupted.results] == [each.scores for each in never.results]
    assert all(each.done and len(each.scores) == 1 for each in interrupted.results)
    untouched = {
        path: path.stat().st_mtime_ns
        for path in broken.rglob("*")
        if path.is_file() and "runs" in path.parts
    }
    assert main(argv(broken)) == 0
    assert untouched == {path: path.stat().st_mtime_ns for path in untouched}
    assert not list(broken.rglob("checkpoint-*"))
    assert not list(broken.glob("runs/*/tasks/*/seed-*/model"))


def test_an_arm_that_fails_is_reported_and_the_others_go_on(toy_shards, tmp_path, capsys):
    argv = command(
        "efficiency",
        "--arms",
        "electra",
        "bert",
        "--budget",
        "smoke",
        "--data",
        toy_shards,
        "--output-dir",
        tmp_path,
    )
    options = sweep_of(tmp_path, "efficiency", arms=("electra", "bert"))
    electra, bert = (job.stages[-1].folder for job in jobs_of(options, toy_shards))
    electra.parent.mkdir()
    electra.write_text("in the way", encoding="utf8")
    assert main(argv) == 1
    output = capsys.readouterr()
    assert "error: efficiency/electra, seed 0: " in output.err
    assert f"{electra} is a file" in output.err
    assert "1 of 2 runs failed" in output.out
    assert (bert / "encoder/config.json").is_file()
    electra.unlink()
    assert main(argv) == 0


def test_a_sweep_killed_right_after_a_run_says_its_concurrency_and_removes_its_checkpoints(
    toy_shards, tmp_path, monkeypatch
):
    argv = ["efficiency", "--arms", "electra", "--budget", "smoke", "--data", toy_shards]
    argv = command(*argv, "--output-dir", tmp_path)

    def kill(folder: Path, *, ignore_errors: bool = False) -> None:
        if folder.name.startswith("checkpoint-"):
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(run_job.atomic, "remove_folder", kill)
        with pytest.raises(SystemExit):
            main(argv)
    (run,) = (path for path in tmp_path.glob("runs/*") if path.is_dir())
    assert json.loads((run / "concurrency.json").read_text()) == {"concurrency": 1}
    assert list(run.glob("checkpoint-*"))
    assert main(argv) == 0
    assert not list(run.glob("checkpoint-*"))


@pytest.mark.slow
def test_an_arm_of_each_objective_runs_at_toy_size(toy_shards, tmp_path):
    arms = {"electra", "all-tokens-mlm", "replace-mlm", "bert-nsp", "left-to-right", "adversarial"}
    assert (
        main(
            command(
                "efficiency",
                "training-algorithms",
                "bert-ablations",
                "--budget",
                "smoke",
                "--data",
                toy_shards,
                "--output-dir",
                tmp_path,
                "--arms",
                *sorted(arms),
            )
        )
        == 0
    )
    results = [finding for each in collect(tmp_path) for finding in each.results]
    assert {finding.arm for finding in results if finding.done and finding.steps} == arms
    assert {finding.provenance["concurrency"] for finding in results} == {1}


@pytest.mark.slow
def test_every_trial_runs_from_end_to_end_at_toy_size(texts, toy_glue, toy_squad, tmp_path, capsys):
    assert (
        main(
            command(
                "all",
                "--budget",
                "smoke",
                "--corpus",
                texts,
                "--glue",
                toy_glue,
                "--squad",
                toy_squad,
                "--output-dir",
                tmp_path,
                "--at-once",
                "2",
            )
        )
        == 0
    )
    several = collect(tmp_path)
    assert {each.trial.name for each in several} == set(trial_names())
    assert all(finding.done and finding.scores for each in several for finding in each.results)
    assert {finding.provenance["concurrency"] for each in several for finding in each.results} == {
        2
    }


def test_a_later_stage_begins_with_the_weights_of_the_one_before(toy_shards, tmp_path, monkeypatch):
    monkeypatch.setattr("electra.experiments.sweep.load_trial", lambda name: chained())
    assert (
        main(command("chain", "--budget", "smoke", "--data", toy_shards, "--output-dir", tmp_path))
        == 0
    )
    (result,) = collect(tmp_path)[0].results
    assert result.done
    assert result.steps == result.max_steps == 16
    assert [entry["step"] for entry in result.journal if "loss" in entry] == list(range(1, 17))
    first, second = (load_file(run / "encoder/model.safetensors") for run in result.runs)
    name = "electra.embeddings.word_embeddings.weight"
    distance = (first[name] - second[name]).abs().max()
    assert 0 < distance < 0.02  # near, where two fresh initialisations are far apart


@pytest.mark.parametrize("error", [EOFError, ConnectionResetError, BrokenPipeError])
def test_a_worker_whose_parent_dies_ends_without_a_traceback(error, monkeypatch):
    class Broken:
        def recv(self) -> object:
            raise error

    monkeypatch.setattr(worker_pool, "stop_with_parent", lambda: None)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    worker_pool.work(Broken(), concurrency=2, gpu=None, threads=1)
