"""A command that is killed, fails or loses power at any file operation continues without a loss."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks import crash, file_operations, power_loss
from benchmarks.crash_commands import OUTPUT, Command
from benchmarks.crash_trials import differences, laboratory, tree_of
from benchmarks.file_operations import Operation
from benchmarks.power_loss import Disk, File, Files
from electra.config import UserError

try:
    file_operations.check_machine()
except UserError as error:
    pytest.skip(str(error), allow_module_level=True)

ROOT = Path(__file__).parent.parent


def interrupt(module: str, *options: str) -> str:
    """The output of a benchmark that interrupts commands; a loss is its exit code 1."""
    ended = subprocess.run(
        [sys.executable, "-m", module, *options],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_a_vocabulary_that_is_killed_or_fails_anywhere_is_the_same_in_the_end():
    assert "refused 0, lost 0" in interrupt("benchmarks.crash", "--only", "vocab", "--every", "20")


def test_a_vocabulary_that_loses_power_anywhere_is_the_same_in_the_end():
    printed = interrupt("benchmarks.power_loss", "--only", "vocab", "--every", "5")
    assert "refused 0, lost 0" in printed


@pytest.mark.slow
@pytest.mark.parametrize("name", ["parts", "pretrain", "finetune"])
def test_a_command_that_is_killed_or_fails_somewhere_is_the_same_in_the_end(name):
    assert "refused 0, lost 0" in interrupt("benchmarks.crash", "--only", name, "--every", "90")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shard", "pretrain"])
def test_a_command_that_loses_power_somewhere_is_the_same_in_the_end(name):
    assert "lost 0" in interrupt("benchmarks.power_loss", "--only", name, "--every", "20")


# ---- the tools find what they are for ------------------------------------------------------------


@dataclass(frozen=True)
class Careless(Command):
    """A command that writes its output in place, or renames it without having flushed it."""

    renames: bool = False

    def run(self, at_end: Callable[[], None] = lambda: None) -> int:
        at_end()
        output = Path(OUTPUT)
        output.mkdir(exist_ok=True)
        if (output / "value").exists():
            return 0
        path = output / "value"
        if self.renames:
            path = output / "partial"
        path.write_text("a whole value")
        path.rename(output / "value")
        return 0


def careless(monkeypatch: pytest.MonkeyPatch, *, renames: bool) -> None:
    monkeypatch.setitem(crash.COMMANDS, "careless", Careless("careless", [], [], renames=renames))


def interrupt_once(folder: Path, fault: crash.Fault) -> crash.Row:
    """What comes of a fault in the third operation, which writes."""
    row = crash.Row("careless")
    with laboratory(folder) as lab:
        lab.whole_tree("careless", crash.COMMANDS["careless"])
        crash.interrupt(lab, "careless", fault, 2, row)
    return row


def test_a_file_that_is_written_in_place_is_lost_by_a_kill(tmp_path, monkeypatch, capsys):
    careless(monkeypatch, renames=False)
    row = interrupt_once(tmp_path, crash.FAULTS[1])
    assert (row.torn, row.lost) == (1, 1)
    assert "torn, operation 2: different: ['value']" in capsys.readouterr().err


def test_a_file_that_is_renamed_before_it_is_flushed_is_lost_by_a_power_cut(
    tmp_path, monkeypatch, capsys
):
    careless(monkeypatch, renames=True)
    with laboratory(tmp_path) as lab:
        options = argparse.Namespace(every=1, seed=0, workers=1, worker=0)
        *_, row = power_loss.cut_everywhere(lab, "careless", options)
    assert row.operations == 4
    assert row.lost > 0
    assert "different: ['value']" in capsys.readouterr().err
    assert interrupt_once(tmp_path, crash.FAULTS[1]).identical == 1


def test_an_error_that_ends_without_a_message_is_a_loss(tmp_path, monkeypatch, capsys):
    careless(monkeypatch, renames=True)
    row = interrupt_once(tmp_path, crash.FAULTS[2])
    assert (row.failed, row.lost) == (1, 1)
    assert "No space left on device" in capsys.readouterr().err


def test_names_are_on_the_disk_once_their_folder_is_flushed(tmp_path):
    disk, file = Disk(tmp_path), tmp_path / "file"

    def after_cut() -> Files:
        return disk.after_power_cut(lambda count: 0, lambda: "none")

    def follow(call: str, *arguments: int, path: Path = file, target: Path | None = None) -> None:
        disk.follow(Operation(0, call, arguments, path, target))

    follow("open", 0, os.O_CREAT | os.O_WRONLY)
    file.write_bytes(b"data")
    follow("fsync")
    assert after_cut() == {}
    follow("rename", target=tmp_path / "renamed")
    file.rename(tmp_path / "renamed")
    follow("fsync", path=tmp_path)
    assert after_cut() == {"renamed": b"data"}
    follow("unlink", path=tmp_path / "renamed")
    (tmp_path / "renamed").unlink()
    assert after_cut() == {"renamed": b"data"}
    assert disk.after_power_cut(lambda count: count, lambda: "all") == {}


def test_data_that_is_not_flushed_is_lost_or_torn_or_kept(tmp_path):
    file = File(b"flushed ")
    (tmp_path / "file").write_bytes(b"flushed and more")
    contents = [file.content(tmp_path / "file", kept) for kept in ("none", "half", "all")]
    assert contents == [b"flushed ", b"flushed and ", b"flushed and more"]


def test_times_and_speeds_are_not_compared_and_all_else_is(tmp_path):
    status = tmp_path / "status.json"
    status.write_text('{"step": 1, "time": 1.5}')
    before = tree_of(tmp_path)
    status.write_text('{"step": 1, "time": 2.5}')
    assert differences(before, tree_of(tmp_path)) == []
    status.write_text('{"step": 2, "time": 2.5}')
    (tmp_path / "left-over").touch()
    assert differences(before, tree_of(tmp_path)) == ["left-over", "status.json"]


def test_the_numbers_of_a_page_are_not_compared_and_its_words_are(tmp_path):
    page = tmp_path / "report.html"
    page.write_text("<td>0 seconds</td><li>2026-11-16</li>")
    before = tree_of(tmp_path)
    page.write_text("<td>12 seconds</td><li>2026-11-17</li>")
    assert differences(before, tree_of(tmp_path)) == []
    page.write_text("<td>12 seconds</td>")  # torn
    assert differences(before, tree_of(tmp_path)) == ["report.html"]
