"""The beginnings of the files of a corpus tell what would stop the reading of it."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from electra.config import UserError
from electra.data import corpus, corpus_check
from electra.data.corpus import ignore_progress
from electra.data.corpus_check import check_beginnings
from electra.data.prepare import DataConfig, prepare_data
from electra.data.sharding import shard
from electra.data.sources import Source, resolve
from electra.data.vocabulary import train_wordpiece
from electra.data.wordpiece import WordPiece


def check(folder: Path) -> None:
    check_beginnings(resolve([folder]), text_field="text", document="blank-line")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "café\n".encode("latin-1"), "a.txt:1: byte 0xe9 at column 4 is not UTF-8"),
        ("a.txt", b"fine\n" + "ışık\n".encode("cp1254"), "a.txt:2: byte 0xfd at column 1 is not"),
        ("a.txt", "fine\n".encode("utf-16"), "a.txt:1: a NUL byte"),
        ("a.json", '[{"text": "café"}]'.encode("latin-1"), "a.json:1: byte 0xe9 at column 15 is"),
        ("a.csv", b"text\n\xe9\n", "a.csv:2: byte 0xe9 at column 1 is not UTF-8"),
        ("a.csv", b"body\na\n", "a.csv:2: no field 'text'"),
        ("a.txt", b"", "the corpus holds no text: .*a.txt"),
        ("a.txt", b" \n\n", "the corpus holds no text: .*a.txt"),
        ("a.jsonl", b'{"text": " "}\n', "the corpus holds no text: .*a.jsonl"),
        ("a.txt.gz", gzip.compress("café\n".encode("latin-1"), mtime=0), r"a.txt.gz:1: byte 0xe9"),
    ],
    ids=str,
)
def test_what_the_beginning_of_a_file_shows_is_refused(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        check(tmp_path)


def test_files_that_cannot_be_read_are_counted_and_the_first_are_named(tmp_path: Path) -> None:
    (tmp_path / "0.txt").write_text("fine\n", encoding="utf8")
    for number in range(1, 6):
        (tmp_path / f"{number}.txt").write_text("café\n", encoding="latin-1")
    with pytest.raises(UserError) as caught:
        check(tmp_path)
    names = ", ".join(str(tmp_path / f"{number}.txt") for number in range(1, 4))
    assert str(caught.value).startswith(
        f"5 of 6 files cannot be read: {names}, …. The first: {tmp_path}/1.txt:1: byte 0xe9 at "
        "column 4 is not UTF-8; find out its encoding"
    )


def test_text_beside_an_empty_file_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"")
    (tmp_path / "b.txt").write_text("text\n", encoding="utf8")
    check(tmp_path)


@pytest.mark.parametrize("size", range(4, 14))
def test_a_character_that_the_end_of_the_beginning_cuts_is_no_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(corpus_check, "CHECKED_BYTES", size)
    (tmp_path / "a.txt").write_text("aé漢𝄞" * 4, encoding="utf8")
    check(tmp_path)


def broken_rows(folder: Path, *, line: int) -> Path:
    """Write a file of rows that is no JSON on one line, beside a good one."""
    folder.mkdir()
    rows = ['{"text": "words of a text"}\n'] * 300
    (folder / "a.jsonl").write_text("".join(rows), encoding="utf8")
    rows[line - 1] = '{"text": \n'
    (folder / "b.jsonl").write_text("".join(rows), encoding="utf8")
    return folder


def test_a_broken_row_of_a_small_file_is_found(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"b.jsonl:201: not a JSON object"):
        check(broken_rows(tmp_path / "texts", line=201))


def test_rows_beyond_the_beginning_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_check, "CHECKED_BYTES", 1000)
    check(broken_rows(tmp_path / "texts", line=201))


def test_less_of_each_of_many_files_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_check, "ALL_CHECKED_BYTES", 2000)
    monkeypatch.setattr(corpus_check, "MIN_CHECKED_BYTES", 500)
    check(broken_rows(tmp_path / "texts", line=201))


@pytest.fixture
def read_nothing_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a corpus is hashed or read to its end."""

    def fail(*arguments: object, **options: object) -> None:
        pytest.fail("the corpus is read before its beginnings are checked")

    monkeypatch.setattr(Source, "fingerprint", fail)
    monkeypatch.setattr(corpus, "read_indexed_sources", fail)


@pytest.mark.usefixtures("read_nothing_whole")
def test_a_vocabulary_of_files_that_cannot_be_read_is_refused_before_any_is_read_whole(
    tmp_path: Path,
) -> None:
    texts = broken_rows(tmp_path / "texts", line=201)
    (texts / "c.csv").write_text("body\nwords\n", encoding="utf8")
    with pytest.raises(UserError, match=r"2 of 3 files cannot be read: .*b.jsonl, .*c.csv. The"):
        train_wordpiece([texts], tmp_path / "vocabulary")
    assert not (tmp_path / "vocabulary").exists()


@pytest.mark.usefixtures("read_nothing_whole")
def test_shards_of_files_that_cannot_be_read_are_refused_before_any_is_read_whole(
    tmp_path: Path, tokenizer: WordPiece
) -> None:
    texts = broken_rows(tmp_path / "texts", line=201)
    with pytest.raises(UserError, match=r"b.jsonl:201: not a JSON object"):
        shard([texts], tokenizer=tokenizer, output_dir=tmp_path / "shards")
    assert not (tmp_path / "shards").exists()


def test_a_run_looks_at_the_beginnings_of_its_corpus_once(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = []
    monkeypatch.setattr(
        corpus_check, "check_beginnings", lambda sources, **options: looked_at.append(sources)
    )
    config = DataConfig(vocab_size=200, length=32, held_out=0.1)
    for run in ("one", "two"):
        prepare_data(
            [text],
            tmp_path / run,
            config,
            stage=lambda name: ignore_progress,
            report=lambda message: None,
        )
    assert len(looked_at) == 2
