"""Hand changed folders to every command, and count what ends in anything but a result or a refusal.

python -m benchmarks.hostile_folders --count 10000 [--seed 0] [--workers 1] [--output RESULT.json]

Case n is made by seed and n alone, so that a failure is repeated with --first n --count 1. Stopped
with Ctrl-C, it writes what was tried.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import queue
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from benchmarks.harness import Result, build_parser, check_counts, run_main
from benchmarks.hostile_changes import change_folder
from benchmarks.hostile_inputs import Case, fill, make_inputs, usable_cases
from electra.__main__ import main as electra
from electra.config import RunFailed
from electra.escape import CONTROL
from electra.reports import figures

OUTPUT = "benchmarks/results/reliability/hostile_folders.json"
SECONDS = 10.0  # without those in which others had the processor
MEMORY = 1024**3  # bytes that a command may take beyond what the process holds before it
ADDRESS_SPACE = 4 * MEMORY
UNEXPECTED = "(--debug shows where)"  # ends the message of an error that nobody foresaw
PROBLEMS = ("traceback", "hang", "over_memory", "written_outside", "control_characters")
CHUNK = 1000  # cases of a process


class HangError(BaseException):
    """A command that takes too long."""


@dataclass(frozen=True)
class Outcome:
    """How a command took a changed folder."""

    what: str
    result: str  # accepted or refused
    change: str
    problems: tuple[str, ...] = ()
    message: str = ""


def try_case(number: int, seed: int, good: Path, work: Path) -> Outcome:
    """Change a folder and run a command on it."""
    rng = Random(f"{seed}/{number}")
    cases = usable_cases(good)
    case = rng.choices(cases, [1 / case.cost for case in cases])[0]
    shutil.rmtree(work, ignore_errors=True)
    canary = work / "canary"
    (canary / "folder").mkdir(parents=True)
    for name in ("secret.txt", "config.json", "folder/a.txt"):
        (canary / name).write_text('{"a": "secret"}\n', encoding="utf8")
    (work / "output").mkdir()
    shutil.copytree(good / case.folder, work / "input")
    changes = [change_folder(work / "input", rng, canary) for _ in range(rng.choice((1, 1, 2)))]
    return judge(case, good, work, "; ".join(changes))


def try_unchanged(good: Path, work: Path) -> None:
    """Run every command on its good example: it must be accepted, and imports take their time."""
    for case in usable_cases(good):
        shutil.rmtree(work, ignore_errors=True)
        (work / "output").mkdir(parents=True)
        shutil.copytree(good / case.folder, work / "input")
        outcome = judge(case, good, work, "nothing", seconds=60 * SECONDS)
        if outcome.result != "accepted" or {*outcome.problems} - {"over_memory"}:
            raise RunFailed(f"a command failed on good input: {outcome}")


def judge(
    case: Case, good: Path, work: Path, change: str, *, seconds: float | None = None
) -> Outcome:
    """Run the command of a case and return what it did, and whether it should have."""
    folders = {"INPUT": work / "input", "OUTPUT": work / "output", "GOOD": good}
    allowed = folders["OUTPUT"]
    if case.in_place:
        allowed = folders["INPUT"]
    before, problems = snapshot(good, work, allowed), []
    stream, code = io.TextIOWrapper(io.BytesIO(), encoding="utf8", errors="replace"), -1
    held = reset_peak()
    try:
        with redirect(stream), limit_time(seconds or SECONDS):
            code = electra(fill(case.command, folders))
    except HangError:
        problems.append("hang")
    except BaseException as error:  # a panic of a library in Rust is no Exception
        problems.append("traceback")
        print(repr(error), file=stream)
    stream.flush()
    text = stream.buffer.getvalue().decode()  # type: ignore[attr-defined]
    if UNEXPECTED in text:
        problems.append("traceback")
    if "MemoryError" in text or peak() - held > MEMORY:
        problems.append("over_memory")
    if snapshot(good, work, allowed) != before:
        problems.append("written_outside")
    if CONTROL.search(text):
        problems.append("control_characters")
    result = "refused"
    if code in (0, 75):
        result = "accepted"
    return Outcome(case.what, result, change, tuple(dict.fromkeys(problems)), text[-600:])


@contextlib.contextmanager
def redirect(stream: io.TextIOWrapper) -> Iterator[None]:
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        yield


@contextlib.contextmanager
def limit_time(limit: float) -> Iterator[None]:
    """Raise HangError in a command that takes too long."""
    begun, before, waits = time.monotonic(), queue_waits(), queue_waits()

    def check(*_: object) -> None:
        waits.update(queue_waits())  # with those of threads that have ended
        waited = sum(seconds - before.get(thread, 0.0) for thread, seconds in waits.items())
        if time.monotonic() - begun - waited > limit:
            raise HangError

    previous = signal.signal(signal.SIGALRM, check)
    signal.setitimer(signal.ITIMER_REAL, 1.0, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, previous)


def queue_waits() -> dict[str, float]:
    """Return for each thread the seconds in which it could run and had no processor."""
    waits = {}
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):
            waits[path.parent.name] = int(path.read_text(encoding="utf8").split()[1]) / 1e9
    return waits


def snapshot(good: Path, work: Path, allowed: Path) -> dict[str, tuple[Any, ...]]:
    """Return what is outside of the folder that may be written to, with sizes and times."""
    found: dict[str, tuple[Any, ...]] = {}
    for root in (good, work):
        for folder, folders, files in os.walk(root):
            folders[:] = [name for name in folders if Path(folder, name) != allowed]
            for name in (*folders, *files):
                path = os.path.join(folder, name)
                status = os.lstat(path)
                found[path] = (status.st_mode, status.st_size, status.st_mtime_ns)
                if os.path.isdir(path):
                    found[path] = (status.st_mode,)
    return found


def reset_peak() -> int:
    """Forget the peak of the memory of this process, and return what it holds now."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="utf8")
    return peak()


