"""Run a command under supervision, interrupt it, and compare what the same command then leaves."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import re
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.crash_commands import OUTPUT, Command
from benchmarks.file_operations import Operation, answer, decode, fork_supervised, requests
from electra.checksums import CHECKSUMS
from electra.config import RunFailed
from electra.file_lock import LOCK
from electra.runs.run_dir import get_status

SECONDS = 900.0  # after which a run counts as hanging, even on a machine with much else to do
KILL = -1  # what a supervisor answers instead of an error number
# Values that differ between two runs without a fault: times, speeds and where the code came from.
VARYING = {
    *("time", "date", "seconds", "seconds_per_step", "tokens_per_second", "data_wait", "commit"),
    *("examples_per_second", "command", "process"),
}
VARYING_FILES = {"environment.json"}
Tree = dict[str, str]  # a path below the output folder → a digest of what is there
# Given the number of an operation and the operation: 0 to continue, an error number, or KILL.
Decide = Callable[[int, Operation], int]


@dataclass(frozen=True)
class Ended:
    """How a run ended: its exit code (negative: a signal) and what it printed."""

    code: int
    output: str
    operations: int = 0
    was_struck: bool = False  # whether the fault took place

    @property
    def is_error_message(self) -> bool:
        """Whether it ended with an error that a user can read."""
        return self.code in (1, 2) and "error:" in self.output and "Traceback" not in self.output


@dataclass
class Laboratory:
    """A folder with inputs, and the working folder of one run at a time."""

    root: Path
    hung: int = 0
    whole: dict[str, Tree] = field(default_factory=dict)  # a command's name → what it leaves
    written: set[Callable[[Path], None]] = field(default_factory=set)  # the inputs there are

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def output_dir(self) -> Path:
        return self.work / OUTPUT

    def prepare(self, command: Command) -> None:
        """Write the inputs in child processes: this one stays without threads, to be forked."""
        for write in command.inputs:
            if write in self.written:
                continue

            def main(write: Callable[[Path], None] = write) -> int:
                write(self.root / "inputs")
                return 0

            ended = self.supervise(main, proceed)
            if ended.code:
                raise RunFailed(f"{write.__name__} failed: {ended.output[-2000:]}")
            self.written.add(write)

    def clear(self) -> None:
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir()

    def run(self, command: Command, decide: Decide) -> Ended:
        """Run a command in the working folder as it stands."""

        def main() -> int:
            os.chdir(self.work)
            return command.run()

        return self.supervise(main, decide)

    def supervise(self, main: Callable[[], int], decide: Decide) -> Ended:
        """Run a function in a child, and ask `decide` about each operation in the work folder."""
        log = self.root / "log"
        group, listener = fork_supervised(main, log)
        count, was_struck = 0, False
        try:
            for request in requests(listener, until=time.monotonic() + SECONDS):
                operation = decode(request)
                error = 0
                if operation is not None and operation.path.is_relative_to(self.work):
                    error = decide(count, operation)
                    count += 1
                was_struck |= error != 0
                if error == KILL:
                    break
                answer(listener, request, error)
        except TimeoutError:
            self.hung += 1
        finally:
            code = end_group(group)
            os.close(listener)
        output = log.read_text(encoding="utf8", errors="replace")
        return Ended(code, output, count, was_struck)

    def whole_tree(self, name: str, command: Command) -> Tree:
        """Return what a run without a fault leaves; make it when it is first needed."""
        if name not in self.whole:
            self.prepare(command)
            self.clear()
            ended = run_and_import(self, command)
            if ended.code:
                raise RunFailed(f"{name} does not run without a fault: {ended.output[-2000:]}")
            self.whole[name] = tree_of(self.output_dir)
        return self.whole[name]

    def announced_step(self) -> int:
        """Return the step of the checkpoint that status.json names; 0 where it names none."""
        name = str(get_status(self.output_dir).get("checkpoint") or "checkpoint-0")
        return int(name.removeprefix("checkpoint-"))

    def saved_step(self) -> int:
        """Return the step of the latest whole checkpoint; 0 where there is none."""
        if not any(self.output_dir.glob("checkpoint-*")):
            return 0
        from electra.runs import checkpoint  # imports torch

        with warnings.catch_warnings(), contextlib.suppress(ValueError):
            warnings.simplefilter("ignore")
            newest = checkpoint.latest(self.output_dir)
            if newest is not None:
                return newest.step
        return 0


def proceed(number: int, operation: Operation) -> int:
    return 0


def end_group(group: int) -> int:
    """Kill what is left of a child's session, and return the child's exit code."""
    pid, status = os.waitpid(group, os.WNOHANG)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    if pid == 0:
        _, status = os.waitpid(group, 0)
    return os.waitstatus_to_exitcode(status)


def run_and_import(laboratory: Laboratory, command: Command) -> Ended:
    """Run a command, and import here what it imports late: its forked runs find it imported."""
    names = laboratory.root / "modules"

    def write_names() -> None:
        names.write_text("\n".join(sys.modules), encoding="utf8")

    def main() -> int:
        os.chdir(laboratory.work)
        return command.run(write_names)

    ended = laboratory.supervise(main, proceed)
    if ended.code == 0:
        for name in names.read_text(encoding="utf8").splitlines():
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    return ended


# ---- what a run leaves ---------------------------------------------------------------------------


def tree_of(folder: Path) -> Tree:
    """Return a digest of every file, without times and speeds, and of every empty folder."""
    tree = {}
    for path in sorted(folder.rglob("*")):
        if path.name == LOCK:  # a file that nobody holds locks nothing
            continue
        name = str(path.relative_to(folder))
        if path.is_dir():
            if not any(path.iterdir()):
                tree[name] = "an empty folder"
        elif path.name not in VARYING_FILES:
            tree[name] = hashlib.sha256(comparable_bytes(path)).hexdigest()
        else:
            tree[name] = "not compared"
    return tree


def comparable_bytes(path: Path) -> bytes:
    """Return the content of a file, and of JSON and pages what does not vary from run to run."""
    content = path.read_bytes()
    if path.name == CHECKSUMS:
        return checked_names(path)
    if path.suffix == ".html":  # shows times and dates among numbers of files compared beside it
        return re.sub(rb"[0-9]+", b"0", content)
    if path.suffix not in (".json", ".jsonl"):
        return content
    texts = [content]
    if path.suffix == ".jsonl":
        texts = content.splitlines()
    try:
        values = [without_varying(json.loads(text)) for text in texts]
    except ValueError:
        return content
    return json.dumps(values).encode()


def checked_names(path: Path) -> bytes:
    """Return the names of a list of checksums, and whether each is that of the file beside it."""
    lines = []
    for line in path.read_text(encoding="utf8", errors="replace").splitlines():
        digest, _, name = line.partition("  ")
        file = path.parent / name
        is_right = file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == digest
        lines.append(f"{name} {is_right}")
    return "\n".join(lines).encode()


def without_varying(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: without_varying(inner) for name, inner in value.items() if name not in VARYING
        }
    if isinstance(value, list):
        return [without_varying(inner) for inner in value]
    return value


def differences(ours: Tree, theirs: Tree) -> list[str]:
    """Return the paths that are missing, left over or different."""
    return sorted(
        name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)
    )


@contextmanager
def laboratory(folder: Path | None = None) -> Iterator[Laboratory]:
    """Give a laboratory in a folder of its own, which is removed in the end."""
    import tempfile

    from benchmarks.file_operations import check_machine

    check_machine()
    with tempfile.TemporaryDirectory(dir=folder) as name:
        made = Laboratory(Path(name).resolve())
        (made.root / "inputs").mkdir()
        os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        os.environ["XDG_CACHE_HOME"] = str(made.work / "cache")
        yield made
