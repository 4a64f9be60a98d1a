"""One clear message for every mistake with folders, and nothing in them lost."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from electra.__main__ import main
from electra.checksums import CHECKSUMS
from electra.config import UserError
from electra.data.wordpiece import WordPiece
from electra.experiments import run_job
from electra.experiments.scoring import Scoring
from electra.file_lock import folder_lock
from electra.model.families import build_masked_lm
from electra.model.huggingface import save
from electra.pretraining.recipe import load_recipe
from electra.web.tokens import load_networks
from tests.cli.conftest import pretrain_argv
from tests.conftest import files_of

pytestmark = pytest.mark.usefixtures("few_threads")


def test_a_folder_that_holds_another_run_is_refused_with_the_keys_that_differ(
    finished: Path, toy_shards: Path, complaint: Callable[..., str]
) -> None:
    before = files_of(finished)
    message = complaint(
        *pretrain_argv(finished, data=toy_shards, seed=9, optimizer__learning_rate=0.001)
    )
    assert message.splitlines() == [
        f"{finished} holds another run:",
        "  optimizer.learning_rate: here 0.004, asked 0.001",
        "  training.seed: here 0, asked 9",
        f"To continue it, name its own recipe, {finished / 'config.toml'}, and leave out flags and "
        "files that change these settings. Else use another --output-dir, or --resume never "
        "--overwrite to start over in this one.",
    ]
    assert files_of(finished) == before


def test_starting_over_needs_both_resume_never_and_overwrite(
    finished: Path, toy_shards: Path, complaint: Callable[..., str]
) -> None:
    before = files_of(finished)
    assert "already holds a run" in complaint(
        *pretrain_argv(finished, "--resume", "never", data=toy_shards)
    )
    assert "needs --resume never" in complaint(
        *pretrain_argv(finished, "--overwrite", data=toy_shards)
    )
    assert files_of(finished) == before


def test_a_run_is_never_started_over_because_its_checkpoints_are_damaged(
    copied: Path, toy_shards: Path, complaint: Callable[..., str]
) -> None:
    for state in copied.glob("checkpoint-*/state.json"):
        state.write_text("{")
    before = files_of(copied)
    message = complaint(*pretrain_argv(copied, data=toy_shards, max_steps=6))
    assert "none of its 2 checkpoints is whole" in message
    assert "checkpoint-4/state.json is damaged" in message
    assert files_of(copied) == before


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


def test_a_folder_with_files_of_somebody_else_is_refused_and_left_alone(
    tmp_path: Path, toy_shards: Path, complaint: Callable[..., str]
) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    for more in ((), ("--resume", "never"), ("--resume", "never", "--overwrite"), ("--dry-run",)):
        message = complaint(*pretrain_argv(tmp_path, *more, data=toy_shards))
        assert "holds something else than a run: thesis.tex" in message
    assert [path.name for path in tmp_path.iterdir() if path.name != ".lock"] == ["thesis.tex"]


def test_a_killed_run_is_named_with_the_command_that_writes_its_models(
    tmp_path: Path, copied: Path, toy_shards: Path, complaint: Callable[..., str]
) -> None:
    for role in ("discriminator", "generator"):
        shutil.rmtree(copied / role)
    begun = pretrain_argv(tmp_path / "new", "--init-from", copied, data=toy_shards)
    sentences = tmp_path / "sentences.txt"
    sentences.write_text("a sentence\n", encoding="utf8")
    for command in (["predict", copied, sentences], ["show", copied], [*begun, "--dry-run"]):
        assert complaint(*command) == (
            f"{copied} is a pre-training run that has not written its models yet (checkpoint-4); "
            "the same `electra pretrain` command continues it and writes them"
        )
    for checkpoint in copied.glob("checkpoint-*"):  # then it may be a fine-tuning
        shutil.rmtree(checkpoint)
    assert "pre-training run" not in complaint("show", copied)


def test_a_finished_run_is_not_extended_by_a_learning_rate_that_jumps_up(
    copied: Path, toy_shards: Path, complaint: Callable[..., str]
) -> None:
    before = files_of(copied)
    message = complaint(*pretrain_argv(copied, data=toy_shards, max_steps=8))
    assert "the learning rate would rise from 0 to 0.002 at step 5" in message
    assert "--resume-schedule stretch" in message
    assert files_of(copied) == before


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


@pytest.mark.skipif(
    not Path("/proc/self").exists(), reason="needs a place that nobody can write to, as Linux has"
)
@pytest.mark.parametrize(
    "command",
    [
        ("predict", "model", "a sentence", "--output", "/proc/said.csv"),
        ("embed", "model", "texts.txt", "--output", "/proc/said.npy"),
        ("show", "run", "--output", "/proc/said.svg"),
    ],
)
def test_an_output_file_that_cannot_be_written_is_refused_before_the_model_is_read(
    command: tuple[str, ...], complaint: Callable[..., str]
) -> None:
    message = complaint(*command)
    assert message.startswith(f"--output {command[-1]}: cannot be written: ")
    assert message.endswith("; name a file elsewhere")


def test_an_output_file_that_is_a_folder_is_refused(
    tmp_path: Path, complaint: Callable[..., str]
) -> None:
    (tmp_path / "said.csv").mkdir()
    message = complaint("predict", "model", "a sentence", "--output", tmp_path / "said.csv")
    assert message == f"--output {tmp_path / 'said.csv'} is a folder; name a file"


@pytest.mark.parametrize(("command", "name"), [("predict", "in.csv"), ("embed", "in.parquet")])
def test_an_output_file_that_is_the_input_is_refused(
    command: str, name: str, tmp_path: Path, complaint: Callable[..., str]
) -> None:
    (tmp_path / name).write_text("text\na dog\n", encoding="utf8")
    (tmp_path / "link").symlink_to(tmp_path)
    message = complaint(command, "model", tmp_path / name, "--output", tmp_path / "link" / name)
    assert message.endswith(f"{name}: this is the input, which would be lost; name another file")


@pytest.mark.skipif(
    not Path("/proc/self").exists(), reason="needs a place that nobody can write to, as Linux has"
)
def test_quickstart_refuses_a_folder_that_cannot_be_written(complaint: Callable[..., str]) -> None:
    message = complaint("quickstart", "--output-dir", "/proc/quick")
    assert message.startswith("--output-dir /proc/quick: ")


def test_the_language_and_the_licence_stand_in_the_cards_and_are_checked_before_the_work(
    tmp_path: Path, toy_shards: Path, complaint: Callable[..., str]
) -> None:
    run = tmp_path / "run"
    message = complaint(*pretrain_argv(run, "--language", "German", data=toy_shards))
    assert "'German' is not an ISO 639 code such as en, de" in message
    assert not run.exists()
    words = ("--language", "de", "--license", "cc-by-sa-4.0")
    assert main(pretrain_argv(run, *words, data=toy_shards, max_steps=2)) == 0
    for name in ("discriminator", "generator"):
        card = (run / name / "README.md").read_text(encoding="utf8")
        assert '\nlanguage: "de"\nlicense: "cc-by-sa-4.0"\n' in card


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
    assert "already trained to step 4" in complaint(
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


def test_a_pair_of_two_families_is_refused(
    tmp_path: Path, copied: Path, toy_shards: Path, complaint: Callable[..., str]
) -> None:
    discriminator, generator = (copied / name for name in ("discriminator", "generator"))
    shutil.rmtree(generator)
    shape = load_recipe("modern-tiny").encoder
    save(
        build_masked_lm(shape, vocabulary=WordPiece.load(discriminator).size),
        generator,
        role="generator",
    )
    start = pretrain_argv(tmp_path / "new", "--init-from", copied, data=toy_shards)
    for command in (["describe", copied], ["show", copied], start, [*start, "--dry-run"]):
        assert complaint(*command).startswith(
            f"{discriminator / 'config.json'}: model_type is electra and "
            f"{generator / 'config.json'}: model_type is modernbert, but both networks of a run "
            "are of one family"
        )
    with pytest.raises(UserError, match="both networks of a run are of one family"):
        load_networks([generator, discriminator], device=torch.device("cpu"))


def test_one_folder_that_fits_no_network_is_refused_before_text_is_read(
    tmp_path: Path, copied: Path, toy_corpus: Path, complaint: Callable[..., str]
) -> None:
    discriminator = copied / "discriminator"
    start = pretrain_argv(
        tmp_path / "new", "--init-from", discriminator, "--corpus", toy_corpus, encoder__layers=3
    )
    for command in (start, [*start, "--dry-run"]):
        assert "num_hidden_layers is 2, but the network to fill has encoder.layers=3" in complaint(
            *command
        )
    shutil.move(discriminator, copied / "encoder")
    shutil.rmtree(copied / "generator")
    start = pretrain_argv(tmp_path / "new", "--init-from", copied, "--corpus", toy_corpus)
    for command in (start, [*start, "--dry-run"]):
        assert "no model for discriminator or generator there" in complaint(*command)
    assert not (tmp_path / "new").exists()


def test_a_generator_with_an_output_of_its_own_is_refused_before_text_is_read(
    tmp_path: Path, copied: Path, toy_corpus: Path, complaint: Callable[..., str]
) -> None:
    config = copied / "generator" / "config.json"
    values = json.loads(config.read_text(encoding="utf8")) | {"tie_word_embeddings": False}
    config.write_text(json.dumps(values), encoding="utf8")
    (config.parent / CHECKSUMS).unlink()
    start = pretrain_argv(tmp_path / "new", "--init-from", copied, "--corpus", toy_corpus)
    for command in (start, [*start, "--dry-run"]):
        assert "tie_word_embeddings is false" in complaint(*command)
    assert not (tmp_path / "new").exists()


def test_models_that_do_not_fit_are_refused_with_every_setting_before_text_is_read(
    tmp_path: Path, finished: Path, toy_corpus: Path, complaint: Callable[..., str]
) -> None:
    sizes = {"objective__generator__width": 32, "objective__generator__heads": 2}
    start = pretrain_argv(
        tmp_path / "run", "--init-from", finished, "--corpus", toy_corpus, **sizes
    )
    for command in (start, [*start, "--dry-run"]):
        message = complaint(*command)
        assert message.startswith(f"{finished / 'generator' / 'config.json'}: hidden_size is 16, ")
        for remedy in ("objective.generator.width to 16", "objective.generator.heads to 1"):
            assert remedy in message
    assert not (tmp_path / "run").exists()


def test_a_model_of_another_vocabulary_is_refused_with_the_command_that_helps(
    tmp_path: Path, copied: Path, toy_shards: Path, complaint: Callable[..., str]
) -> None:
    model = copied / "discriminator"
    definition = json.loads((model / "tokenizer.json").read_text(encoding="utf8"))
    definition["normalizer"]["lowercase"] = False
    (model / "tokenizer.json").write_text(json.dumps(definition), encoding="utf8")
    (model / CHECKSUMS).unlink()
    assert WordPiece.load(model).size == WordPiece.load(toy_shards / "tokenizer").size
    start = pretrain_argv(tmp_path / "new", "--init-from", model, data=toy_shards)
    for command in (start, [*start, "--dry-run"]):
        message = complaint(*command)
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


# ---- links in a folder from somebody else --------------------------------------------------------


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A folder that is none of the run's, with files of names that a run writes and removes."""
    folder = tmp_path / "precious"
    for name in ("metrics.jsonl", "result.json", "tokenizer.json", "model/weights"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")
    return folder


def test_a_run_overwrites_no_file_that_its_folder_links_to(
    tmp_path: Path, precious: Path, toy_shards: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")  # named by the user, so it is followed
    for name in ("config.toml", "status.json", "environment.json", "metrics.jsonl"):
        (tmp_path / "run" / f".{name}.partial").symlink_to(precious / "metrics.jsonl")
    (tmp_path / "run" / "metrics.jsonl").symlink_to(precious / "metrics.jsonl")
    for name in (".checkpoint-2.partial", ".checkpoint-4.old", ".discriminator.partial"):
        (tmp_path / "run" / name).symlink_to(precious)
    before = files_of(precious)
    assert main(pretrain_argv(tmp_path / "run", data=toy_shards)) == 0
    assert files_of(precious) == before
    assert not [path for path in (tmp_path / "elsewhere").rglob("*") if path.is_symlink()]


@pytest.mark.parametrize("name", [".lock", "data", "tensorboard", "data/shards", "data/tokenizer"])
def test_a_run_folder_with_a_link_to_write_through_is_refused(
    tmp_path: Path, precious: Path, toy_corpus: Path, complaint: Callable[..., str], name: str
) -> None:
    run, before = tmp_path / "run", files_of(precious)
    (run / name).parent.mkdir(parents=True)
    (run / name).symlink_to(precious)
    assert str(run / name) in complaint(*pretrain_argv(run, "--corpus", toy_corpus))
    assert files_of(precious) == before
    assert not (run / "status.json").exists()


def test_a_fine_tuning_with_a_seed_that_is_a_link_is_refused(
    tmp_path: Path, precious: Path, finished: Path, complaint: Callable[..., str]
) -> None:
    before, argv = files_of(precious), ("finetune", finished, "--task", "glue/rte")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "seed-7").symlink_to(precious)
    over = ("--resume", "never", "--overwrite")
    message = complaint(*argv, "--data", tmp_path, "--output-dir", tmp_path / "run", *over)
    assert f"{tmp_path / 'run' / 'seed-7'} is a symbolic link to {precious}" in message
    assert files_of(precious) == before


@pytest.mark.parametrize("name", ["tokenizer", "part-00001-of-00002"])
def test_shards_are_written_through_no_link(
    tmp_path: Path,
    precious: Path,
    toy_corpus: Path,
    toy_shards: Path,
    complaint: Callable[..., str],
    name: str,
) -> None:
    before, rows = files_of(precious), tmp_path / "rows"
    rows.mkdir()
    (rows / name).symlink_to(precious)
    more = ["--part", "1/2"] if name.startswith("part") else []
    argv = ("shard", toy_corpus, "--tokenizer", toy_shards / "tokenizer", "--output-dir", rows)
    assert f"{rows / name} is a symbolic link" in complaint(*argv, *more, "--overwrite")
    assert files_of(precious) == before


def test_quickstart_writes_its_corpus_through_no_link(
    tmp_path: Path, precious: Path, complaint: Callable[..., str]
) -> None:
    (tmp_path / "quick").mkdir()
    (tmp_path / "quick" / "corpus").symlink_to(precious)
    message = complaint("quickstart", "--output-dir", tmp_path / "quick")
    assert f"{tmp_path / 'quick' / 'corpus'} is a symbolic link" in message


def test_a_sweep_removes_no_model_through_a_link(
    tmp_path: Path, precious: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_job, "is_scored", lambda scoring: True)
    (tmp_path / "scored").mkdir()
    (tmp_path / "scored" / "seed-0").symlink_to(precious)
    scoring = Scoring(
        task="glue/rte", data="", folder=tmp_path / "scored", seeds=1, recipe="", flags=()
    )
    context = run_job.JobContext(lambda: False, print, quiet=True)
    with pytest.raises(UserError, match="symbolic link"):
        run_job.score(tmp_path, scoring, context)
    assert (precious / "model" / "weights").read_text() == "mine"


# ---- two commands in one folder ------------------------------------------------------------------


@pytest.mark.parametrize("command", ["vocab", "shard"])
def test_a_second_command_that_writes_the_same_folder_is_refused_with_the_first(
    tmp_path: Path, toy_corpus: Path, toy_shards: Path, complaint: Callable[..., str], command: str
) -> None:
    more = ["--tokenizer", toy_shards / "tokenizer"] if command == "shard" else []
    with folder_lock(tmp_path / "out"):
        message = complaint(command, toy_corpus, "--output-dir", tmp_path / "out", *more)
    assert f"{tmp_path / 'out'} is in use by another command (process {os.getpid()} on" in message


def test_two_parts_of_one_corpus_may_be_cut_at_once(
    tmp_path: Path, toy_corpus: Path, toy_shards: Path
) -> None:
    argv = ["shard", toy_corpus, "--tokenizer", toy_shards / "tokenizer", "--part", "1/2"]
    with folder_lock(tmp_path / "rows" / "part-00002-of-00002"):
        assert main([str(word) for word in (*argv, "--output-dir", tmp_path / "rows")]) == 0
