"""A dry run refuses what would stop the run, and tells what it would find."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn

from electra.__main__ import main
from electra.data.wordpiece import WordPiece
from electra.engine.distributed import World
from electra.pretraining import dry_run
from electra.runs import checkpoint
from tests.cli.conftest import pretrain_argv

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("few_threads")


def test_a_dry_run_refuses_a_frozen_generator_without_weights(
    tmp_path: Path, toy_corpus: Path, complaint: Callable[..., str]
) -> None:
    argv = ["pretrain", "two-stage-base", "--corpus", toy_corpus, "--dry-run"]
    for output in ([], ["--output-dir", tmp_path / "run"]):
        assert "name the run of the first stage" in complaint(*argv, *output)


def test_a_dry_run_refuses_a_tracker_that_is_not_installed(
    tmp_path: Path,
    toy_shards: Path,
    complaint: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "wandb" else find_spec(name)
    )
    argv = pretrain_argv(tmp_path / "run", "--dry-run", data=toy_shards, report_to="wandb")
    assert complaint(*argv) == "--report-to wandb needs: pip install wandb"


def test_a_dry_run_refuses_fewer_micro_batches_than_processes_before_the_text_is_cut(
    tmp_path: Path,
    toy_corpus: Path,
    complaint: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    three = World(rank=0, size=3, device=torch.device("cpu"))
    monkeypatch.setattr(dry_run, "process_group", lambda: nullcontext(three))
    argv = pretrain_argv(tmp_path / "run", "--dry-run", "--corpus", toy_corpus)
    assert "a step has 1 micro-batches, too few for 3 processes" in complaint(*argv)


def test_a_dry_run_refuses_shards_that_were_cut_with_other_settings(
    tmp_path: Path, toy_corpus: Path, toy_shards: Path, complaint: Callable[..., str]
) -> None:
    run = tmp_path / "run"
    tokenizer = ("--tokenizer", toy_shards / "tokenizer")
    argv = pretrain_argv(run, "--corpus", toy_corpus, *tokenizer, data__held_out=0.1)
    complaint(*argv, "--batch-size", "4000")  # once the text is cut
    before = sorted(path.name for path in run.rglob("*"))
    for words in (argv, [*argv, "--dry-run"]):
        message = complaint(*words, "--data.held-out", "0.2")
        assert "data/shards: holds shards with other settings: held_out was 0.1, now 0.2" in message
        assert f"remove {run}/data" in message
    assert sorted(path.name for path in run.rglob("*")) == before


def test_a_dry_run_refuses_to_continue_on_other_shards(
    tmp_path: Path, copied: Path, toy_shards: Path, complaint: Callable[..., str]
) -> None:
    state = checkpoint.open_checkpoint(copied / "checkpoint-4").state | {"data": "another"}
    weights = nn.Linear(2, 2).state_dict()
    shutil.rmtree(copied / "checkpoint-4")
    checkpoint.write(copied, (weights, {"step": torch.ones(1)}), step=4, state=state)
    argv = pretrain_argv(copied, "--dry-run", data=toy_shards)
    assert "checkpoint-4 was trained on other shards than" in complaint(*argv)


def test_a_dry_run_shows_the_warnings_of_the_start(
    copied: Path, toy_shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copied / "checkpoint-4" / "weights.safetensors").write_bytes(b"torn")
    assert main(pretrain_argv(copied, "--dry-run", data=toy_shards)) == 0
    output = capsys.readouterr().out
    assert f"run: continues from {copied}/checkpoint-2 at step 2" in output
    assert "warning: " in output
    assert "using the checkpoint before it" in output


def test_a_dry_run_gives_the_time_of_the_steps_that_are_left(
    copied: Path,
    toy_shards: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of eight steps four are trained; a batch of four rows takes eight seconds."""
    monkeypatch.setattr(dry_run, "measure_row", lambda *_: 2.0)
    longer = ("--dry-run", "--resume-schedule", "stretch")
    assert main(pretrain_argv(copied, *longer, data=toy_shards, max_steps=8)) == 0
    line = "time: about 0m32s for the 4 steps that are left, of 8 s, measured here\n"
    assert line in capsys.readouterr().out
    assert main(pretrain_argv(copied, "--dry-run", data=toy_shards)) == 0
    assert "time: none: all 4 steps are trained\n" in capsys.readouterr().out


def test_a_dry_run_counts_with_the_vocabulary_of_the_shards_or_of_the_tokenizer_that_is_named(
    tmp_path: Path,
    toy_corpus: Path,
    toy_shards: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dry_run, "measure_row", lambda *_: 2.0)
    tokenizer = toy_shards / "tokenizer"
    entries = WordPiece.load(tokenizer).size
    sources = (["--data", toy_shards], ["--corpus", toy_corpus, "--tokenizer", tokenizer])
    for source in sources:
        assert main(pretrain_argv(tmp_path / "run", "--dry-run", *source)) == 0
        assert f"{entries:,}, 32" in capsys.readouterr().out


def run_on_two_ranks(*argvs: list[str]) -> list[tuple[int, str, str]]:
    """Run a command in each of two processes of one group; return their codes and outputs."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    group |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "electra", *argv],
            env=os.environ | group | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, argv in enumerate(argvs)
    ]
    try:
        outputs = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *out) for process, out in zip(processes, outputs, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_of_two_processes_in_a_dry_run_the_main_one_prints_and_both_are_done(
    tmp_path: Path, toy_shards: Path, parallel: str
) -> None:
    run = tmp_path / "run"
    argv = pretrain_argv(run, "--dry-run", data=toy_shards, parallel=parallel, micro_batch_size=2)
    main_rank, other = run_on_two_ranks(argv, argv)
    assert (main_rank[0], other) == (0, (0, "", ""))
    assert f"memory of a step on each of 2 GPUs, {parallel}" in main_rank[1]
    assert main_rank[1].count("measured here") == 1
    assert not run.exists()


@pytest.mark.slow
def test_two_processes_with_other_recipes_are_refused_in_a_dry_run(
    tmp_path: Path, toy_shards: Path
) -> None:
    argvs = (
        pretrain_argv(tmp_path, "--dry-run", data=toy_shards, micro_batch_size=2, seed=seed)
        for seed in (3, 4)
    )
    for code, printed, complaint in run_on_two_ranks(*argvs):
        assert (code, printed) == (2, "")
        assert "training.seed: 3 in rank 0" in complaint
        assert "4 in rank 1" in complaint


def test_a_process_that_is_not_the_main_one_prints_nothing_in_a_dry_run(
    tmp_path: Path,
    toy_shards: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dry_run, "measure_row", lambda *_: 2.0)
    monkeypatch.setenv("RANK", "1")
    assert main(pretrain_argv(tmp_path / "run", "--dry-run", data=toy_shards)) == 0
    assert capsys.readouterr() == ("", "")
