"""What all benchmarks share: the parser, errors, a deadline, and results, one writer at a time."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from electra import atomic
from electra.config import RunFailed, UserError
from electra.file_lock import acquire_lock, lock_holder, release_lock
from electra.runs.journal import read_metrics
from electra.runs.run_dir import METRICS

Result = dict[str, Any]
BAD_INPUT = 2  # the exit code of `electra` and of benchmarks
ELECTRA = (sys.executable, "-m", "electra")  # the beginning of a command


class Deadline:
    """The time at which commands are asked to end; a signal can bring it forward."""

    def __init__(self, stop_after: float | None) -> None:
        self.deadline = float("inf")
        if stop_after is not None:
            self.deadline = time.monotonic() + stop_after

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.deadline

    @contextmanager
    def stopped_by(self, *signals: signal.Signals) -> Iterator[None]:
        """Take signals as the deadline: commands that ran on would hold their folders and the GPU
        while the same command is started again.
        """

        def stop(*_: object) -> None:
            self.deadline = time.monotonic()

        before = {number: signal.signal(number, stop) for number in signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def build_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser that prints a module's docstring as it is written."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def check_counts(parser: argparse.ArgumentParser, options: argparse.Namespace, *names: str) -> None:
    """Refuse counts below 1 at once, not after minutes of work."""
    for name in names:
        if (count := getattr(options, name)) < 1:
            parser.error(f"--{name.replace('_', '-')} {count}: at least 1 is needed")


def run_main(main: Callable[[], None]) -> None:
    """Run a benchmark; print an error that its user can correct as one line, with exit code 2."""
    try:
        main()
    except (UserError, RunFailed, OSError) as error:
        problem = str(error)
    except subprocess.CalledProcessError as error:
        problem = failure_of(error)
    else:
        return
    print(f"error: {problem}", file=sys.stderr)
    sys.exit(BAD_INPUT)


def folder_name(name: str) -> str:
    """Return the name of an arm or a job as a part of the name of its folder."""
    return "".join(letter if letter.isalnum() else "-" for letter in name)


def failure_of(error: subprocess.CalledProcessError) -> str:
    """Return which command failed, with the last line of what it printed."""
    last_line = "its output is above"
    if error.stderr:
        last_line = "".join(str(error.stderr).strip().splitlines()[-1:])
    command = shlex.join(map(str, error.cmd))
    return f"`{command}` ended with exit code {error.returncode}: {last_line}"


def result_path(path: str) -> Path:
    """Return the file that --output names: writing would replace a link, not the file behind it."""
    return Path(path).resolve()


@contextmanager
def lock_result(path: Path) -> Iterator[int]:
    """Hold a result file, which its command reads once and then writes whole; raise UserError where
    another command holds it.

    The value is the open lock. The file stays held while a process that inherits it lives.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = atomic.sibling(path, "lock")
    descriptor = acquire_lock(lock)
    if descriptor is None:
        raise UserError(
            f"{path} is in use by another command ({lock_holder(lock)}) or by commands that it "
            "started; wait for them, stop them, or name another --output and --folder"
        )
    try:
        yield descriptor
    finally:
        os.close(descriptor)
        # A command that was started and lives still has the lock: its file then stays. Where the
        # folder is gone, the error that the command ends with is the one to tell.
        with suppress(OSError):
            if (again := acquire_lock(lock)) is not None:
                release_lock(lock, again)


def read_earlier(path: str | Path | None) -> Result:
    """Return the parts that a result file holds already, without its provenance."""
    if path is None or not Path(path).exists():
        return {}
    earlier: Result = json.loads(Path(path).read_text(encoding="utf8"))
    earlier.pop("made", None)
    return earlier


def read_windows(run: Path) -> list[Result]:
    """Return the entries of a journal that hold the speed of a window."""
    return [entry for entry in read_metrics(run / METRICS) if "tokens_per_second" in entry]


def write_result(path: str | Path, values: Result) -> None:
    """Write a result with its command, commit, versions, hardware and date, without local paths."""
    # Imported late: it imports torch, which would add to measured memory.
    from electra.provenance import environment

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    made = {"date": time.strftime("%Y-%m-%d"), "processor": platform.machine(), **environment()}
    made["command"] = [re.sub(r"(^|=)/.*/", r"\1", argument) for argument in made["command"]]
    # Several benchmarks write it after every run, and continue from it where they were killed.
    atomic.write(path, json.dumps({**values, "made": made}, indent=1) + "\n")
    print(f"written to {path}")


def write_record(path: str | Path, rows: list[dict[str, Any]]) -> None:
    """Write the rows of a reliability record with its command, commit, date and versions.

    Rows about something else that the file holds of the same commit are kept.
    """
    from electra.provenance import environment

    made, path = environment(), Path(path)
    made["command"][0] = f"python -m benchmarks.{Path(made['command'][0]).stem}"
    commands = [re.sub(r"(^|[ =])/\S*/", r"\1", " ".join(made["command"]))]
    earlier = read_earlier(path)
    if earlier.get("commit") == made["commit"]:
        done = {row["what"] for row in rows}
        rows = [*(row for row in earlier["rows"] if row["what"] not in done), *rows]
        commands = list(dict.fromkeys([*earlier["command"].split("; "), *commands]))
    record = {
        "command": "; ".join(commands),
        "commit": made["commit"],
        "date": time.strftime("%Y-%m-%d"),
        "versions": {"python": made["python"], **made["packages"]},
        "rows": rows,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf8")


def provenance() -> Result:
    """Return the provenance of one part of a result, whose parts may come from several runs."""
    import torch

    from electra.provenance import commit

    hardware = f"{platform.machine()} CPU"
    if torch.cuda.is_available():
        hardware = torch.cuda.get_device_name()
    return {
        "hardware": hardware,
        "torch": torch.__version__,
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
    }
