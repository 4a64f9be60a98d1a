"""The fine-tuning loop learns, repeats itself bit for bit, and continues where it was stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from electra.__main__ import main
from electra.engine.distributed import World
from electra.finetuning import loop, scoring
from electra.finetuning.loop import forward_backward
from electra.finetuning.options import FinetuneOptions
from electra.finetuning.results import SeedResult
from electra.finetuning.setup import prepare_finetuning
from electra.finetuning.state import FinetuneState, attach_train_step, build_state
from electra.runs import checkpoint
from electra.runs.journal import read_metrics
from electra.tasks import find_task
from tests.tasks.toys import BY_HEART, TOYS, Toy, as_flags, keyword_rows, written
from tests.wording import wording_of

wording = wording_of(__file__)

pytestmark = pytest.mark.usefixtures("few_threads")

TAGS = (
    "anna B-PER\n\ncarla B-PER\nvisits O\nthe O\ndog O\nin O\nrome B-LOC\n\nberg B-PER\nran O\n\n"
)


def weights(run: Path, seed: int = 0) -> dict[str, Tensor]:
    return load_file(run / f"seed-{seed}" / "model" / "model.safetensors")


def assert_identical(run: Path, other: Path, seed: int = 0) -> None:
    ours, theirs = weights(run, seed), weights(other, seed)
    assert [name for name in ours if not ours[name].equal(theirs[name])] == []


def state_of(
    tiny: Path, folder: Path, toy: Toy, *, seed: int = 0, **settings: Any
) -> FinetuneState:
    """Ready for its first step, without dropout."""
    data = written(folder / toy.file, toy.content)
    options = FinetuneOptions(
        train=[data],
        dev=[data],
        dev_on_train=True,
        flags=as_flags({"batch_size": 8, "length": 32, "dropout": 0.0} | settings),
    )
    task = find_task(toy.task, **toy.options)
    setup = prepare_finetuning(tiny, task, options, say=lambda text: None)
    state = build_state(setup, seed, folder / "out", World(0, 1, torch.device("cpu")))
    attach_train_step(state)
    return state


def gradients(state: FinetuneState) -> dict[str, Tensor]:
    state.network.double()  # examples of a batch nearly cancel: float32 leaves their rounding
    forward_backward(state, np.arange(len(state.setup.train)), step=1)
    return {
        name: p.grad.clone() for name, p in state.network.named_parameters() if p.grad is not None
    }


# ---- learning ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TOYS)
def test_eight_examples_are_learnt_by_heart(by_heart: Callable[[str], Path], name: str) -> None:
    run = by_heart(name)
    losses = [
        entry["loss"] for entry in read_metrics(run / "seed-0" / "metrics.jsonl") if "loss" in entry
    ]
    assert losses[-1] < 0.02 < losses[0]
    result = json.loads((run / "results.json").read_text())
    assert result["best"] == pytest.approx(1.0)
    assert not result["runs"][0]["degenerate"]


def test_a_planted_keyword_is_found_in_sentences_that_training_never_saw(
    tiny: Path, tmp_path: Path
) -> None:
    train = written(tmp_path / "train.csv", keyword_rows(200))
    dev = written(tmp_path / "dev.csv", keyword_rows(100, seed=1))
    summary = TOYS["classes"].learnt(tiny, tmp_path / "run", train=[train], dev=[dev])
    assert summary.median >= 0.95


def test_the_log_counts_whole_epochs_and_no_time_of_evaluations_as_training(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate = loop.evaluate

    def an_hour_later(*arguments: Any) -> bool:
        clock[0] += 3600
        return evaluate(*arguments)

    clock = [0.0]
    monotonic = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + clock[0])
    monkeypatch.setattr(loop, "evaluate", an_hour_later)
    settings = {"batch_size": 8, "epochs": 2, "length": 32, "logging_steps": 1, "eval_steps": 2}
    toy = Toy("classify", "rows.csv", keyword_rows(17))  # 8, 8 and 1 in an epoch
    toy.learnt(tiny, tmp_path / "run", flags=as_flags(settings))
    assert clock[0] > 0
    entries = read_metrics(tmp_path / "run" / "seed-0" / "metrics.jsonl")
    logged = [entry for entry in entries if "epoch" in entry]
    assert [entry["epoch"] for entry in logged] == pytest.approx([1 / 3, 2 / 3, 1, 4 / 3, 5 / 3, 2])
    assert min(entry["examples_per_second"] for entry in logged) > 8 / 3600


# ---- one step ------------------------------------------------------------------------------------


def test_an_epoch_holds_every_example_once_in_an_order_of_seed_and_epoch_alone(
    tiny: Path, tmp_path: Path
) -> None:
    toy = Toy("classify", "rows.csv", keyword_rows(21))
    state = state_of(tiny, tmp_path, toy)
    first, second = (
        [state.units(step).tolist() for step in steps] for steps in (range(1, 4), range(4, 7))
    )
    assert sorted(chain(*first)) == sorted(chain(*second)) == list(range(21))
    assert sorted(map(len, first)) == [5, 8, 8]
    assert first != second
    assert [state_of(tiny, tmp_path, toy).units(step).tolist() for step in (6, 1)] == [
        second[2],
        first[0],
    ]
    assert state_of(tiny, tmp_path, toy, seed=1).units(1).tolist() != first[0]


@pytest.mark.parametrize(
    "toy",
    [TOYS["classes"], TOYS["choices"], Toy("ner", "uneven.txt", TAGS)],
    ids=["classes", "choices", "tags of uneven sentences"],
)
@pytest.mark.parametrize("loss", ["mean", "sum"])
def test_micro_batches_add_up_to_the_gradient_of_the_batch(
    tiny: Path, tmp_path: Path, toy: Toy, loss: str
) -> None:
    whole = gradients(state_of(tiny, tmp_path, toy, loss=loss, micro_batch_size=8))
    parts = gradients(state_of(tiny, tmp_path, toy, loss=loss, micro_batch_size=2))
    for name in whole:
        assert parts[name].allclose(whole[name], atol=1e-6), name


def test_the_summed_loss_is_the_mean_times_what_is_scored(tiny: Path, tmp_path: Path) -> None:
    """Nine words carry a tag, in three sentences."""
    toy = Toy("ner", "uneven.txt", TAGS)
    mean, total = (
        forward_backward(state_of(tiny, tmp_path, toy, loss=loss), np.arange(3), step=1)
        for loss in ("mean", "sum")
    )
    assert total.item() == pytest.approx(9 * mean.item(), rel=1e-5)


def test_dropout_is_that_of_the_recipe_and_not_of_pre_training(tiny: Path, tmp_path: Path) -> None:
    """The same rows twice in one batch: only what drops out tells them apart."""
    for rate, differs in ((0.0, False), (0.5, True)):
        state = state_of(tiny, tmp_path, TOYS["classes"], dropout=rate)
        batch = state.setup.train.collate(np.array([0, 0]))
        first, second = state.network.train().hidden_states(batch)
        assert first.allclose(second) is not differs


# ---- again ---------------------------------------------------------------------------------------

FEW = [*BY_HEART, "--max-steps", "12", "--dropout", "0.1", "--logging-steps", "1"]


def test_a_seed_gives_the_same_bits_again_and_another_seed_others(
    tiny: Path, tmp_path: Path
) -> None:
    for name in ("one", "again"):
        TOYS["classes"].learnt(tiny, tmp_path / name, flags=FEW, seeds=2 if name == "one" else 1)
    assert_identical(tmp_path / "one", tmp_path / "again")
    first, second = weights(tmp_path / "one", 0), weights(tmp_path / "one", 1)
    assert not first["classifier.dense.weight"].equal(second["classifier.dense.weight"])


def test_a_network_whose_gradient_is_no_number_stops_and_is_marked_and_kept(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(setup: Any, seed: int, *rest: Any) -> FinetuneState:
        state = build_state(setup, seed, *rest)
        if seed == 1:
            with torch.no_grad():
                next(state.network.encoder.parameters()).fill_(float("nan"))
        return state

    monkeypatch.setattr(loop, "build_state", broken)
    for name in ("classes", "joint"):
        summary = TOYS[name].learnt(tiny, tmp_path / name, seeds=3, flags=FEW)
        assert [run.diverged for run in summary.runs] == [False, True, False]
        assert summary.runs[1].steps == 0
        assert 1 in summary.degenerate
        assert summary.median == sorted(run.score for run in summary.runs)[1]


# ---- stopped -------------------------------------------------------------------------------------


def command_of(tiny: Path, data: Path, run: Path, *more: str) -> list[str]:
    return [
        "finetune",
        str(tiny),
        "--task",
        "classify",
        "--train",
        str(data),
        "--dev",
        str(data),
        "--dev-on-train",
        "--output-dir",
        str(run),
        *FEW,
        "--save-steps",
        "4",
        *more,
    ]


@pytest.mark.slow
def test_a_seed_that_was_killed_goes_on_bit_for_bit(tiny: Path, tmp_path: Path) -> None:
    data = written(tmp_path / "rows.csv", keyword_rows(40))
    steps = ("--max-steps", "150", "--quiet")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "electra", *command_of(tiny, data, tmp_path / "killed", *steps)],
        env=environment,
        start_new_session=True,
    )
    deadline = time.monotonic() + 240
    while not any(
        entry["step"] >= 30
        for entry in read_metrics(tmp_path / "killed" / "seed-0" / "metrics.jsonl")
    ):
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed" / "seed-0" / "result.json").exists(), (
        "it was killed too late to prove anything"
    )
    assert list((tmp_path / "killed" / "seed-0").glob("checkpoint-*"))
    for run in ("killed", "unbroken"):
        assert main(command_of(tiny, data, tmp_path / run, *steps)) == 0
    assert_identical(tmp_path / "killed", tmp_path / "unbroken")
    losses = [
        [entry.get("loss") for entry in read_metrics(tmp_path / run / "seed-0" / "metrics.jsonl")]
        for run in ("killed", "unbroken")
    ]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("name", ["joint", "frozen", "choices"])
def test_every_kind_of_head_goes_on_bit_for_bit_after_a_crash(
    tiny: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crashing(state: FinetuneState, units: Any, *, step: int) -> Tensor:
        if step == 7:
            raise RuntimeError("the power went out")
        return forward_backward(state, units, step=step)

    flags = [*FEW, "--save-steps", "4"]
    monkeypatch.setattr(loop, "forward_backward", crashing)
    with pytest.raises(
        RuntimeError, match=wording("every_kind_of_head_goes_on_bit_for_bit_after_a_crash")
    ):
        TOYS[name].learnt(tiny, tmp_path / "crashed", flags=flags)
    monkeypatch.setattr(loop, "forward_backward", forward_backward)
    for run in ("crashed", "unbroken"):
        TOYS[name].learnt(tiny, tmp_path / run, flags=flags)
    assert_identical(tmp_path / "crashed", tmp_path / "unbroken")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_a_checkpoint_and_exit_status_75_and_the_same_command_goes_on(
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
) -> None:
    data, run = written(tmp_path / "rows.csv", keyword_rows(40)), tmp_path / "run"

    def signalled(state: FinetuneState, units: Any, *, step: int) -> Tensor:
        if state.seed == 1 and step == 7:
            os.kill(os.getpid(), number)
        return forward_backward(state, units, step=step)

    monkeypatch.setattr(loop, "forward_backward", signalled)
    assert main(command_of(tiny, data, run, "--seeds", "2")) == 75
    assert "the same command continues with seed 1" in capsys.readouterr().err
    status = json.loads((run / "status.json").read_text())
    assert (status["status"], status["seeds_done"]) == ("stopped", 1)
    finished = SeedResult.load(run / "seed-0")
    assert finished is not None
    assert status["step"] == finished.steps + 7
    assert (run / "seed-1" / "checkpoint-7" / "state.json").exists()
    assert not (run / "results.json").exists()
    seen: list[int] = []

    def recording(state: FinetuneState, units: Any, *, step: int) -> Tensor:
        seen.append(step)
        return forward_backward(state, units, step=step)

    monkeypatch.setattr(loop, "forward_backward", recording)
    assert main(command_of(tiny, data, run, "--seeds", "2")) == 0
    assert seen == list(range(8, 13)), (
        "the first seed was done, and the second had taken seven steps"
    )
    assert main(command_of(tiny, data, tmp_path / "unbroken", "--seed", "1")) == 0
    assert_identical(run, tmp_path / "unbroken", seed=1)


@pytest.mark.parametrize("is_model", [False, True], ids=["checkpoint", "model"])
def test_a_full_disk_is_reported_with_the_file_and_the_last_checkpoint_and_the_status_failed(
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_model: bool,
) -> None:
    data, run = written(tmp_path / "rows.csv", keyword_rows(40)), tmp_path / "run"
    write = checkpoint.write

    def full(*_: Any, step: int = 8, **more: Any) -> Any:
        if step == 8:
            raise SafetensorError("I/O error: No space left on device (os error 28)")
        return write(*_, step=step, **more)

    with monkeypatch.context() as patched:
        if is_model:
            patched.setattr(scoring, "save_tuned", full)
        else:
            patched.setattr(checkpoint, "write", full)
        assert main(command_of(tiny, data, run)) == 1
    stderr = capsys.readouterr().err
    file, last = ("checkpoint-8", "checkpoint-4")
    if is_model:
        file, last = ("model", "checkpoint-8")
    assert f"{run / 'seed-0' / file}: cannot be written: I/O error: No space left" in stderr
    assert f"the last good checkpoint is {run / 'seed-0' / last}. The same command" in stderr
    status = json.loads((run / "status.json").read_text())
    assert (status["status"], "No space left" in status["message"]) == ("failed", True)
    assert main(command_of(tiny, data, run)) == 0


@pytest.mark.slow
def test_two_processes_give_the_weights_of_one_also_where_a_batch_has_too_few_parts(
    tiny: Path, tmp_path: Path
) -> None:
    """Eleven examples: the last batch of an epoch is a single micro-batch, and one process has
    nothing to do. Neither process unpickles anything.
    """
    data = written(tmp_path / "rows.csv", keyword_rows(11))
    flags = (
        "--dropout",
        "0",
        "--micro-batch-size",
        "3",
        "--max-steps",
        "6",
        "--learning-rate",
        "1e-3",
        "--quiet",
    )
    assert main(command_of(tiny, data, tmp_path / "one", *flags)) == 0
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "localhost:0",
        "-m",
        "tests.without_pickle",
    ]
    done = subprocess.run(
        [*launcher, *command_of(tiny, data, tmp_path / "two", *flags)],
        check=False,
        text=True,
        capture_output=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    for name, tensor in weights(tmp_path / "one").items():
        assert weights(tmp_path / "two")[name].allclose(tensor, atol=1e-5), name
    one, two = (json.loads((tmp_path / run / "results.json").read_text()) for run in ("one", "two"))
    assert one["runs"][0]["scores"] == two["runs"][0]["scores"]
    lines = [
        (tmp_path / run / "seed-0" / "predictions-dev.jsonl").read_text().splitlines()
        for run in ("one", "two")
    ]
    for ours, theirs in zip(*lines, strict=True):
        assert json.loads(theirs)["probability"] == pytest.approx(
            json.loads(ours)["probability"], abs=1e-4
        )
