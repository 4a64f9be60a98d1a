"""Run the steps of a plan until a deadline, such as all benchmarks of one rented GPU.

    python -m benchmarks.batch PLAN.toml --minutes 28 --folder DIR [--only NAME …]
                               [--set KEY=VALUE …] [--dry-run]

PLAN.toml has `at_once`, how many steps may run beside each other (by default 1), and `[[steps]]`:

    name      also of its log, DIR/NAME.log
    command   its words; {folder} is DIR, and --set fills other {placeholders}
    minutes   its limit, after which its processes get SIGTERM, and SIGKILL ten seconds later
    needs     paths; if one is missing, nothing is started
    alone     true: nothing runs beside it, so that its timings count
    after     names of earlier steps; if one of them does not succeed, this one does not run

Steps start in the order of the plan; one that waits to be alone holds back those behind it. A
limit is cut to the minutes that are left, and a step is left out where they are less than a tenth
of it. DIR/batch.json says what became of each step. The same command continues: a step that
succeeded is not run again, unless its command has changed. --only runs these steps alone, whatever
they come after. Exit code 0: all of them have succeeded, now or before.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Deadline, Result, build_parser, run_main
from electra import atomic
from electra.config import SettingError, UserError, build
from electra.files import read_toml

ENDING_SECONDS = 10.0  # from SIGTERM to SIGKILL
POLL_SECONDS = 0.1
LEAST_SHARE = 0.1  # of its minutes, without which a step is not worth its start
DONE = "done"


@dataclass(frozen=True, kw_only=True)
class Step:
    """A command with its limit and its conditions."""

    name: str
    command: str
    minutes: float
    needs: tuple[str, ...] = ()
    alone: bool = False
    after: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.-]+", self.name):
            raise SettingError("name", "names a file: use letters, digits, -, _ and .", self)
        if self.minutes <= 0:
            raise SettingError("minutes", "must be above 0", self)
        try:
            if not shlex.split(self.command):
                raise ValueError("no words")
        except ValueError as error:
            raise SettingError("command", f"is no command: {error}", self) from None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The steps, in the order in which they start."""

    steps: tuple[Step, ...]
    at_once: int = 1

    def __post_init__(self) -> None:
        if self.at_once < 1:
            raise SettingError("at_once", "must be at least 1", self)
        earlier: set[str] = set()
        for number, step in enumerate(self.steps):
            key = f"steps[{number}]"
            if step.name in earlier:
                raise SettingError(f"{key}.name", f"{key}.name: {step.name} is there twice")
            for name in set(step.after) - earlier:
                raise SettingError(f"{key}.after", f"{key}.after: {name} is no earlier step")
            earlier.add(step.name)


@dataclass
class Job:
    """A step that runs, as the leader of a process group."""

    step: Step
    process: subprocess.Popen[bytes]
    entry: Result
    start: float
    asked: float | None = None  # to end, when

    def signal(self, number: int) -> bool:
        """Send a signal to the group; return whether a process of it was left."""
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            return False
        return True


