"""What goes wrong while a run is under way is said in one message, with what is safe."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import electra.pretraining.loop
from electra.__main__ import main
from electra.runs import checkpoint
from tests.cli.conftest import pretrain_argv

pytestmark = pytest.mark.usefixtures("few_threads")


def test_a_full_disk_ends_the_run_and_leaves_the_last_good_checkpoint(
    tmp_path: Path, toy_shards: Path, complaint: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, save_file = tmp_path / "run", checkpoint.save_file

    def full(tensors: dict[str, torch.Tensor], path: Path) -> None:
        if "checkpoint-4" in str(path):
            raise OSError(28, "No space left on device")
        save_file(tensors, path)

    monkeypatch.setattr(checkpoint, "save_file", full)
    message = complaint(*pretrain_argv(folder, data=toy_shards), code=1)
    assert (
        "the checkpoint of step 4 could not be written: [Errno 28] No space left on device"
        in message
    )
    assert f"the last good checkpoint is {folder / 'checkpoint-2'}" in message
    status = json.loads((folder / "status.json").read_text())
    assert (status["status"], status["checkpoint"]) == ("failed", "checkpoint-2")
    assert checkpoint.open_checkpoint(folder / "checkpoint-2").step == 2
    assert [path.name for path in folder.iterdir() if "checkpoint" in path.name] == ["checkpoint-2"]
    monkeypatch.undo()
    assert main(pretrain_argv(folder, data=toy_shards)) == 0


@pytest.mark.parametrize(
    "fault", ["electra.model.weight_files.save_file", "electra.runs.journal.Journal.record"]
)
def test_a_full_disk_at_any_other_write_fails_with_the_same_message(
    tmp_path: Path,
    toy_shards: Path,
    complaint: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fault, full)
    message = complaint(*pretrain_argv(tmp_path / "run", data=toy_shards), code=1)
    assert "No space left on device" in message
    assert "checkpoint" in message
    assert json.loads((tmp_path / "run" / "status.json").read_text())["status"] == "failed"


def test_a_loss_that_is_not_finite_ends_the_run_with_the_tensor_and_the_last_checkpoint(
    tmp_path: Path, toy_shards: Path, complaint: Callable[..., str]
) -> None:
    message = complaint(
        *pretrain_argv(
            tmp_path / "run", data=toy_shards, learning_rate=1e30, save_steps=1, warmup_steps=0
        ),
        code=1,
    )
    assert (
        "the output of generator.encoder.embeddings.norm (micro-batch 0) is not finite in step 2"
        in message
    )
    assert f"the last good checkpoint is {tmp_path / 'run' / 'checkpoint-1'}" in message
    assert json.loads((tmp_path / "run" / "status.json").read_text())["status"] == "failed"


def test_an_unexpected_error_prints_one_line_and_debug_shows_the_traceback(
    complaint: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("we did not think of this")

    monkeypatch.setattr("electra.pretraining.recipe.load_recipe", broken)
    assert (
        complaint("describe", "tiny", code=1)
        == "RuntimeError: we did not think of this (--debug shows where)"
    )
    with pytest.raises(RuntimeError):
        main(["describe", "tiny", "--debug"])


def test_a_misspelt_command_is_refused_with_the_nearest(complaint: Callable[..., str]) -> None:
    assert 'Did you mean "pretrain"?' in complaint("pretrian", "tiny")


@pytest.mark.parametrize("command", ["vocab", "shard"])
def test_an_output_folder_that_is_a_file_is_refused_before_the_work(
    tmp_path: Path, toy_corpus: Path, toy_shards: Path, complaint: Callable[..., str], command: str
) -> None:
    (tmp_path / "file").write_text("mine")
    more = ["--tokenizer", toy_shards / "tokenizer"] if command == "shard" else []
    assert complaint(command, toy_corpus, "--output-dir", tmp_path / "file", *more) == (
        f"--output-dir {tmp_path / 'file'} is a file; name a folder"
    )


def test_a_run_goes_on_to_its_end_when_nobody_reads_its_output(
    tmp_path: Path, toy_shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    argv = [word for word in pretrain_argv(tmp_path / "run", data=toy_shards) if word != "--quiet"]
    with os.fdopen(writer, "w", buffering=1) as closed:
        monkeypatch.setattr(sys, "stderr", closed)
        monkeypatch.setattr(sys, "stdout", closed)
        assert main(argv) == 0
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["status"], status["step"]) == ("finished", 4)
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) > 1


def test_a_run_whose_terminal_is_closed_saves_and_stops(
    tmp_path: Path, toy_shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = electra.pretraining.loop.optimizer_step

    def hang_up(*arguments: object) -> float:
        os.kill(os.getpid(), signal.SIGHUP)
        return step(*arguments)

    monkeypatch.setattr(electra.pretraining.loop, "optimizer_step", hang_up)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    try:
        assert main(pretrain_argv(tmp_path / "run", data=toy_shards)) == 75
    finally:
        signal.signal(signal.SIGHUP, before)
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["status"], status["checkpoint"]) == ("stopped", "checkpoint-1")


@pytest.mark.parametrize("argv", [["--help"], ["pretrain", "tiny", "--print-config"]])
def test_an_answer_that_nobody_reads_ends_quietly(argv: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "electra", *argv]
    ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=240)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (0, "")
