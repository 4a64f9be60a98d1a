"""A result file has one writer at a time: a command of benchmarks, and what it has started."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import beyond_glue, record
from benchmarks.beyond_glue import FOLDERS
from benchmarks.harness import lock_result, run_main
from electra.config import UserError
from electra.file_lock import LOCK

LOCK_FILE = f".result.json{LOCK}"
# Holds the result file and starts a command that prints its process, as `benchmarks.record` does.
HOLDER = """
import sys
from pathlib import Path
from benchmarks import record_jobs
from benchmarks.harness import lock_result
record_jobs.ELECTRA = (sys.executable, "-c")
folder = Path(sys.argv[1])
with lock_result(folder / "result.json") as lock:
    commands = record_jobs.Commands(None, held=[lock])
    commands.run(folder / "log", "import os, time; print(os.getpid(), flush=True); time.sleep(60)")
"""


@pytest.fixture
def result(tmp_path: Path) -> Path:
    return tmp_path / "results" / "result.json"


def test_a_result_file_is_held_while_a_command_writes_it_and_free_after_it(result: Path) -> None:
    with (
        lock_result(result),
        pytest.raises(UserError, match=r"result\.json is in use .* name another --output"),
        lock_result(result),
    ):
        pass
    with lock_result(result):
        pass
    assert list(result.parent.iterdir()) == []


def test_a_file_stays_held_by_what_was_started_where_its_command_ends_by_an_error(
    result: Path,
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start_and_fail() -> None:
        with lock_result(result) as lock:
            started.append(subprocess.Popen(["sleep", "60"], pass_fds=[lock]))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start_and_fail()
    with pytest.raises(UserError, match="commands that it started"), lock_result(result):
        pass
    started[0].kill()
    started[0].wait()
    with lock_result(result):
        pass


def record_command(folder: Path, output: Path) -> list[str]:
    place = ["--folder", str(folder), "--glue", str(folder), "--output", str(output)]
    return ["--stage", "quarter", "--arms", "paper", *place]


def beyond_command(folder: Path, output: Path) -> list[str]:
    for name in FOLDERS.values():
        (folder / name).mkdir()
    place = ["--data", str(folder), "--folder", str(folder / "runs"), "--output", str(output)]
    return ["small-en", *place]


@pytest.mark.parametrize(
    ("main", "command"), [(record.main, record_command), (beyond_glue.main, beyond_command)]
)
def test_a_second_command_ends_with_exit_code_2_and_has_touched_nothing(
    main: Callable[[Sequence[str]], None],
    command: Callable[[Path, Path], list[str]],
    result: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = command(tmp_path, result)
    before = sorted(tmp_path.rglob("*"))
    with lock_result(result), pytest.raises(SystemExit, match="2"):
        run_main(lambda: main(argv))
    assert f"error: {result} is in use by another command" in capsys.readouterr().err
    assert sorted(path for path in tmp_path.rglob("*") if path != result.parent) == before
    assert not result.exists()


@pytest.mark.parametrize(
    ("module", "worker", "command"),
    [(record, "Search", record_command), (beyond_glue, "Scoring", beyond_command)],
)
def test_the_file_behind_a_link_is_what_is_held_and_written_and_commands_inherit_its_lock(
    module: Any,
    worker: str,
    command: Callable[[Path, Path], list[str]],
    result: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "link.json").symlink_to(result)
    argv = command(tmp_path, tmp_path / "link.json")

    class Begun(Exception):
        pass

    def begin(options: argparse.Namespace, *_: object, held: Sequence[int]) -> None:
        assert options.output == result
        (descriptor,) = held
        assert os.path.samestat(os.fstat(descriptor), (result.parent / LOCK_FILE).stat())
        raise Begun

    monkeypatch.setattr(module, worker, begin)
    with pytest.raises(Begun):
        module.main(argv)


def test_the_plan_of_a_stage_is_shown_while_another_command_runs_it(
    result: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with lock_result(result):
        record.main(["--stage", "quarter", "--plan", "--output", str(result)])
    assert "runs left" in capsys.readouterr().out


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)])
    yield process
    process.kill()
    process.wait()


def wait_for(log: Path) -> int:
    """Return the number that a process has written to its log."""
    for _ in range(600):
        if log.exists() and (text := log.read_text(encoding="utf8")).endswith("\n"):
            return int(text)
        time.sleep(0.1)
    raise AssertionError(f"{log}: nothing was written")


def test_what_a_killed_command_has_started_holds_its_result_file_on(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    orphan = wait_for(tmp_path / "log")
    holder.kill()
    holder.wait()
    result = tmp_path / "result.json"
    with pytest.raises(UserError, match=f"process {holder.pid} .* commands that it started"):
        lock_result(result).__enter__()
    subprocess.run(["kill", "-KILL", str(orphan)], check=True)
    for _ in range(100):
        try:
            with lock_result(result):
                break
        except UserError:
            time.sleep(0.1)
    else:
        raise AssertionError(f"{result} is still held")
    assert not (tmp_path / LOCK_FILE).exists()
