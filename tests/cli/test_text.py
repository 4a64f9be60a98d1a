"""One clear message for every mistake in text, tokenizers and shards."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from electra.__main__ import main
from tests.cli.conftest import pretrain_argv

pytestmark = pytest.mark.usefixtures("few_threads")


def test_text_and_shards_together_or_neither_are_refused(
    tmp_path: Path, toy_corpus: Path, toy_shards: Path, complaint: Callable[..., str]
) -> None:
    expected = "give either --corpus (text files) or --data (shards from `electra shard`)"
    assert complaint(*pretrain_argv(tmp_path / "run")) == expected
    assert (
        complaint(*pretrain_argv(tmp_path / "run", "--corpus", toy_corpus, data=toy_shards))
        == expected
    )
    assert (
        complaint(*pretrain_argv(tmp_path / "run", "--corpus"))
        == "name at least one file, folder or glob of text"
    )
    assert complaint("pretrain", "tiny", "--data", toy_shards).startswith("--output-dir is missing")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "bytes_", "message"),
    [
        ("missing.txt", None, "missing.txt: no such file or folder"),
        ("empty.txt", b"", "the corpus holds no text: "),
        ("blank.txt", b" \n\n \n", "the corpus holds no text: "),
        ("junk.txt", bytes(range(256)), "junk.txt:1: a NUL byte; this is not UTF-8 text"),
        ("latin.txt", b"fine\ncaf\xe9\n", "latin.txt:2: byte 0xe9 at column 4 is not UTF-8"),
        ("picture.png", b"\x89PNG", "picture.png: cannot tell what this file holds from its name"),
        ("rows.jsonl", b'{"body": "x"}\n', "rows.jsonl:1: no field 'text'; fields here are body"),
    ],
)
def test_text_that_cannot_be_read_is_refused_with_its_file_and_line(
    tmp_path: Path, complaint: Callable[..., str], name: str, bytes_: bytes | None, message: str
) -> None:
    if bytes_ is not None:
        (tmp_path / name).write_bytes(bytes_)
    assert message in complaint(*pretrain_argv(tmp_path / "run", "--corpus", tmp_path / name))
    assert not [path for path in (tmp_path / "run").rglob("*") if path.is_file()]


def test_a_run_with_more_text_than_before_is_continued_with_the_shards_it_has(
    tmp_path: Path, toy_corpus: Path, complaint: Callable[..., str]
) -> None:
    texts, run = tmp_path / "texts", tmp_path / "run"
    texts.mkdir()
    shutil.copy(toy_corpus, texts)
    argv = pretrain_argv(run, "--corpus", texts, data__vocab_size=200, data__held_out=0.1)
    assert main(argv) == 0
    (texts / "more.txt").write_text("one more sentence\n", encoding="utf8")
    longer = [*argv, "--resume-schedule", "stretch"]
    longer[longer.index("--max-steps") + 1] = "6"
    for argv in (longer, [*longer, "--dry-run"]):
        assert complaint(*argv) == (
            f"{run}/data/tokenizer: holds a vocabulary with other settings: the text is another; "
            f"the checkpoints in {run} fit only the shards that are there: continue with --data "
            f"{run}/data/shards in place of --corpus, or start over with another --output-dir"
        )
    place = longer.index("--corpus")
    longer[place : place + 2] = ["--data", str(run / "data" / "shards")]
    assert main(longer) == 0
    assert (run / "checkpoint-6").is_dir()


def test_data_of_an_earlier_start_without_checkpoints_may_be_removed(
    tmp_path: Path, toy_corpus: Path, complaint: Callable[..., str]
) -> None:
    text, run = Path(shutil.copy(toy_corpus, tmp_path)), tmp_path / "run"
    argv = pretrain_argv(run, "--corpus", text, data__vocab_size=200, data__held_out=0.1)
    complaint(*argv, "--batch-size", "4000")  # once the text is cut
    text.write_text("another text\n", encoding="utf8")
    for again in (argv, [*argv, "--dry-run"]):
        assert complaint(*again).endswith(
            "the text is another; this folder belongs to an earlier start: remove "
            f"{run}/data, or choose another --output-dir"
        )


def test_too_little_text_for_a_batch_is_refused_with_the_numbers(
    tmp_path: Path, toy_shards: Path, complaint: Callable[..., str]
) -> None:
    message = complaint(*pretrain_argv(tmp_path / "run", data=toy_shards, batch_size=4000))
    assert "fewer than one batch of 4000; add text, or pass a smaller --batch-size" in message
    assert str(toy_shards) in message
    assert not (tmp_path / "run").exists()


def test_a_single_document_is_refused_with_the_way_out_of_document_file(
    tmp_path: Path, complaint: Callable[..., str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the old bridge and the water\n\n" * 400, encoding="utf8")
    argv = pretrain_argv(tmp_path / "run", "--corpus", text, "--document", "file")
    assert "give more files, or leave out --document file" in complaint(*argv)


def test_shards_of_another_length_are_refused_with_both_ways_out(
    tmp_path: Path, toy_shards: Path, complaint: Callable[..., str]
) -> None:
    message = complaint(*pretrain_argv(tmp_path / "run", data=toy_shards, data__length=16))
    assert "holds rows of 32 tokens, but the recipe's data.length is 16" in message
    assert "--length 16" in message
    assert "--data.length 32" in message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("flags", "key", "found"),
    [
        ("--vocab-size 5000", "data.vocab_size=5000", "a vocabulary of 176 entries"),
        ("--cased", "data.cased=true", "a vocabulary in lower case"),
        ("--keep-accents", "data.keep_accents=true", "a vocabulary without accents"),
        ("--held-out 0.3", "data.held_out=0.3", "hold out 0.1 of the documents"),
    ],
)
@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
def test_a_data_setting_that_shards_contradict_is_refused(
    flags: str,
    key: str,
    found: str,
    dry_run: tuple[str, ...],
    tmp_path: Path,
    toy_shards: Path,
    complaint: Callable[..., str],
) -> None:
    run = tmp_path / "run"
    message = complaint(*pretrain_argv(run, *flags.split(), *dry_run, data=toy_shards))
    assert message.startswith(f"command line: {key} has no effect: ")
    assert found in message
    assert "leave it out, or set it in `electra " in message
    assert not run.exists()


def test_a_data_setting_of_the_environment_or_a_file_is_compared_with_shards_too(
    tmp_path: Path,
    toy_shards: Path,
    complaint: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changes = tmp_path / "changes.toml"
    changes.write_text("data.vocab_size = 99", encoding="utf8")
    argv = pretrain_argv(tmp_path / "run", "--dry-run", data=toy_shards)
    assert f"{changes}: data.vocab_size=99 has no" in complaint(*argv, "--config", changes)
    monkeypatch.setenv("ELECTRA_DATA_VOCAB_SIZE", "98")
    assert "environment: data.vocab_size=98 has no effect" in complaint(*argv)


def test_data_settings_with_which_shards_were_made_are_taken(
    tmp_path: Path, toy_shards: Path
) -> None:
    same = {"data__vocab_size": 176, "data__held_out": 0.1, "data__cased": "false"}
    assert main(pretrain_argv(tmp_path / "run", "--dry-run", data=toy_shards, **same)) == 0


def test_a_run_continues_from_its_shards_with_the_size_asked_of_a_vocabulary_that_is_smaller(
    tmp_path: Path, toy_corpus: Path
) -> None:
    run, same = tmp_path / "run", {"data__vocab_size": 200, "data__held_out": 0.1}
    assert main(pretrain_argv(run, "--corpus", toy_corpus, **same)) == 0
    assert main(pretrain_argv(run, "--dry-run", data=run / "data" / "shards", **same)) == 0


@pytest.mark.parametrize("option", ["--tokenizer", "--init-from"])
def test_the_size_of_a_vocabulary_that_is_there_already_is_refused(
    option: str, tmp_path: Path, toy_corpus: Path, finished: Path, complaint: Callable[..., str]
) -> None:
    folder = finished / "discriminator"
    argv = pretrain_argv(tmp_path / "run", "--corpus", toy_corpus, data__vocab_size=300)
    message = complaint(*argv, option, folder)
    assert f"the tokenizer in {folder} has a vocabulary of 176 entries" in message
    assert option in message


@pytest.mark.parametrize("name", ["missing", "toy.txt"])
def test_data_that_is_no_folder_of_shards_is_refused_with_the_command_that_makes_one(
    tmp_path: Path, toy_corpus: Path, complaint: Callable[..., str], name: str
) -> None:
    message = complaint(*pretrain_argv(tmp_path / "run", data=toy_corpus.parent / name))
    assert name in message
    assert "electra shard" in message
    assert not (tmp_path / "run").exists()


def test_damaged_shards_are_refused(
    tmp_path: Path, toy_shards: Path, complaint: Callable[..., str]
) -> None:
    rows = Path(shutil.copytree(toy_shards, tmp_path / "rows"))
    damaged = rows / "train-00000.ids.npy"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\x01")
    message = complaint(*pretrain_argv(tmp_path / "run", data=rows))
    assert message.startswith(f"{damaged}: damaged")
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_without_a_mask_is_refused(
    tmp_path: Path, toy_corpus: Path, toy_shards: Path, complaint: Callable[..., str]
) -> None:
    tokenizer = Path(shutil.copytree(toy_shards / "tokenizer", tmp_path / "tokenizer"))
    for path in tokenizer.iterdir():
        path.write_text(
            path.read_text(encoding="utf8").replace("[MASK]", "[HOLE]"), encoding="utf8"
        )
    config = json.loads((tokenizer / "tokenizer_config.json").read_text())
    (tokenizer / "tokenizer_config.json").write_text(json.dumps({**config, "mask_token": None}))
    for words in (
        ["shard", toy_corpus, "--output-dir", tmp_path / "run"],
        pretrain_argv(tmp_path / "run", "--corpus", toy_corpus),
    ):
        message = complaint(*words, "--tokenizer", tokenizer)
        assert f"{tokenizer}: no [MASK] token, which pre-training needs" in message
        assert not [path for path in (tmp_path / "run").rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("3/2", "part 3/2 does not exist; parts are counted from 1, as in 1/2"),
        ("x", "--part x: write it as i/N, for example 1/8"),
        ("0/2", "part 0/2 does not exist; parts are counted from 1, as in 1/2"),
    ],
)
def test_a_part_that_does_not_exist_is_refused(
    tmp_path: Path,
    toy_corpus: Path,
    toy_shards: Path,
    complaint: Callable[..., str],
    part: str,
    expected: str,
) -> None:
    message = complaint(
        "shard",
        toy_corpus,
        "--tokenizer",
        toy_shards / "tokenizer",
        "--output-dir",
        tmp_path / "rows",
        "--part",
        part,
    )
    assert message == expected
    assert not (tmp_path / "rows").exists()


def test_shards_do_not_go_where_their_text_lies(
    tmp_path: Path, toy_corpus: Path, toy_shards: Path, complaint: Callable[..., str]
) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    shutil.copy(toy_corpus, texts)
    for place in (texts, texts / "rows"):
        message = complaint(
            "shard", texts, "--tokenizer", toy_shards / "tokenizer", "--output-dir", place
        )
        assert message == (
            f"--output-dir {place} lies inside the corpus {texts} and would become part of it; "
            "name a "
            f"folder elsewhere"
        )


def test_damaged_progress_and_a_slurm_variable_that_is_no_number_are_refused(
    tmp_path: Path,
    toy_corpus: Path,
    toy_shards: Path,
    complaint: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "rows").mkdir()
    words = (
        "shard",
        toy_corpus,
        "--tokenizer",
        toy_shards / "tokenizer",
        "--output-dir",
        tmp_path / "rows",
    )
    for damage in ("{", "[]", "{}", '{"settings": {}, "state": {"files": [3]}}'):
        (tmp_path / "rows" / "progress.json").write_text(damage)
        assert (
            complaint(*words)
            == f"{tmp_path / 'rows/progress.json'} is damaged; start over with --overwrite"
        )
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "x")
    assert complaint(*words).startswith(
        "SLURM_ARRAY_TASK_ID='x' in the environment is not a whole number"
    )


def test_vocab_and_shard_name_a_missing_option(
    tmp_path: Path, toy_corpus: Path, complaint: Callable[..., str]
) -> None:
    folder = tmp_path / "made"
    assert (
        complaint("vocab", "--output-dir", folder)
        == "name at least one file, folder or glob of text"
    )
    assert complaint("shard", toy_corpus, "--output-dir", folder).startswith(
        "--tokenizer is missing"
    )
    assert "no such tokenizer folder" in complaint(
        "shard", toy_corpus, "--tokenizer", tmp_path / "no", "--output-dir", folder
    )
    assert "--vocab-size 3 must" in complaint(
        "vocab", toy_corpus, "--output-dir", folder, "--vocab-size", "3"
    )
    assert "--output-dir" in complaint("vocab", toy_corpus)
    assert "Did you mean --output-dir?" in complaint("vocab", toy_corpus, "--output-dirr", folder)
    assert not folder.exists()
