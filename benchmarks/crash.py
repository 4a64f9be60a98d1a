"""Interrupt every file operation of a command, run it again, and compare what it leaves.

    python -m benchmarks.crash [--only NAME …] [--every N] [--fail-every N] [--output FILE]
                               [--folder /dev/shm] [--workers 1]

Before each operation the command is killed, or half of a write is written and it is killed, or the
operation fails as on a full or broken disk, once or from there on. Then the same command runs
without a fault. Its files must be those of a run that was never interrupted.
"""

from __future__ import annotations

import argparse
import errno
import functools
import multiprocessing
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.crash_commands import COMMANDS
from benchmarks.crash_trials import (
    KILL,
    Decide,
    Ended,
    Laboratory,
    differences,
    laboratory,
    proceed,
    tree_of,
)
from benchmarks.file_operations import Operation
from benchmarks.harness import build_parser, check_counts, run_main, write_record

TAKES_SPACE = ("write", "open", "mkdir", "ftruncate", "rename", "link", "symlink", "fsync")


@dataclass(frozen=True)
class Fault:
    """What happens to an operation."""

    name: str
    error: int = KILL
    is_torn: bool = False  # half of the bytes are written before
    is_lasting: bool = False  # later operations fail too

    def applies_to(self, operation: Operation) -> bool:
        """Return whether an operation can fail like this."""
        if self.is_torn:
            return operation.kind == "write"
        return self.error != errno.ENOSPC or operation.kind in TAKES_SPACE

    def strike(self, number: int) -> Decide:
        """Return a supervisor that interrupts the operation of this number."""

        def decide(count: int, operation: Operation) -> int:
            is_later = self.is_lasting and count > number
            if not (count == number or is_later) or not self.applies_to(operation):
                return 0
            if self.is_torn:
                operation.write_half()
            return self.error

        return decide


RowsOf = Callable[[Laboratory, str, argparse.Namespace], Iterator["Row"]]
FAULTS = (
    Fault("killed"),
    Fault("torn", is_torn=True),
    Fault("full disk, once", errno.ENOSPC),
    Fault("full disk from there on", errno.ENOSPC, is_lasting=True),
    Fault("broken disk, once", errno.EIO),
    Fault("broken disk from there on", errno.EIO, is_lasting=True),
)


@dataclass
class Row:
    """How often a command was interrupted, and what came of it."""

    what: str
    operations: int = 0
    killed: int = 0
    torn: int = 0
    failed: int = 0
    identical: int = 0
    refused_with_remedy: int = 0
    lost: int = 0

    def count(self, fault: Fault) -> None:
        if fault.is_torn:
            self.torn += 1
        elif fault.error == KILL:
            self.killed += 1
        else:
            self.failed += 1


def interrupt_everywhere(lab: Laboratory, name: str, options: argparse.Namespace) -> Iterator[Row]:
    """Interrupt the operations of a command; yield the counts after each.

    With `every`, each kill strikes one operation in so many, and with `fail_every` each error;
    which of them follows from the seed.
    """
    command = COMMANDS[name]
    lab.whole_tree(name, command)
    operations: list[Operation] = []

    def collect(number: int, operation: Operation) -> int:
        operations.append(operation)
        return 0

    lab.clear()
    lab.run(command, collect)
    row, chance = Row(command.what, len(operations)), random.Random(f"{options.seed} {name}")
    yield row
    for number, operation in enumerate(operations):
        for fault in FAULTS:
            every = options.every
            if fault.error != KILL:
                every = options.fail_every or every
            is_chosen = fault.applies_to(operation) and chance.randrange(every) == 0
            if is_chosen and number % options.workers == options.worker:
                interrupt(lab, name, fault, number, row)
                yield row


