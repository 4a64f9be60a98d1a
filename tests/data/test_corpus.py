from __future__ import annotations

import bz2
import gzip
import json
import lzma
import re
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from electra.config import UserError
from electra.data import corpus, json_rows, lines, parquet, sources
from electra.data.corpus import read_corpus, read_indexed_sources
from electra.data.sources import resolve
from electra.data.tables import find_table, read_rows
from tests.wording import wording_of

wording = wording_of(__file__)

TEXT = "one\ntwo\n\nthree\n"


def read(*inputs: Path | str, **options: object) -> list[list[str]]:
    return [document.lines for document in read_corpus(list(inputs), **options)]  # type: ignore[arg-type]


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def zstd(content: bytes) -> bytes:
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return bytes(sink.getvalue())


def test_a_blank_line_ends_a_document(tmp_path: Path) -> None:
    documents = list(read_corpus([write(tmp_path / "a.txt", "\n \n one\ntwo\r\n\t\n\nthree")]))
    assert [d.lines for d in documents] == [["one", "two"], ["three"]]
    assert [d.source for d in documents] == [f"{tmp_path / 'a.txt'}:3", f"{tmp_path / 'a.txt'}:7"]


def test_a_whole_file_is_one_document_where_that_is_asked_for(tmp_path: Path) -> None:
    sources = dict(enumerate(resolve([write(tmp_path / "a.txt", "\n\none\ntwo\n\n\nthree\n\n")])))
    documents = read_indexed_sources(
        sources, text_field="text", document="file", progress=lambda _: None, report=print
    )
    assert [(d.lines, d.source) for _, d in documents] == [
        (["one", "two", "three"], f"{tmp_path / 'a.txt'}:3")
    ]


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [(".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress), (".zst", zstd)],
)
def test_compressed_text_reads_like_plain_text(tmp_path: Path, suffix: str, compress) -> None:
    assert read(write(tmp_path / f"a.txt{suffix}", compress(TEXT.encode()))) == [
        ["one", "two"],
        ["three"],
    ]
    row = json.dumps({"text": "one\n\ntwo"}).encode()
    assert read(write(tmp_path / f"a.jsonl{suffix}", compress(row))) == [["one", "two"]]


@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "byte order mark"])
def test_every_row_of_a_table_is_a_document(tmp_path: Path, mark: str) -> None:
    texts = ["one\ntwo", "three"]
    rows = [{"body": text, "id": 1} for text in texts]
    write(tmp_path / "a.jsonl", mark + "".join(json.dumps(row) + "\n" for row in rows))
    write(tmp_path / "b.json", (tmp_path / "a.jsonl").read_bytes())
    write(tmp_path / "c.json", mark + json.dumps(rows, indent=2))
    write(tmp_path / "d.csv", mark + 'body,id\n"one\ntwo",1\nthree,1\n')
    write(tmp_path / "e.csv.gz", gzip.compress((tmp_path / "d.csv").read_bytes()))
    write(tmp_path / "f.txt", mark + "one\ntwo\n\nthree")
    pyarrow.parquet.write_table(pyarrow.table({"body": texts}), tmp_path / "g.parquet")
    files = sorted(tmp_path.iterdir())
    assert len(files) == 7
    for file in files:
        assert read(file, text_field="body") == [["one", "two"], ["three"]]
    assert read(write(tmp_path / "h.tsv", mark + "id\ttext\n1\tone\n")) == [["one"]]


