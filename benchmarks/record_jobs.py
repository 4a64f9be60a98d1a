"""Run the commands of `benchmarks.record` until a deadline, and tell failures from stops."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.harness import ELECTRA
from electra.cli import STOPPED_EARLY

SIGTERM = -15
ENDING_SECONDS = 60  # for a last checkpoint
POLL_SECONDS = 1.0  # after a SIGTERM, until the commands are asked to end


class Stopped(Exception):
    """The deadline came first; the same command continues from what is saved."""


class Failed(Exception):
    """A command failed; its last line says why."""


class Commands:
    """Runs commands of electra, one thread each, until a deadline."""

    def __init__(self, stop_after: float | None) -> None:
        self.deadline = float("inf")
        if stop_after is not None:
            self.deadline = time.monotonic() + stop_after

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.deadline

    @contextmanager
    def stopped_by_sigterm(self) -> Iterator[None]:
        """Take a SIGTERM as the deadline: commands that ran on would hold their folders and the
        GPU while the same command is started again.
        """

        def stop(*_: object) -> None:
            self.deadline = time.monotonic()

        before = signal.signal(signal.SIGTERM, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def run(self, log: Path, *arguments: str) -> float:
        """Run a command and return its seconds; what it prints goes to a file.

        Raise Stopped at the deadline, after SIGTERM and a last checkpoint, and Failed where the
        command fails.
        """
        if self.is_over:
            raise Stopped
        start = time.monotonic()
        with log.open("a", encoding="utf8") as output:
            process = subprocess.Popen(
                [*ELECTRA, *arguments, "--quiet"],
                stdout=output,
                stderr=output,
                env={"OMP_NUM_THREADS": "1", **os.environ},
            )
            code = self.wait(process)
        if code in (STOPPED_EARLY, SIGTERM):
            raise Stopped
        if code:
            lines = log.read_text(encoding="utf8").strip().splitlines() or ["nothing printed"]
            raise Failed(f"exit code {code}: {lines[-1]}")
        return time.monotonic() - start

    def wait(self, process: subprocess.Popen[bytes]) -> int:
        """Return the exit code of a process, which is asked to end at the deadline."""
        try:
            while not self.is_over:
                left = self.deadline - time.monotonic()
                with suppress(subprocess.TimeoutExpired):
                    return process.wait(max(0.0, min(left, POLL_SECONDS)))
            process.terminate()
        except BaseException:
            process.kill()
            raise
        try:
            return process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return SIGTERM