def interrupt(lab: Laboratory, name: str, fault: Fault, number: int, row: Row) -> None:
    """Interrupt one operation, run the command again, and count what comes of it."""
    command = COMMANDS[name]
    lab.clear()
    ended = lab.run(command, fault.strike(number))
    if not ended.was_struck:  # threads may do the operations in another order
        return
    row.count(fault)
    problems = describe_end(lab, name, fault, ended)
    if (saved := lab.saved_step()) < (announced := lab.announced_step()):
        problems.append(f"checkpoint {announced} was announced, {saved} is there")
    again = lab.run(command, proceed)
    if is_refused := again.code == 2 and again.is_error_message:
        row.refused_with_remedy += 1
        problems.append(f"refused: {again.output[-300:]}")
    elif again.code:
        problems.append(f"again: exit code {again.code}: {again.output[-300:]}")
    elif different := differences(tree_of(lab.output_dir), lab.whole[name]):
        problems.append(f"different: {different}")
    row.identical += not problems
    row.lost += bool(problems) and not is_refused
    if problems:
        text = f"{name}: {fault.name}, operation {number}: {'; '.join(problems)}"
        print(text, file=sys.stderr, flush=True)


def describe_end(lab: Laboratory, name: str, fault: Fault, ended: Ended) -> list[str]:
    """Return what is wrong about the end of a run that a fault struck."""
    if fault.error == KILL or ended.is_error_message:
        return []
    if ended.code:
        return [f"exit code {ended.code}: {ended.output[-600:]}"]
    if different := differences(tree_of(lab.output_dir), lab.whole[name]):
        return [f"ended as if nothing had failed, with {different}"]
    return []


# ---- the command ---------------------------------------------------------------------------------


def record(description: str | None, rows_of: RowsOf) -> None:
    """Interrupt the commands that the options name, print the counts, and write them if asked."""
    options = parse_options(description)
    rows = []
    for name in options.only:
        row = sum_rows(rows_of_workers(rows_of, name, options))
        print(summary(row), flush=True)
        rows.append(row)
        if options.output:  # after each, so that a run that is stopped loses nothing
            write_record(options.output, [asdict(row) for row in rows])
    if any(row.lost for row in rows):
        sys.exit(1)


def rows_of_workers(rows_of: RowsOf, name: str, options: argparse.Namespace) -> list[Row]:
    """Share the interruptions of a command between processes; return the counts of each."""
    shares = [
        argparse.Namespace(**{**vars(options), "worker": worker})
        for worker in range(options.workers)
    ]
    work = functools.partial(last_row, rows_of, name)
    if options.workers == 1:
        return [work(shares[0])]
    context = multiprocessing.get_context("spawn")  # a process that is forked must have no threads
    with context.Pool(options.workers) as pool:
        return pool.map(work, shares, chunksize=1)


def last_row(rows_of: RowsOf, name: str, options: argparse.Namespace) -> Row:
    with laboratory(options.folder) as lab:
        *_, row = rows_of(lab, name, options)
    return row


def sum_rows(rows: list[Row]) -> Row:
    """Add up what was tried; the operations are those of one run."""
    total = Row(rows[0].what, rows[0].operations)
    for row in rows:
        for key in ("killed", "torn", "failed", "identical", "refused_with_remedy", "lost"):
            setattr(total, key, getattr(total, key) + getattr(row, key))
    return total


def parse_options(description: str | None) -> argparse.Namespace:
    parser = build_parser(description)
    parser.add_argument("--only", nargs="*", default=list(COMMANDS), choices=COMMANDS)
    parser.add_argument("--every", type=int, default=1, help="try one interruption in so many")
    parser.add_argument("--fail-every", type=int, help="try one error in so many; --every if not")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="processes that share the work")
    parser.add_argument("--output")
    parser.add_argument("--folder", type=Path, help="where to work; in memory it is quicker")
    options = parser.parse_args()
    check_counts(parser, options, "every", "workers")
    return options


def summary(row: Row) -> str:
    return (
        f"{row.what}: {row.operations} operations; killed {row.killed}, torn {row.torn}, failed "
        f"{row.failed}; identical {row.identical}, refused {row.refused_with_remedy}, lost "
        f"{row.lost}"
    )


if __name__ == "__main__":
    run_main(lambda: record(__doc__, interrupt_everywhere))
