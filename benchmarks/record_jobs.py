"""Run the commands of `benchmarks.record` until a deadline, and tell failures from stops."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.harness import ELECTRA, Deadline
from electra.cli import STOPPED_EARLY

SIGTERM = -15
ENDING_SECONDS = 60  # for a last checkpoint
POLL_SECONDS = 1.0  # after a SIGTERM, until the commands are asked to end


class Stopped(Exception):
    """The deadline came first; the same command continues from what is saved."""


class Failed(Exception):
    """A command failed; its last line says why."""


class Commands(Deadline):
    """Runs commands of electra, one thread each, until a deadline.

    They inherit the locks that are `held`: where they outlive this process, after a SIGKILL, they
    use the GPU and the run folders, and what they leave is not in the result file yet.
    """

    def __init__(self, stop_after: float | None, *, held: Sequence[int] = ()) -> None:
        super().__init__(stop_after)
        self.held = held

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
                pass_fds=self.held,
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
                with suppress(subprocess.TimeoutExpired):
                    return process.wait(min(self.seconds_left, POLL_SECONDS))
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