def peak() -> int:
    """Return the peak of the memory of this process since it was reset, in bytes."""
    status = Path("/proc/self/status").read_text(encoding="utf8")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


# ---- many cases ----------------------------------------------------------------------------------


def try_cases(numbers: range, seed: int, good: Path, work: Path) -> Iterator[Outcome]:
    """Yield the outcome of each case. Figures are drawn in one of ten, for they take long."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in numbers:
            has_figures = figures.is_available() and number % 10 == 0
            with mock.patch.object(figures, "is_available", return_value=has_figures):
                yield try_case(number, seed, good, work)


def work_off(numbers: range, seed: int, root: Path) -> None:
    """Try cases in this process with little memory, and print each outcome as a line of JSON."""
    try_unchanged(root / "good", root / "work")
    size = int(Path("/proc/self/statm").read_text(encoding="utf8").split()[0])
    limit = size * resource.getpagesize() + ADDRESS_SPACE
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for outcome in try_cases(numbers, seed, root / "good", root / "work"):
        print(json.dumps(vars(outcome)), flush=True)


def try_in_processes(numbers: range, seed: int, root: Path) -> Iterator[tuple[int, Outcome]]:
    """Yield outcomes from processes of their own; one that is killed costs one case."""
    while numbers:
        chunk = numbers[:CHUNK]
        command = [sys.executable, "-m", "benchmarks.hostile_folders", "--worker", str(root)]
        command += ["--first", str(chunk.start), "--count", str(len(chunk)), "--seed", str(seed)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            done = 0
            try:
                for line in process.stdout:
                    yield chunk[done], Outcome(**json.loads(line))
                    done += 1
            except BaseException:
                process.kill()
                raise
        if done < len(chunk):
            message = f"the process ended with {process.returncode}"
            yield chunk[done], Outcome("(killed)", "refused", "", ("traceback",), message)
            done += 1
        numbers = numbers[done:]


def try_in_workers(
    numbers: range, seed: int, roots: Sequence[Path]
) -> Iterator[tuple[int, Outcome]]:
    """Yield outcomes as they come from one process for each folder with inputs."""
    found: queue.Queue[tuple[int, Outcome] | None] = queue.Queue()
    size = math.ceil(len(numbers) / len(roots))

    def work(worker: int) -> None:
        share = numbers[worker * size : (worker + 1) * size]
        try:
            for outcome in try_in_processes(share, seed, roots[worker]):
                found.put(outcome)
        finally:
            found.put(None)

    for worker in range(len(roots)):
        threading.Thread(target=work, args=(worker,), daemon=True).start()
    working = len(roots)
    while working:
        if (outcome := found.get()) is None:
            working -= 1
        else:
            yield outcome


def until_interrupted(outcomes: Iterator[tuple[int, Outcome]]) -> Iterator[tuple[int, Outcome]]:
    with contextlib.suppress(KeyboardInterrupt):
        yield from outcomes


def count_outcomes(outcomes: Iterator[tuple[int, Outcome]]) -> Result:
    """Return a row for each kind of input and command, and the first failures."""
    rows: dict[str, dict[str, Any]] = {}
    failures: list[dict[str, Any]] = []
    for number, outcome in until_interrupted(outcomes):
        empty = dict.fromkeys(("tried", "refused", "accepted", *PROBLEMS), 0)
        row = rows.setdefault(outcome.what, {"what": outcome.what, **empty})
        for key in ("tried", outcome.result, *outcome.problems):
            row[key] += 1
        if outcome.problems:
            print(f"case {number}: {outcome}", file=sys.stderr)
            failures.append({"case": number, **vars(outcome)})
    return {"rows": [rows[what] for what in sorted(rows)], "failures": failures[:20]}


def record(path: Path, result: Result, seed: int) -> None:
    """Write the counts with how they were made."""
    from electra.provenance import commit, environment

    count = sum(row["tried"] for row in result["rows"])
    command = f"python -m benchmarks.hostile_folders --count {count} --seed {seed}"
    head = {
        "command": command,
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "versions": {"python": sys.version.split()[0], **environment()["packages"]},
        "bounds": {"seconds": SECONDS, "bytes": MEMORY},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**head, **result}, indent=1) + "\n", encoding="utf8")
    print(f"written to {path}")


def main() -> None:
    """Parse the options, try the cases and write the counts."""
    parser = build_parser(__doc__)
    parser.add_argument("--count", type=int, default=1000, help="number of changed folders")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="processes that share the cases")
    parser.add_argument("--output", type=Path, default=Path(OUTPUT))
    parser.add_argument("--worker", type=Path, help="used by the command itself")
    options = parser.parse_args()
    check_counts(parser, options, "count", "workers")
    numbers = range(options.first, options.first + options.count)
    if options.worker is not None:
        work_off(numbers, options.seed, options.worker)
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        os.environ.update(XDG_CACHE_HOME=f"{name}/cache", HF_HUB_OFFLINE="1")
        roots = [Path(name, str(worker)) for worker in range(options.workers)]
        make_inputs(roots[0] / "good")
        for root in roots[1:]:
            shutil.copytree(roots[0] / "good", root / "good", symlinks=True)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
        result = count_outcomes(try_in_workers(numbers, options.seed, roots))
        record(options.output, result, options.seed)


if __name__ == "__main__":
    run_main(main)
