"""What others wrote does not control a terminal, and output that nobody reads ends nothing."""

from __future__ import annotations

import io
import os
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest
from rich.table import Table
from rich.text import Text

from electra.__main__ import main
from electra.console import (
    Terminal,
    count_items,
    print_data,
    print_warnings_plainly,
    progress_bars,
    to_stderr,
    to_stdout,
    without_readers,
)
from electra.tasks.prediction_files import write_records

HOSTILE = "[red]a[/red] :dog: \x1b[2J\x9b\u202e\x07\r"
SHOWN = r"[red]a[/red] :dog: \x1b[2J\x9b\u202e\x07\r"


class TerminalStream(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(value: object, **options: object) -> str:
    stream = io.StringIO()
    Terminal(file=stream, width=100, highlight=False, **options).print(value)
    return stream.getvalue()


@pytest.mark.parametrize("kind", [str, Text])
def test_a_terminal_shows_control_characters_and_markup_as_text(kind: type) -> None:
    assert printed(kind(HOSTILE.removesuffix("\x07\r"))).strip() == SHOWN.removesuffix(r"\x07\r")


def test_a_table_is_as_wide_as_what_it_shows() -> None:
    table = Table(HOSTILE, title=HOSTILE)
    table.add_row(HOSTILE)
    lines = printed(table).splitlines()
    assert sum(SHOWN in line for line in lines) == 3
    assert "\x1b" not in "".join(lines)
    assert len({len(line) for line in lines[1:]}) == 1


def test_a_table_that_is_too_wide_is_folded_and_nothing_of_it_is_cut() -> None:
    words = ["discriminator", "training-algorithms", "has_answer_exact_match"]
    table = Table(*words)
    table.add_row(*words)
    stream = io.StringIO()
    Terminal(file=stream, width=30, highlight=False).print(table)
    assert "…" not in stream.getvalue()
    columns = [re.split("[│┃]", line) for line in stream.getvalue().splitlines()]
    cells = [fields[1:4] for fields in columns if len(fields) == 5]
    for number, word in enumerate(words):
        assert "".join(cell[number].strip() for cell in cells) == 2 * word


def test_colours_of_ours_are_kept_on_a_terminal() -> None:
    text = printed(Text("\x1b[2J", style="red"), force_terminal=True, color_system="standard")
    assert text == "\x1b[31m\\x1b[2J\x1b[0m\n"


def test_lines_and_warnings_are_shown_as_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    to_stdout(HOSTILE)
    to_stderr(HOSTILE)
    with progress_bars() as (_, warn):
        warn(HOSTILE)
    monkeypatch.setattr(warnings, "formatwarning", None)
    print_warnings_plainly()
    assert warnings.formatwarning(HOSTILE, UserWarning, "a.py", 1) == f"warning: {SHOWN}\n"
    output = capsys.readouterr()
    assert output.out == f"{SHOWN}\n"
    assert output.err == f"{SHOWN}\nwarning: {SHOWN}\n"


def test_a_stage_that_never_began_leaves_no_bar_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = TerminalStream()
    monkeypatch.setattr("sys.stderr", stream)
    with progress_bars() as (add_stage, _):
        add_stage("vocabulary")(1.0)
        add_stage("shards")
    last_frame = stream.getvalue().rsplit("\x1b[2K", 1)[-1]
    assert "vocabulary" in last_frame
    assert "shards" not in last_frame


def test_a_long_job_says_at_times_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(count_items("ab", "predictions")) == ["a", "b"]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("electra.console.PROGRESS_SECONDS", 0.0)
    assert list(count_items("ab", "batches", of=2)) == ["a", "b"]
    list(count_items("a", "texts"))
    assert capsys.readouterr().err == "1 of 2 batches\n2 of 2 batches\n1 texts\n"


def test_data_is_unchanged_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    print_data(HOSTILE)
    assert capsys.readouterr().out == f"{HOSTILE}\n"


def test_data_and_predictions_are_escaped_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = TerminalStream()
    monkeypatch.setattr("sys.stdout", stream)
    print_data(HOSTILE)
    assert write_records([{"label": "\x9b2J"}], None) == 1
    assert stream.getvalue() == f'{SHOWN}\n{{"label": "\\x9b2J"}}\n'


def test_the_name_of_a_folder_is_shown_as_text_by_describe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / f"{HOSTILE.replace('/', '')}.toml"
    recipe.write_text("", encoding="utf8")
    assert main(["describe", str(recipe)]) == 0
    output = capsys.readouterr()
    assert "\x1b" not in output.out + output.err
    assert r"[red]a[red]:dog:\x1b[2J" in re.sub(r"\s", "", output.out)


# ---- output that nobody reads --------------------------------------------------------------------


@pytest.fixture
def closed_pipe() -> Iterator[TextIO]:
    """A pipe whose reader is gone, as after `head`."""
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w", buffering=1)
    yield stream
    stream.close()


def test_what_nobody_reads_is_dropped_by_print_and_by_rich(
    closed_pipe: TextIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", closed_pipe)
    monkeypatch.setattr(sys, "stdout", closed_pipe)
    with without_readers(), without_readers():
        print("to standard error", file=sys.stderr)
        Terminal().print("to standard output")
        sys.stdout.writelines(["some\n", "lines\n"])
    assert sys.stdout is closed_pipe
    print("later", flush=True)  # it goes to the null device, so nothing fails when Python ends


def test_what_is_buffered_does_not_fail_when_python_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w")  # as standard output: a pipe is not buffered by line
    monkeypatch.setattr(sys, "stdout", stream)
    with without_readers():
        print("text")
    stream.close()


def test_a_terminal_that_is_gone_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    main, terminal = os.openpty()
    os.close(main)
    monkeypatch.setattr(sys, "stderr", os.fdopen(terminal, "w", buffering=1))
    with without_readers():
        print("text", file=sys.stderr)
    sys.stderr.close()


def test_a_full_disk_is_not_mistaken_for_one_that_nobody_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with open("/dev/full", "w", buffering=1, encoding="utf8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with without_readers(), pytest.raises(OSError, match="No space left"):
            print("a result")
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())
