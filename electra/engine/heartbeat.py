"""Heartbeats between the processes of a run, and the report of which one hangs."""

from __future__ import annotations

import json
import math
import re
import threading
import time
from typing import Any

from torch.distributed.distributed_c10d import Store

from electra.console import to_stderr
from electra.engine.rendezvous import process_name

BEAT_SECONDS = 1.0
SILENT_SECONDS = 3 * BEAT_SECONDS
TIMEOUT = re.compile("timed out|timeout", re.IGNORECASE)
LOST = re.compile(r"timed out|timeout|connection (closed|reset)|broken pipe|NCCL", re.IGNORECASE)


class Heartbeat:
    """Publishes through torchrun's store that this process lives and what it does.

    When the run stands still, it finds the process that the others wait for. A thread beats, so a
    process that waits for others still does, and one that is stopped, starved or cut off does not.
    One whose own work hangs beats, but its step and phase are behind those of the others.
    """

    def __init__(self, store: Store, rank: int, size: int, *, timeout_seconds: float) -> None:
        self.store = store
        self.rank = rank
        self.size = size
        self.timeout_seconds = timeout_seconds
        self.progress = (0, 0, "getting ready")  # step, phase, activity
        self.last_progress = time.monotonic()
        # By rank: the last message, and when it was first seen.
        self.messages: dict[int, tuple[list[Any], float]] = {}
        self.polling_since = math.inf
        self.last_store_answer = time.monotonic()
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.beat, name="heartbeat", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.stopped.set()
        self.thread.join(timeout=SILENT_SECONDS)

    def report_progress(self, step: int, phase: int, activity: str) -> None:
        self.progress = (step, phase, activity)
        self.last_progress = time.monotonic()

    def beat(self) -> None:
        """Publish a message every second, and watch the others once this process stands still."""
        count, has_warned = 0, False
        try:
            while not self.stopped.wait(BEAT_SECONDS):
                count += 1
                message = json.dumps([count, *self.progress, process_name()])
                self.store.set(f"heartbeat/{self.rank}", message)
                stuck_seconds = time.monotonic() - self.last_progress
                # Hundreds of processes share one store, so they read it only when they must.
                if stuck_seconds > self.timeout_seconds / 2:
                    self.poll()
                else:
                    self.messages, self.polling_since = {}, math.inf
                self.last_store_answer = time.monotonic()
                # NCCL ends the process at its timeout without a Python exception: warn before it.
                if stuck_seconds > 0.8 * self.timeout_seconds and not has_warned:
                    has_warned = True
                    self.warn(stuck_seconds)
        except RuntimeError:
            # The store ended with the process that hosts it; the next collective raises.
            return

    def poll(self) -> None:
        """Read the messages of all processes."""
        now = time.monotonic()
        self.polling_since = min(self.polling_since, now)
        for rank in range(self.size):
            key = f"heartbeat/{rank}"
            if self.store.check([key]):
                message = json.loads(self.store.get(key))
                if rank not in self.messages or self.messages[rank][0] != message:
                    self.messages[rank] = (message, now)

    def warn(self, stuck_seconds: float) -> None:
        """Print the hang report, in the first process that still lives."""
        living = set(range(self.size)) - set(self.silent_ranks())
        if self.rank == min(living, default=0):
            to_stderr(f"warning: no progress for {stuck_seconds:.0f} s: {self.hang_report()}")

    def silent_ranks(self) -> list[int]:
        """Return the ranks without a new message for a while, or since polling began."""
        silent = []
        for rank in range(self.size):
            _, last_seen = self.messages.get(rank, ([], self.polling_since))
            if time.monotonic() - last_seen >= SILENT_SECONDS:
                silent.append(rank)
        return silent

    def hang_report(self) -> str:
        """Return which processes the others wait for."""
        if time.monotonic() - self.last_store_answer > SILENT_SECONDS:
            return "rank 0, through which the processes keep in touch, does not answer"
        if silent := self.silent_ranks():
            return "; ".join(
                f"rank {rank} fell silent, last seen {self.describe(rank)}" for rank in silent
            )
        positions = {rank: tuple(message[1:3]) for rank, (message, _) in self.messages.items()}
        if not positions:
            return "no process was heard of"
        last = min(positions.values())
        behind = [rank for rank, position in positions.items() if position == last]
        if len(behind) < len(positions):
            return "; ".join(
                f"rank {rank} lives but is behind, {self.describe(rank)}" for rank in behind
            )
        return f"every process lives and says it is {self.describe(self.rank)}"

    def describe(self, rank: int) -> str:
        """Return the step, activity and name that a process last published."""
        if rank not in self.messages:
            return "never"
        _, step, _, activity, name = self.messages[rank][0]
        return f"in step {step}, {activity} ({name})"

    def hang_report_for(self, error: Exception) -> str | None:
        """Return what a collective's failure means; None where the error is of another kind."""
        line = ""
        if str(error):
            line = str(error).strip().splitlines()[0]
        if not LOST.search(line):
            return None
        if not TIMEOUT.search(line) and self.polling_since == math.inf:
            # The connection broke at once, and torchrun reports whose process ended.
            return f"the connection to another process was lost ({line})"
        self.last_progress = -self.timeout_seconds  # from now on the thread polls
        deadline = time.monotonic() + SILENT_SECONDS + 2 * BEAT_SECONDS
        while time.monotonic() < deadline and not self.silent_ranks():
            time.sleep(BEAT_SECONDS / 4)
        return f"a process did not come within {self.timeout_seconds:.0f} s: {self.hang_report()}"
