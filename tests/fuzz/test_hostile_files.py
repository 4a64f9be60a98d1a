"""Files made to hang a reader or to fill its memory, and files that are pipes, loops or devices."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from electra.__main__ import main
from electra.config import UserError
from electra.console import ignore
from electra.data import tables
from electra.data.corpus import read_corpus
from electra.tasks import find_task
from tests.wording import wording_of

wording = wording_of(__file__)

# Bytes of address space: an interpreter with numpy and pyarrow takes a quarter of it.
MEMORY = 2 * 1024**3
SECONDS = 240


def run_bounded(script: str, *arguments: object) -> tuple[int, str]:
    """Run a script within bounds of memory and time; return its exit code and its output."""

    def limits() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

    answer = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        preexec_fn=limits,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    return answer.returncode, answer.stdout + answer.stderr


COUNT = """
import sys
from electra.data.corpus import read_corpus
print(sum(len(line) for document in read_corpus(sys.argv[1:]) for line in document.lines))
"""
ROWS = """
import sys
from electra.config import UserError
from electra.data import tables
try:
    for _ in tables.read_rows(tables.find_table(sys.argv[1])): pass
except UserError as error: sys.exit(str(error))
"""
DOCUMENT = ROWS.replace(
    "for _ in tables.read_rows(tables.find_table(sys.argv[1])): pass",
    "tables.read_json(tables.find_table(sys.argv[1]))",
)


def write_repeated(
    path: Path, content: bytes, *, times: int, opener: Callable[..., object] = open
) -> Path:
    """Write the same content several times into a file."""
    with opener(path, "wb") as stream:  # type: ignore[attr-defined]
        for _ in range(times):
            stream.write(content)
    return path


# ---- too much ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "times"),
    [(b"a" * 1_000_000, 1000), (b"ab " * 333_333 + b"c", 100), ("ü".encode() * 500_000, 100)],
)
def test_a_line_of_up_to_a_gigabyte_is_read_in_parts(
    tmp_path: Path, content: bytes, times: int
) -> None:
    exit_code, output = run_bounded(COUNT, write_repeated(tmp_path / "a.txt", content, times=times))
    assert exit_code == 0, output
    assert int(output) > 0.9 * times * len(content.decode().replace(" ", ""))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suffix", "opener", "times"),
    [(".gz", gzip.open, 1000), (".xz", lzma.open, 100), (".bz2", bz2.open, 100)],
)
def test_a_small_file_that_unpacks_to_a_large_one_is_read_in_parts(
    tmp_path: Path, suffix: str, opener: Callable[..., object], times: int
) -> None:
    path = write_repeated(tmp_path / f"a.txt{suffix}", b"0" * 1_000_000, times=times, opener=opener)
    assert path.stat().st_size < 2_000_000
    exit_code, output = run_bounded(COUNT, path)
    assert (exit_code, output.strip()) == (0, str(times * 1_000_000))


@pytest.mark.slow
def test_a_small_zstd_file_that_unpacks_to_a_gigabyte_is_read_in_parts(tmp_path: Path) -> None:
    import pyarrow

    with pyarrow.CompressedOutputStream(str(tmp_path / "a.txt.zst"), "zstd") as stream:
        for _ in range(1000):
            stream.write(b"0" * 1_000_000)
    exit_code, output = run_bounded(COUNT, tmp_path / "a.txt.zst")
    assert (exit_code, output.strip()) == (0, str(10**9))


def test_a_small_parquet_file_that_repeats_a_long_text_keeps_it_once(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    text = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array([0] * 512, pyarrow.int32()), ["a " * 4_000_000]
    )
    pyarrow.parquet.write_table(
        pyarrow.table({"text": text}), tmp_path / "a.parquet", compression="zstd"
    )
    assert (tmp_path / "a.parquet").stat().st_size < 10_000
    for script in (
        COUNT.replace("read_corpus(sys.argv[1:])", "islice(read_corpus(sys.argv[1:]), 3)"),
        ROWS.replace(
            "in tables.read_rows(tables.find_table(sys.argv[1]))",
            "in islice(tables.read_rows(tables.find_table(sys.argv[1])), 300)",
        ),
    ):
        exit_code, output = run_bounded(
            f"from itertools import islice\n{script}", tmp_path / "a.parquet"
        )
        assert exit_code == 0, output


@pytest.mark.slow
def test_a_json_document_that_unpacks_to_a_gigabyte_is_refused(tmp_path: Path) -> None:
    exit_code, output = run_bounded(
        DOCUMENT,
        write_repeated(tmp_path / "a.json.gz", b" " * 1_000_000, times=1000, opener=gzip.open),
    )
    assert exit_code == 1
    assert "a.json.gz: more than 256 MB in one JSON value; split it" in output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content", "refusal"),
    [
        ("a.csv", b"a," * 1_000_000, "row of more than 16 million characters; split it"),
        ("a.tsv", b"a\t" * 1_000_000, "row of more than 16 million characters; split it"),
        ("a.csv", b'"\n",' * 1_000_000, "row of more than 16 million characters; split it"),
        ("a.jsonl", b'{"a":' * 200_000, "a line longer than 64 MB"),
    ],
)
def test_a_row_of_ten_million_fields_is_refused(
    tmp_path: Path, name: str, content: bytes, refusal: str
) -> None:
    exit_code, output = run_bounded(
        ROWS, write_repeated(tmp_path / name, content, times=70 if "jsonl" in name else 10)
    )
    assert exit_code == 1
    assert f"{name}:" in output
    assert refusal in output


def test_a_table_of_a_million_columns_is_refused_by_their_number(tmp_path: Path) -> None:
    """All names are alike, so that each would be compared with all others."""
    path = write_repeated(tmp_path / "a.csv", b"a," * 1_000_000, times=1)
    with pytest.raises(
        UserError, match=wording("a_table_of_a_million_columns_is_refused_by_their_number")
    ):
        next(tables.read_rows(tables.find_table(path)))


def test_a_row_with_many_keys_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(dict.fromkeys(map(str, range(100_000)))), encoding="utf8")
    began = time.process_time()
    with pytest.raises(UserError, match=wording("a_row_with_many_keys_is_refused_at_once")):
        list(find_task("classify").read([tables.find_table(path)], labelled=True))
    # Comparing the name with all of them would take longer.
    assert time.process_time() - began < 1.5


@pytest.mark.slow
def test_a_text_of_megabytes_without_a_line_end_is_cut_in_one_pass(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "ab " * 20_000_000}), encoding="utf8")
    assert (
        sum(len(line.split()) for document in read_corpus([path]) for line in document.lines)
        == 20_000_000
    )


# ---- not what it seems ---------------------------------------------------------------------------


def pipes_and_devices(folder: Path) -> Iterator[Path]:
    os.mkfifo(folder / "pipe.txt")
    yield folder / "pipe.txt"
    (folder / "zero.txt").symlink_to("/dev/zero")
    yield folder / "zero.txt"


def test_a_pipe_or_a_device_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    for path in pipes_and_devices(tmp_path):
        with pytest.raises(
            UserError, match=wording("a_pipe_or_a_device_is_refused_and_not_waited_for")
        ):
            list(read_corpus([path], report=ignore))
        with pytest.raises(
            UserError, match=wording("a_pipe_or_a_device_is_refused_and_not_waited_for_2")
        ):
            tables.find_table(path)


def test_pipes_among_the_files_of_a_folder_are_passed_over(tmp_path: Path) -> None:
    assert len(list(pipes_and_devices(tmp_path))) == 2
    (tmp_path / "good.txt").write_text("text", encoding="utf8")
    (tmp_path / "folder.txt").mkdir()
    (tmp_path / "loop.txt").symlink_to(tmp_path / "loop.txt")
    (tmp_path / "above").symlink_to(tmp_path)
    assert [document.lines for document in read_corpus([tmp_path], report=ignore)] == [["text"]]


@pytest.mark.parametrize(
    "command",
    [
        ["pretrain", "FILE", "--print-config"],
        ["describe", "FILE"],
        ["trials", "report", "FILE"],
        ["show", "FILE"],
        ["vocab", "FILE", "--output-dir", "out"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("kind", ["pipe", "loop", "folder", "newline"])
def test_no_command_hangs_on_what_is_no_file(
    command: list[str],
    kind: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / ("a\nb\x1b[2J.toml" if kind == "newline" else "a.toml")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(b"\0")
    assert main([str(path) if argument == "FILE" else argument for argument in command]) in (1, 2)
    output = capsys.readouterr().err
    assert "error: " in output
    assert ".toml" in output
    assert "Error:" not in output
    assert "\x1b" not in output


def test_a_name_that_is_not_utf8_is_refused_before_it_reaches_a_manifest(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.txt"))
    path.write_text("text", encoding="utf8")
    with pytest.raises(
        UserError, match=wording("a_name_that_is_not_utf8_is_refused_before_it_reaches_a_manifest")
    ):
        list(read_corpus([tmp_path], report=ignore))


def test_a_message_neither_fills_the_terminal_nor_steers_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.toml"
    path.write_text('seed = "\\u001b[2J' + "x" * 1_000_000 + '"', encoding="utf8")
    assert main(["describe", str(path)]) == 2
    output = capsys.readouterr().err
    assert str(path) in output
    assert len(output) < 5000
    assert "\x1b" not in output