class Batch(Deadline):
    """The steps of a plan, and the file that says what became of them."""

    def __init__(self, plan: Plan, options: argparse.Namespace) -> None:
        super().__init__(60 * options.minutes)
        self.at_once, self.folder = plan.at_once, options.folder.resolve()
        self.values = {**options.values, "folder": str(self.folder)}
        self.steps = [s for s in plan.steps if not options.only or s.name in options.only]
        self.commands = {step.name: self.words_of(step) for step in self.steps}
        self.path = self.folder / "batch.json"
        self.entries: dict[str, Result] = {}
        if self.path.exists():
            self.entries = json.loads(self.path.read_text(encoding="utf8"))["steps"]
        self.pending = [step for step in self.steps if not self.is_done(step)]
        self.running: list[Job] = []

    def words_of(self, step: Step) -> list[str]:
        return [fill(word, self.values) for word in shlex.split(step.command)]

    def is_done(self, step: Step) -> bool:
        entry = self.entries.get(step.name, {})
        same = entry.get("command") == shlex.join(self.commands[step.name])
        return same and entry["outcome"] == DONE

    def check_needs(self) -> None:
        missing = []
        for step in self.pending:
            paths = [fill(path, self.values) for path in step.needs]
            missing += [f"{path} ({step.name})" for path in paths if not Path(path).exists()]
        if missing:
            raise UserError(
                f"no such file or folder: {', '.join(missing)}; make what the steps in brackets "
                "need, or choose others by --only"
            )

    def run(self) -> None:
        """Run all steps; SIGTERM and SIGINT are their deadline."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.stopped_by(signal.SIGTERM, signal.SIGINT):
            try:
                while self.pending or self.running:
                    self.start_steps()
                    time.sleep(POLL_SECONDS)
                    self.running = [job for job in self.running if not self.has_ended(job)]
            finally:  # a full disk, for example
                for job in self.running:
                    job.signal(signal.SIGKILL)

    def start_steps(self) -> None:
        """Start the steps whose turn it is, and leave out those that cannot run any more."""
        for step in list(self.pending):
            ahead = {each.name for each in self.pending} | {job.step.name for job in self.running}
            if why := self.obstacle(step, ahead):
                self.pending.remove(step)
                self.keep(step, {"outcome": f"not run: {why}"})
            elif ahead.isdisjoint(step.after):
                alone = step.alone or any(job.step.alone for job in self.running)
                if len(self.running) >= (1 if alone else self.at_once):
                    return
                self.pending.remove(step)
                self.start(step)

    def obstacle(self, step: Step, ahead: set[str]) -> str:
        """Return why a step cannot run, now or later."""
        if self.is_over:
            return "the batch ended"
        if self.seconds_left <= LEAST_SHARE * 60 * step.minutes:
            return f"{self.seconds_left / 60:.1f} of its {step.minutes:g} minutes were left"
        for name in self.commands.keys() & set(step.after) - ahead:
            if self.entries[name]["outcome"] != DONE:
                return f"{name} did not succeed"
        return ""

    def start(self, step: Step) -> None:
        words = self.commands[step.name]
        if words[0] == "python":
            words = [sys.executable, *words[1:]]
        entry = {"start": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        minutes = min(step.minutes, self.seconds_left / 60)
        print(f"{entry['start']} {step.name}, {minutes:.1f} minutes at most", flush=True)
        with (self.folder / f"{step.name}.log").open("ab") as log:
            try:
                process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, "PYTHONUNBUFFERED": "1"},
                    start_new_session=True,
                )
            except OSError as error:
                self.keep(step, {**entry, "outcome": f"failed: {error}"})
                return
        self.running.append(Job(step, process, entry, time.monotonic()))

    def has_ended(self, job: Job) -> bool:
        """Keep the outcome of a job that has ended; end what outlives its limit or its leader."""
        now, code = time.monotonic(), job.process.poll()
        if code is None and now < min(job.start + 60 * job.step.minutes, self.deadline):
            return False
        if job.asked is None:
            job.asked = now
            job.entry |= {"seconds": round(now - job.start, 1), "outcome": self.outcome(code)}
            job.signal(signal.SIGTERM)
        if now - job.asked < ENDING_SECONDS:
            if job.signal(0):
                return False
        elif job.signal(signal.SIGKILL) and code is None and now - job.asked < 2 * ENDING_SECONDS:
            return False
        job.entry["exit_code"] = code  # None: a driver holds the process, despite SIGKILL
        self.keep(job.step, job.entry)
        return True

    def outcome(self, code: int | None) -> str:
        """Return the outcome by an exit code, or by what is over where a job has none yet."""
        if code is None:
            return "stopped: the batch ended" if self.is_over else "stopped: its minutes were over"
        return DONE if code == 0 else f"failed: exit code {code}"

    def keep(self, step: Step, entry: Result) -> None:
        print(f"{step.name}: {entry['outcome']}", flush=True)
        self.entries[step.name] = {"command": shlex.join(self.commands[step.name]), **entry}
        atomic.write_json(self.path, {"steps": self.entries})

    def print_table(self) -> None:
        for step in self.steps:
            entry = self.entries[step.name]
            minutes = f"{entry.get('seconds', 0) / 60:.1f} of {step.minutes:g} min"
            print(f"{step.name:<20} {minutes:>16}  {entry['outcome']}")


def fill(text: str, values: Mapping[str, str]) -> str:
    """Fill the placeholders of one word."""

    def value_of(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise UserError(f"{text!r}: {match[0]} has no value; add --set {match[1]}=VALUE")
        return values[match[1]]

    return re.sub(r"\{(\w+)\}", value_of, text)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_options(arguments)
    plan = build(Plan, read_toml(options.plan), source=str(options.plan))
    names = [step.name for step in plan.steps]
    if unknown := set(options.only or ()) - set(names):
        raise UserError(f"--only {min(unknown)}: {options.plan} has {', '.join(names)}")
    batch = Batch(plan, options)
    if options.dry_run:
        for step in batch.pending:
            print(f"{step.name}, {step.minutes:g} min: {shlex.join(batch.commands[step.name])}")
        print(f"{sum(step.minutes for step in batch.pending):g} minutes, if each takes its limit")
    batch.check_needs()
    if options.dry_run:
        return
    batch.run()
    batch.print_table()
    if not all(map(batch.is_done, batch.steps)):
        sys.exit(1)


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = build_parser(__doc__)
    parser.add_argument("plan", type=Path, metavar="PLAN.toml")
    parser.add_argument("--minutes", type=float, required=True, help="until the deadline")
    parser.add_argument("--folder", type=Path, required=True, help="for logs and batch.json")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of the steps; by default all")
    parser.add_argument("--set", action="extend", nargs="+", default=[], metavar="KEY=VALUE")
    parser.add_argument("--dry-run", action="store_true", help="print what would run")
    options = parser.parse_args(arguments)
    options.values = dict(pair.split("=", 1) for pair in options.set if "=" in pair)
    for pair in options.set:
        if "=" not in pair:
            parser.error(f"--set {pair}: write KEY=VALUE")
    return options


if __name__ == "__main__":
    run_main(main)
