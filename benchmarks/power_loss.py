"""Cut the power at every file operation of a command, in a model of the disk, and run it again.

    python -m benchmarks.power_loss [--only NAME …] [--every N] [--output FILE] [--folder /dev/shm]

Only what was flushed is sure to be on the disk. Data of a file since its last fsync is lost, kept
or half kept. Of the names created, renamed and removed in a folder since its last fsync, any
beginning is kept, in each folder another. Then the same command runs on what is left.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from benchmarks.crash import Row, record
from benchmarks.crash_commands import COMMANDS
from benchmarks.crash_trials import Laboratory, differences, proceed, tree_of
from benchmarks.file_operations import SYNCS, Operation
from benchmarks.harness import run_main

RANDOM_STATES = 3  # at each operation, beside the fixed ones
Kept = Literal["none", "half", "all"]  # of the data that was not flushed
Files = dict[str, bytes | None]  # a path below the working folder → its content; None: a folder


@dataclass(eq=False)
class File:
    """A file: its bytes at the last fsync, and once it is removed, its last ones."""

    flushed: bytes = b""
    last: bytes | None = None

    def content(self, path: Path | None, kept: Kept) -> bytes:
        """Return what a power cut leaves of the file, which is at this path until then."""
        if kept == "none":
            return self.flushed
        current = self.last
        if current is None:
            assert path is not None
            current = path.read_bytes()
        if kept == "all":
            return current
        begin = 0
        if current.startswith(self.flushed):
            begin = len(self.flushed)
        return current[: begin + (len(current) - begin) // 2]


@dataclass(eq=False)
class Folder:
    """A folder: the names in it now, those at its last fsync, and the changes since."""

    names: dict[str, File | Folder] = field(default_factory=dict)
    flushed: dict[str, File | Folder] = field(default_factory=dict)
    changes: list[dict[str, File | Folder | None]] = field(default_factory=list)  # None: removed

    def change(self, **names: File | Folder | None) -> None:
        """Create, rename or remove names in one step."""
        self.changes.append(names)
        apply_change(self.names, names)

    def flush(self) -> None:
        self.flushed, self.changes = dict(self.names), []

    def kept_names(self, count: int) -> dict[str, File | Folder]:
        """Return the names after the first `count` changes since the last fsync."""
        names = dict(self.flushed)
        for change in self.changes[:count]:
            apply_change(names, change)
        return names


def apply_change(names: dict[str, File | Folder], change: dict[str, File | Folder | None]) -> None:
    for name, node in change.items():
        names.pop(name, None)
        if node is not None:
            names[name] = node


@dataclass
class Disk:
    """The model: follows the operations of a command before they take place."""

    root: Path
    top: Folder = field(default_factory=Folder)
    expected: tuple[Path, bool] | None = None  # whether a path exists after the last operation

    def wait(self) -> None:
        """Wait until the last operation has taken place: another thread may already ask for one."""
        deadline = time.monotonic() + 1
        while self.expected and time.monotonic() < deadline:
            path, exists = self.expected
            if os.path.lexists(path) == exists:
                return
            time.sleep(0.0005)

    def find(self, path: Path) -> File | Folder | None:
        node: File | Folder | None = self.top
        for name in path.relative_to(self.root).parts:
            if not isinstance(node, Folder):
                return None
            node = node.names.get(name)
        return node

    def folder(self, path: Path) -> Folder:
        node = self.find(path)
        assert isinstance(node, Folder), path
        return node

    def follow(self, operation: Operation) -> None:
        """Update the model by an operation, if that is going to succeed."""
        path, kind = operation.path, operation.kind
        node, self.expected = self.find(path), None
        if kind in SYNCS and node is not None:
            self.flush(path, node)
        elif kind in ("open", "mkdir"):
            self.create(operation, node)
        elif kind == "rmdir" and isinstance(node, Folder) and node.names:
            return  # the kernel refuses it
        elif kind in ("unlink", "rmdir") and node is not None:
            self.forget(path, node)
            self.folder(path.parent).change(**{path.name: None})
            self.expected = (path, False)
        elif kind == "rename" and node is not None:
            self.rename(path, operation.target, node)
        elif kind in ("link", "symlink", "truncate", "fallocate"):
            raise NotImplementedError(f"{kind} of {path}: the model has no such operation yet")

    def flush(self, path: Path, node: File | Folder) -> None:
        if isinstance(node, File):
            node.flushed = path.read_bytes()
        else:
            node.flush()

    def create(self, operation: Operation, node: File | Folder | None) -> None:
        path = operation.path
        parent = self.find(path.parent)
        if node is not None or not isinstance(parent, Folder):
            return
        made: File | Folder = Folder()
        if operation.kind == "open":
            if not operation.flags & os.O_CREAT:
                return
            made = File()
        parent.change(**{path.name: made})
        self.expected = (path, True)

    def forget(self, path: Path, node: File | Folder | None) -> None:
        """Keep the last bytes of a file that is going to be removed or replaced."""
        if isinstance(node, File):
            node.last = path.read_bytes()

    def rename(self, path: Path, target: Path | None, node: File | Folder) -> None:
        assert target is not None
        self.expected = (path, False)
        self.forget(target, self.find(target))
        if path.parent == target.parent:
            self.folder(path.parent).change(**{path.name: None, target.name: node})
            return
        self.folder(target.parent).change(**{target.name: node})
        self.folder(path.parent).change(**{path.name: None})

    def after_power_cut(
        self, keep_changes: Callable[[int], int], keep_data: Callable[[], Kept]
    ) -> Files:
        """Return what is on the disk, by how many changes of a folder and which data are kept."""
        places = {id(node): path for path, node in walk(self.top.names, self.root)}
        files: Files = {}

        def add(folder: Folder, path: str) -> None:
            kept = folder.kept_names(keep_changes(len(folder.changes)))
            for name, node in kept.items():
                place = os.path.join(path, name)
                if isinstance(node, Folder):
                    files[place] = None
                    add(node, place)
                else:
                    files[place] = node.content(places.get(id(node)), keep_data())

        add(self.top, "")
        return files


def walk(names: dict[str, File | Folder], folder: Path) -> Iterator[tuple[Path, File | Folder]]:
    for name, node in names.items():
        yield folder / name, node
        if isinstance(node, Folder):
            yield from walk(node.names, folder / name)


# ---- power cuts ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class State:
    """What a power cut leaves, and the checkpoint that the run had announced by then."""

    number: int  # of the operation before which it happens
    files: Files
    announced: int
    is_torn: bool  # whether half of a file may be there


def record_states(lab: Laboratory, name: str, *, seed: int = 0) -> tuple[int, list[State]]:
    """Run a command once; return its number of operations and the states that cuts may leave."""
    disk, chance = Disk(lab.work), random.Random(f"{seed} {name}")
    states: dict[int, State] = {}

    def collect(number: int) -> None:
        disk.wait()
        announced = lab.announced_step()
        for kept_changes, kept_data, is_torn in choices(chance):
            files = disk.after_power_cut(kept_changes, kept_data)
            key = hash((frozenset(files.items()), announced))
            states.setdefault(key, State(number, files, announced, is_torn))

    def follow(number: int, operation: Operation) -> int:
        collect(number)
        disk.follow(operation)
        return 0

    lab.clear()
    ended = lab.run(COMMANDS[name], follow)
    collect(ended.operations)
    return ended.operations, list(states.values())


def choices(
    chance: random.Random,
) -> Iterator[tuple[Callable[[int], int], Callable[[], Kept], bool]]:
    """Yield how much is kept: nothing, names without data, half of the data, all, and at random."""
    yield lambda count: 0, lambda: "none", False
    yield lambda count: count, lambda: "none", False
    yield lambda count: count, lambda: "half", True
    yield lambda count: 0, lambda: "all", False
    for _ in range(RANDOM_STATES):
        yield (
            lambda count: chance.randint(0, count),
            lambda: chance.choice(("none", "half", "all")),
            True,
        )


def cut_everywhere(lab: Laboratory, name: str, options: argparse.Namespace) -> Iterator[Row]:
    """Run a command on every state that a power cut may leave; yield the counts after each."""
    command = COMMANDS[name]
    lab.whole_tree(name, command)
    operations, states = record_states(lab, name, seed=options.seed)
    row, chance = Row(command.what, operations), random.Random(f"{options.seed} {name}")
    yield row
    for number, state in enumerate(states):
        is_chosen = chance.randrange(options.every) == 0
        if is_chosen and number % options.workers == options.worker:
            go_on_from(lab, name, state, row)
            yield row


def go_on_from(lab: Laboratory, name: str, state: State, row: Row) -> None:
    """Run a command on what a power cut left, and count what comes of it."""
    row.torn += state.is_torn
    row.killed += not state.is_torn
    lab.clear()
    write_files(lab.work, state.files)
    problem, saved = "", lab.saved_step()
    if saved < state.announced:
        problem = f"checkpoint {state.announced} was announced, {saved} is there; "
    again = lab.run(COMMANDS[name], proceed)
    if again.code == 2 and again.is_error_message and not problem:
        row.refused_with_remedy += 1
        print(f"{name}: refused before operation {state.number}: {again.output[-300:]}")
        return
    if again.code:
        problem += f"exit code {again.code}: {again.output[-600:]}"
    elif different := differences(tree_of(lab.output_dir), lab.whole[name]):
        problem += f"different: {different}"
    row.identical += not problem
    row.lost += bool(problem)
    if problem:
        print(f"{name}: before operation {state.number}: {problem}", file=sys.stderr, flush=True)


def write_files(folder: Path, files: Files) -> None:
    for name, content in files.items():
        if content is None:
            (folder / name).mkdir(parents=True, exist_ok=True)
        else:
            (folder / name).write_bytes(content)


if __name__ == "__main__":
    run_main(lambda: record(__doc__, cut_everywhere))
