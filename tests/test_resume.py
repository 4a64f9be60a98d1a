"""Nothing is lost: a run that was killed at any moment continues bit for bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from benchmarks.soak_runs import worker_pids
from electra.runs.journal import read_metrics
from tests.conftest import toy_flags


def command(
    data: Path,
    run: Path,
    *more: str,
    processes: int = 1,
    recipe: str = "tiny",
    module: str = "electra",
) -> list[str]:
    launcher = (
        [sys.executable]
        if processes == 1
        else [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            str(processes),
            "--master-port",
            "0",
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            "localhost:0",
        ]
    )
    return [
        *launcher,
        "-m",
        module,
        "pretrain",
        recipe,
        "--data",
        str(data),
        "--output-dir",
        str(run),
        *toy_flags(dict(zip(more[::2], more[1::2], strict=True))),
    ]


def start(*arguments, **options) -> subprocess.Popen:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command(*arguments, **options),
        env=environment,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(*arguments, **options) -> int:
    process = start(*arguments, **options)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    return process.returncode


def wait_for_step(process: subprocess.Popen, run: Path, step: int) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        if any(entry["step"] >= step for entry in read_metrics(run / "metrics.jsonl")):
            return
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    raise AssertionError(f"step {step} was not reached")


def whole_state(run: Path) -> dict[str, object]:
    """Return weights and optimizer state of the last checkpoint, and of the exported models."""
    files = [
        *sorted((run / "checkpoint-20").glob("*.safetensors")),
        *sorted(run.glob("*/model.safetensors")),
    ]
    assert len(files) == 2 + len(list(run.glob("*/config.json")))
    return {
        f"{path.parent.name}/{path.name}/{name}": tensor
        for path in files
        for name, tensor in load_file(path).items()
    }


def assert_identical(run: Path, other: Path) -> None:
    ours, theirs = whole_state(run), whole_state(other)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not ours[name].equal(theirs[name])] == []


def losses(run: Path) -> list[tuple[int, float]]:
    return [
        (entry["step"], entry["loss"])
        for entry in read_metrics(run / "metrics.jsonl")
        if "loss" in entry
    ]


@pytest.mark.parametrize(
    ("recipe", "processes", "parallel"),
    [
        ("tiny", 1, "ddp"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("tiny", 3, "ddp"),
                ("tiny", 3, "fsdp"),
                ("all-tokens-mlm-base", 1, "ddp"),
                ("all-tokens-mlm-base", 3, "ddp"),
                ("electra-15-base", 1, "ddp"),
                ("replace-mlm-base", 1, "ddp"),
                ("bert-nsp-base", 1, "ddp"),
                ("bert-nsp-base", 3, "ddp"),
                ("left-to-right-base", 1, "ddp"),
                ("adversarial-base", 3, "ddp"),
                ("two-stage-base", 3, "fsdp"),
            )
        ),
    ],
)
def test_twenty_steps_equal_twelve_a_sigkill_and_eight(
    toy_shards, tmp_path, recipe, processes, parallel
):
    """Three processes, not two: with two, a + b = b + a hides a changed order of summation."""
    more: tuple[str, ...] = ("--parallel", parallel)
    if recipe == "two-stage-base":
        finish(toy_shards, tmp_path / "first", recipe="two-stage-generator-base")
        more = (*more, "--init-from", str(tmp_path / "first"))
    finish(toy_shards, tmp_path / "unbroken", *more, processes=processes, recipe=recipe)
    process = start(toy_shards, tmp_path / "killed", *more, processes=processes, recipe=recipe)
    wait_for_step(process, tmp_path / "killed", 12)
    workers = (
        worker_pids(process) if processes > 1 else {}
    )  # in sessions of their own: they would continue, and hold the folder
    for pid in (process.pid, *workers.values()):
        os.kill(pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed" / "checkpoint-20").exists(), (
        "it was killed too late to prove anything"
    )
    finish(toy_shards, tmp_path / "killed", *more, processes=processes, recipe=recipe)
    assert_identical(tmp_path / "unbroken", tmp_path / "killed")
    assert losses(tmp_path / "unbroken") == losses(tmp_path / "killed")


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        *(
            pytest.param(number, marks=pytest.mark.slow)
            for number in (signal.SIGINT, signal.SIGUSR1)
        ),
    ],
)
def test_a_signal_leaves_a_checkpoint_and_exit_status_75_and_the_run_goes_on_from_there(
    toy_shards, tmp_path, number
):
    run = tmp_path / "run"
    process = start(toy_shards, run, "--save-steps", "1000", "--max-steps", "5000")
    wait_for_step(process, run, 3)
    process.send_signal(number)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 75, output
    status = json.loads((run / "status.json").read_text())
    assert status["status"] == "stopped"
    assert (run / status["checkpoint"] / "state.json").exists()
    assert (run / "discriminator" / "model.safetensors").exists()
    before = status["step"]
    finish(toy_shards, run, "--max-steps", str(before + 1))
    assert json.loads((run / "status.json").read_text())["step"] == before + 1


@pytest.mark.slow
def test_a_damaged_newest_checkpoint_costs_its_steps_and_nothing_else(toy_shards, tmp_path):
    finish(toy_shards, tmp_path / "unbroken")
    finish(toy_shards, tmp_path / "damaged", "--max-steps", "20", "--save-total-limit", "5")
    weights = tmp_path / "damaged" / "checkpoint-20" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    process = start(toy_shards, tmp_path / "damaged")
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    assert "checkpoint-20/weights.safetensors is damaged" in output
    assert "checkpoint-16 at step 16" in output
    assert_identical(tmp_path / "unbroken", tmp_path / "damaged")
