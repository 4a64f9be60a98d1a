"""The command line as promised."""

from __future__ import annotations

import json
import shlex
import shutil
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from electra import __version__
from electra.__main__ import main
from electra.cli import beside
from electra.runs import journal
from tests.cli.conftest import pretrain_argv
from tests.conftest import files_of

pytestmark = pytest.mark.usefixtures("few_threads")


def test_a_run_leaves_the_promised_files_and_no_others(finished: Path) -> None:
    model = [
        "README.md",
        "checksums.sha256",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    ]
    state = ["checksums.sha256", "optimizer.safetensors", "state.json", "weights.safetensors"]
    expected = ["config.toml", "environment.json", "metrics.jsonl", "status.json"]
    expected += [f"{folder}/{name}" for folder in ("discriminator", "generator") for name in model]
    expected += [f"checkpoint-{step}/{name}" for step in (2, 4) for name in state]
    assert sorted(files_of(finished)) == sorted(expected)
    assert json.loads((finished / "status.json").read_text())["status"] == "finished"


@pytest.mark.parametrize(
    ("length", "settings"),
    [
        (64, ["--data.length", "64"]),
        (128, []),
        pytest.param(
            1024,
            ["--data.length", "1024", "--encoder.positions", "1024"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_shard_names_a_command_that_takes_its_rows(
    length: int,
    settings: list[str],
    tmp_path: Path,
    toy_corpus: Path,
    toy_shards: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shards = tmp_path / "shards"
    argv = ["shard", toy_corpus, "--tokenizer", toy_shards / "tokenizer", "--output-dir", shards]
    assert main([*map(str, argv), "--length", str(length), "--held-out", "0.1"]) == 0
    named = shlex.split(capsys.readouterr().err.splitlines()[-1])
    folders = ["--data", str(shards), "--output-dir", str(tmp_path / "run")]
    assert named == ["electra", "pretrain", "modern-small", *folders, *settings]
    assert main([*named[1:], "--dry-run", "--batch-size", "4"]) == 0


def test_a_path_beside_the_current_folder_is_named_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shards").mkdir()
    monkeypatch.chdir(tmp_path / "shards")
    assert beside(Path(), "run") == tmp_path / "run"
    assert beside(Path("shards"), "run") == Path("run")


def test_the_same_command_again_finds_nothing_to_do(copied: Path, toy_shards: Path) -> None:
    before = files_of(copied)
    assert main(pretrain_argv(copied, data=toy_shards)) == 0
    after = files_of(copied)
    assert after["metrics.jsonl"] == before["metrics.jsonl"]
    assert after["checkpoint-4/weights.safetensors"] == before["checkpoint-4/weights.safetensors"]


def test_more_steps_continue_the_run(copied: Path, toy_shards: Path) -> None:
    words = pretrain_argv(copied, "--resume-schedule", "stretch", data=toy_shards, max_steps=6)
    assert main(words) == 0
    assert [
        entry["step"] for entry in journal.read_metrics(copied / "metrics.jsonl") if "loss" in entry
    ] == [1, 2, 3, 4, 5, 6]
    assert json.loads((copied / "status.json").read_text())["step"] == 6


def test_a_torn_journal_does_not_keep_a_run_from_going_on(copied: Path, toy_shards: Path) -> None:
    with (copied / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 5, "lo\xff\x00')
    words = pretrain_argv(copied, "--resume-schedule", "stretch", data=toy_shards, max_steps=5)
    assert main(words) == 0
    lines = (copied / "metrics.jsonl").read_text(encoding="utf8").splitlines()
    assert [json.loads(line)["step"] for line in lines if "loss" in json.loads(line)] == [
        1,
        2,
        3,
        4,
        5,
    ]


def test_overwriting_starts_over(copied: Path, toy_shards: Path) -> None:
    assert (
        main(
            pretrain_argv(
                copied, "--resume", "never", "--overwrite", data=toy_shards, seed=7, max_steps=2
            )
        )
        == 0
    )
    assert json.loads((copied / "status.json").read_text())["step"] == 2
    assert tomllib.loads((copied / "config.toml").read_text())["training"]["seed"] == 7
    assert [path.name for path in copied.glob("checkpoint-*")] == ["checkpoint-2"]


def test_one_command_goes_from_text_to_models(toy_corpus: Path, tmp_path: Path) -> None:
    words = pretrain_argv(
        tmp_path / "run", "--corpus", toy_corpus, data__vocab_size=200, data__held_out=0.1
    )
    assert main(words) == 0
    assert main(words) == 0
    assert {path.name for path in (tmp_path / "run" / "data").iterdir()} == {"shards", "tokenizer"}
    assert (tmp_path / "run" / "generator" / "model.safetensors").is_file()


def test_printed_settings_are_a_recipe_for_the_same_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pretrain", "small", "--batch-size", "64", "--print-config"]) == 0
    printed = capsys.readouterr().out
    (tmp_path / "mine.toml").write_text(printed)
    assert main(["pretrain", str(tmp_path / "mine.toml"), "--print-config"]) == 0
    assert capsys.readouterr().out == printed
    assert tomllib.loads(printed)["training"]["batch_size"] == 64


def test_a_dry_run_prints_the_costs_and_writes_nothing(
    tmp_path: Path, toy_shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(pretrain_argv(tmp_path / "run", "--dry-run", data=toy_shards)) == 0
    output = capsys.readouterr().out
    assert "training, whole run" in output
    assert "max_steps = 4" in output
    for fact in ("run: a new one in", "epochs: ", "tokenizer: ", "disk: ", "memory: "):
        assert f"\n{fact}" in output
    assert "time: about 0m00s for 4 steps of" in output
    assert not (tmp_path / "run").exists()


def test_a_dry_run_of_text_counts_its_files(
    tmp_path: Path, toy_corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = pretrain_argv(tmp_path / "run", "--dry-run", "--corpus", toy_corpus)
    assert main(words) == 0
    output = capsys.readouterr().out
    assert "corpus: 1 files, " in output
    assert "time: not measured" in output
    assert not (tmp_path / "run").exists()


def test_a_dry_run_of_a_finished_run_says_where_it_goes_on(
    finished: Path, toy_shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(pretrain_argv(finished, "--dry-run", data=toy_shards)) == 0
    assert f"run: continues from {finished}/checkpoint-4 at step 4" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--data", "--corpus", "--init-from", "--tokenizer"])
def test_a_dry_run_with_a_wrong_path_is_refused_before_anything_is_printed(
    tmp_path: Path,
    toy_shards: Path,
    toy_corpus: Path,
    option: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = pretrain_argv(tmp_path / "run", "--dry-run", option, tmp_path / "missing")
    if option == "--init-from":
        words += ["--data", str(toy_shards)]
    if option == "--tokenizer":
        words += ["--corpus", str(toy_corpus)]
    capsys.readouterr()
    assert main(words) == 2
    assert capsys.readouterr().out == ""


def test_a_dry_run_without_room_on_the_disk_is_refused(
    tmp_path: Path, toy_shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    assert main(pretrain_argv(tmp_path / "run", "--dry-run", data=toy_shards)) == 2


def test_a_finished_run_names_the_next_commands_with_its_paths(
    copied: Path, toy_shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = pretrain_argv(copied, data=toy_shards)
    words.remove("--quiet")
    assert main(words) == 0
    printed = capsys.readouterr().err
    after = printed[printed.index("finished at step 4") :]
    assert "verdict: " in after
    assert f"electra show {copied} " in after
    assert f"electra finetune {copied} --task classify" in after
    assert f"electra embed {copied}/discriminator texts.txt" in after


def test_a_quiet_run_still_warns_of_a_model_that_is_not_worth_fine_tuning(
    copied: Path, toy_shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(pretrain_argv(copied, data=toy_shards)) == 0
    assert "unlikely to help" in capsys.readouterr().err


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


def test_a_recipe_a_run_a_model_and_an_unfinished_run_can_be_described(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(finished / "config.toml", tmp_path)
    for what in ("small", finished, finished / "generator", tmp_path):
        assert main(["describe", str(what), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["parameters"]["encoder"] > 0


def test_a_sentence_is_traced_and_printed(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(finished), "the old dog sees the green house ."]) == 0
    output = capsys.readouterr().out
    assert "[MASK]" in output
    assert "generator's sample" in output
