"""Run the commands of `benchmarks.record` until a deadline, and tell failures from stops."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from benchmarks.harness import ELECTRA
from electra.cli import STOPPED_EARLY

SIGTERM = -15
ENDING_SECONDS = 60  # for a last checkpoint


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
        left = None
        if self.deadline != float("inf"):
            left = max(0.0, self.deadline - time.monotonic())
        try:
            return process.wait(left)
        except subprocess.TimeoutExpired:
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
