"""One clear message for every mistake with folders, and nothing in them lost."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from electra.__main__ import main
from electra.data.wordpiece import WordPiece
from tests.cli.conftest import pretrain_argv

pytestmark = pytest.mark.usefixtures("few_threads")


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_folder_that_holds_another_run_is_refused_with_the_keys_that_differ(
    finished: Path, toy_shards: Path, complaint: Callable[..., str]
) -> None:
    before = content(finished)
    message = complaint(
        *pretrain_argv(finished, data=toy_shards, seed=9, optimizer__learning_rate=0.001)
    )
    assert message.splitlines() == [
        f"{finished} holds another run:",
        "  optimizer.learning_rate: here 0.004, asked 0.001",
        "  training.seed: here 0, asked 9",
        "Use another --output-dir, or --resume never --overwrite to start over in this one.",
    ]
    assert content(finished) == before


def test_starting_over_needs_both_resume_never_and_overwrite(
    finished: Path, toy_shards: Path, complaint: Callable[..., str]
) -> None:
    before = content(finished)
    assert "already holds a run" in complaint(
        *pretrain_argv(finished, "--resume", "never", data=toy_shards)
    )
    assert "needs --resume never" in complaint(
        *pretrain_argv(finished, "--overwrite", data=toy_shards)
    )
    assert content(finished) == before


def test_a_run_is_never_started_over_because_its_checkpoints_are_damaged(
    copied: Path, toy_shards: Path, complaint: Callable[..., str]
) -> None:
    for state in copied.glob("checkpoint-*/state.json"):
        state.write_text("{")
    before = content(copied)
    message = complaint(*pretrain_argv(copied, data=toy_shards, max_steps=6))
    assert "none of its 2 checkpoints is whole" in message
    assert "checkpoint-4/state.json is damaged" in message
    assert content(copied) == before


def test_a_damaged_checkpoint_is_warned_of_even_with_quiet(
    copied: Path, toy_shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copied / "checkpoint-4" / "weights.safetensors").write_bytes(b"")
    assert main(pretrain_argv(copied, data=toy_shards)) == 0  # quiet, as all commands here
    assert "checkpoint-4/weights.safetensors is damaged" in capsys.readouterr().err.replace(
        "\n", ""
    )


def test_checkpoints_of_another_program_are_left_alone(
    tmp_path: Path, toy_shards: Path, complaint: Callable[..., str]
) -> None:
    theirs = tmp_path / "run" / "checkpoint-500" / "trainer_state.json"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("{}")
    for resume in ("auto", "never"):
        complaint(*pretrain_argv(tmp_path / "run", "--resume", resume, data=toy_shards))
        assert theirs.is_file()


@pytest.mark.parametrize("name", ["file", "file/run"])
def test_an_output_folder_that_is_a_file_is_refused(
    tmp_path: Path, toy_shards: Path, complaint: Callable[..., str], name: str
) -> None:
    (tmp_path / "file").write_text("precious")
    message = complaint(*pretrain_argv(tmp_path / name, data=toy_shards))
    assert (
        message == f"--output-dir {tmp_path / name}: {tmp_path / 'file'} is a file; name a folder"
    )
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_output_folder_that_cannot_be_written_is_refused(
    tmp_path: Path, toy_shards: Path, complaint: Callable[..., str]
) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    assert "no permission to write" in complaint(
        *pretrain_argv(tmp_path / "locked" / "run", data=toy_shards)
    )


@pytest.mark.skipif(
    not Path("/proc/self").exists(), reason="needs a place that nobody can write to, as Linux has"
)
def test_an_output_folder_that_not_even_root_can_write_is_refused(
    toy_shards: Path, complaint: Callable[..., str]
) -> None:
    message = complaint(*pretrain_argv(Path("/proc/run"), data=toy_shards))
    assert message.startswith("--output-dir /proc/run: ")
    assert message.endswith("; name another folder")


def test_a_checkpoint_to_resume_must_be_one(
    tmp_path: Path, finished: Path, toy_shards: Path, complaint: Callable[..., str]
) -> None:
    words = (*pretrain_argv(tmp_path / "run", data=toy_shards), "--resume")
    assert complaint(*words, tmp_path / "no") == (
        f"--resume {tmp_path / 'no'}: no such folder; use auto, never, or a checkpoint-STEP folder"
    )
    assert "state.json is missing" in complaint(*words, finished / "generator")
    assert "no such folder" in complaint(*words, finished / "config.toml")
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_may_continue_in_another_folder_but_not_before_the_newest_of_its_own(
    tmp_path: Path, copied: Path, toy_shards: Path, complaint: Callable[..., str]
) -> None:
    early = copied / "checkpoint-2"
    assert "already went on to step 4" in complaint(
        *pretrain_argv(copied, "--resume", early, data=toy_shards)
    )
    assert (
        main(pretrain_argv(tmp_path / "branch", "--resume", early, data=toy_shards, max_steps=3))
        == 0
    )
    assert json.loads((tmp_path / "branch" / "status.json").read_text())["step"] == 3


def test_a_model_to_start_from_must_fit(
    tmp_path: Path, finished: Path, toy_shards: Path, complaint: Callable[..., str]
) -> None:
    folder, model = tmp_path / "run", finished / "discriminator"
    for nothing in (
        tmp_path / "no",
        finished / "config.toml",
    ):  # found before a corpus would be cut
        message = complaint(*pretrain_argv(folder, "--init-from", nothing, "--corpus", nothing))
        assert message == f"--init-from {nothing}: no such folder; name a run or a model's folder"
    message = complaint(*pretrain_argv(folder, "--init-from", toy_shards, data=toy_shards))
    assert message.startswith(
        f"--init-from {toy_shards}: no model for discriminator or generator there"
    )
    message = complaint(
        *pretrain_argv(folder, "--init-from", model, data=toy_shards, encoder__layers=3)
    )
    assert "num_hidden_layers is 2, but the network to fill has encoder.layers=3" in message
    message = complaint(
        *pretrain_argv(
            folder, "--init-from", finished / "generator", data=toy_shards, recipe="bert-small"
        )
    )
    assert "hidden_size is 16" in message
    assert not folder.exists()


def test_a_model_of_another_vocabulary_is_refused_with_the_command_that_helps(
    tmp_path: Path, copied: Path, toy_shards: Path, complaint: Callable[..., str]
) -> None:
    model = copied / "discriminator"
    definition = json.loads((model / "tokenizer.json").read_text(encoding="utf8"))
    definition["normalizer"]["lowercase"] = False
    (model / "tokenizer.json").write_text(json.dumps(definition), encoding="utf8")
    assert WordPiece.load(model).size == WordPiece.load(toy_shards / "tokenizer").size
    message = complaint(*pretrain_argv(tmp_path / "new", "--init-from", model, data=toy_shards))
    assert f"its tokenizer is not the one that {toy_shards} was cut with" in message
    assert f"--tokenizer {model}" in message


@pytest.mark.parametrize("words", [["show"], ["describe"]])
def test_a_folder_without_a_model_is_refused(
    toy_shards: Path, complaint: Callable[..., str], words: list[str]
) -> None:
    assert str(toy_shards) in complaint(*words, toy_shards)


def test_an_empty_sentence_is_refused(finished: Path, complaint: Callable[..., str]) -> None:
    assert complaint("show", finished, " ") == "the text is empty; give a sentence"
    assert complaint("show", finished, "") == "the text is empty; give a sentence"