def test_a_number_names_the_column_of_a_table_without_a_header(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", '7,"one, two"\n8,three\n')
    assert read(path, text_field="1") == [["one, two"], ["three"]]
    with pytest.raises(UserError, match=r"a\.csv:1: no field '2'; fields here are 0, 1"):
        read(path, text_field="2")


def test_a_list_of_json_is_read_piece_by_piece(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(json_rows, "READ_BYTES", 3)
    texts = [f"é {number} " + '[{,"x' * number for number in range(20)]
    path = write(tmp_path / "a.json", json.dumps([{"text": text} for text in texts], indent=1))
    assert read(path) == [[text.strip()] for text in texts]


def test_a_folder_is_read_in_order_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.txt", ".hidden/c.txt", "README.md"):
        write(tmp_path / name, name)
    reported: list[str] = []
    assert [s.name for s in resolve([tmp_path], report=reported.append)] == ["a/z.txt", "b.txt"]
    assert len(reported) == 1
    assert "1 of 3 files left out, for example README.md" in reported[0]


def test_a_glob_finds_files(tmp_path: Path) -> None:
    write(tmp_path / "a1.txt", "one")
    write(tmp_path / "a2.txt", "two")
    assert read(f"{tmp_path}/a*.txt") == [["one"], ["two"]]


def test_a_file_named_twice_is_read_once_and_mentioned(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one")
    (tmp_path / "link.txt").symlink_to(path)
    reported: list[str] = []
    assert read(path, tmp_path, report=reported.append) == [["one"]]
    assert sum("read once" in message for message in reported) == 2


def test_a_fingerprint_is_the_same_wherever_the_files_lie(tmp_path: Path) -> None:
    for folder in ("here", "there"):
        write(tmp_path / folder / "a.txt", TEXT)
    here, there = (resolve([tmp_path / folder])[0].fingerprint() for folder in ("here", "there"))
    assert here == there
    write(tmp_path / "there" / "a.txt", TEXT.replace("two", "owt"))
    assert resolve([tmp_path / "there"])[0].fingerprint() != here


# ---- bounded memory ------------------------------------------------------------------------------


def test_a_long_document_goes_on_as_another_and_loses_nothing(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(corpus, "MAX_DOCUMENT_CHARACTERS", 10)
    assert read(write(tmp_path / "a.txt", "four\nfive\nsix\nseven\n")) == [
        ["four", "five"],
        ["six", "seven"],
    ]


@pytest.mark.parametrize(
    "text",
    ["aa bb cc dd ee ff", "aaaaaaaaaaaaaaaaaaaaaaaa", "éééééééééé éééééé", "aaaaaaaa       b"],
)
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_a_long_line_is_cut_at_white_space_and_loses_nothing(
    tmp_path: Path, monkeypatch, text: str, name: str
) -> None:
    monkeypatch.setattr(corpus, "MAX_LINE_CHARACTERS", 8)
    content = text if name == "a.txt" else json.dumps({"text": text})
    (lines,) = read(write(tmp_path / name, content))
    assert max(map(len, lines)) <= 8
    assert "".join("".join(lines).split()) == "".join(text.split())
    if text.startswith("aa bb"):
        assert all(len(word) == 2 for line in lines for word in line.split())


def test_progress_ends_at_one_and_never_falls(tmp_path: Path) -> None:
    reported: list[float] = []
    write(tmp_path / "a.txt", "word\n\n" * 10_000)
    write(tmp_path / "b.txt.gz", gzip.compress(b"word\n\n" * 10_000))
    read(tmp_path, progress=reported.append)
    assert reported == sorted(reported)
    assert reported[-1] == 1.0
    assert len(reported) <= 1001


# ---- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.json"])
def test_bytes_that_are_not_utf8_are_converted_from_the_encoding_that_the_file_has(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_bytes('[{"text": "ışık"}]\n'.encode("cp1254"))
    with pytest.raises(UserError, match=r"find out its encoding .*cp1254 for Turkish") as caught:
        list(read_corpus([tmp_path / name]))
    assert str(caught.value).endswith("convert it: iconv -f ENCODING -t UTF-8")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"fine\ncaf\xe9\n", "a.txt:2: byte 0xe9 at column 4 is not UTF-8"),
        ("a.txt", b"fine\n\n\0\0\n", "a.txt:3: a NUL byte"),
        ("a.txt", "fine\n".encode("utf-16"), "a.txt:1: a NUL byte"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', "a.jsonl:2: not a JSON object"),
        (
            "a.jsonl",
            b'[{"text": "a"}]',
            "a.jsonl:1: expected one JSON object per line, found a list",
        ),
        (
            "a.json",
            b'[{"text": "a"}, 1]',
            "a.json, row 2: expected a list of JSON objects, found a int",
        ),
        ("a.json", b'[{"text": "a"}', "a.json: not valid JSON: 'the end' instead of ','"),
        ("a.json", b'[{"text": "a"} {}]', "a.json: not valid JSON: '{' instead of ','"),
        ("a.json", b'[{"text": "a"}] b', "a.json: 'b' follows the end of the list"),
        ("a.json", b'[{"text": "a}]', "a.json, row 1: not valid JSON"),
        ("a.json", b'[{"text": "caf\xe9"}]', "a.json: not UTF-8 text"),
        ("a.json", b'[{"text": ' + b"[" * 200_000, "a.json, row 1: nested more than 100 deep"),
        ("a.csv", b"body,id\na,1\n", "a.csv:2: no field 'text'; fields here are body, id"),
        (
            "a.jsonl",
            b'{"body": "a", "id": 1}\n',
            "a.jsonl:1: no field 'text'; fields here are body, id",
        ),
        ("a.jsonl", b'{"text": null}\n', "a.jsonl:1: 'text' is NoneType, not text"),
        ("a.jsonl", b'{"text": "a\\u0000"}\n', "a.jsonl:1: 'text' holds a NUL"),
        ("a.jsonl", b'{"text": "a\\ud800"}\n', "a.jsonl:1: half a surrogate pair"),
        # Without the time in its header, which would give this test another name in each worker
        # that collects it.
        (
            "a.txt.gz",
            gzip.compress(TEXT.encode(), mtime=0)[:-9],
            "a.txt.gz: damaged, cut short, or not a .gz file",
        ),
        (
            "a.txt.gz",
            gzip.compress(TEXT.encode(), mtime=0) + bytes(65536),
            "a.txt.gz: damaged, cut short, or not a .gz file (its last 65,536 bytes are zeros",
        ),
        ("a.txt.gz", b"plain", "a.txt.gz: damaged, cut short, or not a .gz file"),
        ("a.txt.zst", b"plain", "a.txt.zst: damaged, cut short, or not a .zst file"),
        ("a.parquet", b"plain", "a.parquet: damaged, cut short, or not a .parquet file"),
        ("a.md", b"plain", "a.md: cannot tell what this file holds"),
        ("a.txt", b"", "the corpus holds no text"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_place(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        read(write(tmp_path / name, content), report=lambda _: None)


def test_a_json_line_too_long_to_hold_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 100)
    path = write(
        tmp_path / "a.jsonl", json.dumps({"text": "a"}) + "\n" + json.dumps({"text": "a" * 100})
    )
    with pytest.raises(UserError, match=wording("a_json_line_too_long_to_hold_is_refused")):
        read(path)


def test_text_in_parquet_that_is_no_utf8_is_refused_in_words(tmp_path: Path) -> None:
    offsets, content = (pyarrow.py_buffer(data) for data in (b"\0\0\0\0\2\0\0\0", b"\xf4h"))
    column = pyarrow.Array.from_buffers(pyarrow.string(), 1, [None, offsets, content])
    pyarrow.parquet.write_table(pyarrow.table({"text": column}), tmp_path / "a.parquet")
    with pytest.raises(
        UserError, match=wording("text_in_parquet_that_is_no_utf8_is_refused_in_words")
    ):
        read(tmp_path / "a.parquet")
    with pytest.raises(
        UserError, match=wording("text_in_parquet_that_is_no_utf8_is_refused_in_words_2")
    ):
        list(read_rows(find_table(tmp_path / "a.parquet")))


@pytest.mark.parametrize(
    ("rows", "bound"),
    [(["x" * 100_000], "MAX_VALUE_BYTES"), (["a", "x" * 100_000], "MAX_EXPANSION")],
    ids=["a row", "among others"],
)
def test_a_value_too_large_for_memory_is_refused_before_it_is_decoded(
    tmp_path: Path, monkeypatch, rows: list[str], bound: str
) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": rows}), path, compression="zstd")
    monkeypatch.setattr(parquet, "MAX_BATCH_BYTES", 1000)
    monkeypatch.setattr(parquet, bound, {"MAX_VALUE_BYTES": 1000, "MAX_EXPANSION": 2}[bound])
    monkeypatch.setattr(pyarrow.parquet.ParquetFile, "iter_batches", lambda *_, **__: 1 / 0)
    with pytest.raises(UserError, match=wording(f"a_value_too_large_{bound}")):
        list(read_corpus([path]))


def test_a_parquet_file_without_the_field_lists_its_columns(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"id": [1], "body": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(
        UserError, match=wording("a_parquet_file_without_the_field_lists_its_columns")
    ):
        read(tmp_path / "a.parquet")


def test_an_empty_file_and_blank_rows_are_reported(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "")
    write(tmp_path / "b.jsonl", '{"text": " \\n"}\n{"text": "word"}\n')
    reported: list[str] = []
    assert read(tmp_path, report=reported.append) == [["word"]]
    assert reported == [
        f"{tmp_path / 'a.txt'}: holds no text",
        "1 documents hold nothing but white space",
    ]


def test_a_path_that_does_not_exist_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=wording("a_path_that_does_not_exist_is_refused_before_anything_is_read")
    ):
        resolve([write(tmp_path / "a.txt", b"\xff"), tmp_path / "missing.txt"])
    with pytest.raises(
        UserError, match=wording("a_path_that_does_not_exist_is_refused_before_anything_is_read_2")
    ):
        resolve([f"{tmp_path}/*.parquet"])


# ---- hub names -----------------------------------------------------------------------------------


def test_a_folder_here_wins_over_a_data_set_of_the_same_name(tmp_path: Path, monkeypatch) -> None:
    write(tmp_path / "owner" / "name" / "a.txt", "here")
    monkeypatch.chdir(tmp_path)
    assert read("owner/name") == [["here"]]


def test_a_data_set_is_pinned_to_a_commit_and_streamed(monkeypatch) -> None:
    import datasets
    import huggingface_hub

    class Answer:
        sha = "abc"

    asked = {}

    def load(*names: object, **options: object) -> list[dict[str, str]]:
        asked.update(options, names=names)
        return [{"text": "one\ntwo"}]

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda *_, **__: Answer)
    monkeypatch.setattr(datasets, "load_dataset", load)
    (documents,) = read_corpus(["owner/name:small@v1"])
    assert (documents.lines, documents.source) == (["one", "two"], "owner/name:small, row 1")
    assert asked == {
        "names": ("owner/name", "small"),
        "split": "train",
        "revision": "abc",
        "streaming": True,
    }


def test_without_a_network_the_error_says_which_files_to_put_where(monkeypatch) -> None:
    import huggingface_hub

    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", fail)
    with pytest.raises(
        UserError, match=wording("without_a_network_the_error_says_which_files_to_put_where")
    ):
        resolve(["owner/name"])


def test_without_datasets_the_error_names_the_package(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=wording("without_datasets_the_error_names_the_package")):
        sources.resolve(["owner/name"])


def test_links_are_followed_once_and_a_dangling_one_is_reported(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.txt").write_text("one\n\ntwo\n")
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "linked").symlink_to(tmp_path / "real")
    (tmp_path / "corpus" / "circle").symlink_to(tmp_path / "corpus")
    (tmp_path / "corpus" / "gone.txt").symlink_to(tmp_path / "nowhere")
    reported: list[str] = []
    assert len(list(read_corpus([tmp_path / "corpus"], report=reported.append))) == 2
    assert any("gone.txt: a link that leads nowhere" in text for text in reported)


def test_a_change_in_the_middle_of_a_file_changes_its_fingerprint(tmp_path: Path) -> None:
    from electra.data.sources import resolve

    path, content = tmp_path / "a.txt", bytearray(b"word " * 400_000)
    prints = []
    for letter in b"wv":
        content[1_000_000] = letter
        path.write_bytes(content)
        prints.append(resolve([path])[0].fingerprint())
    assert prints[0] != prints[1]
