"""What the processes of a run know of each other: whether they run the same thing, and who has
fallen silent.
"""

from __future__ import annotations

import json
import math
import re
import sys
import threading
import time
from typing import Any

from torch.distributed.distributed_c10d import Store

from electra.engine.rendezvous import here

BEAT_SECONDS = 1.0
SILENT_SECONDS = 3 * BEAT_SECONDS
LOST = re.compile(r"timed out|timeout|connection (closed|reset)|broken pipe|NCCL", re.IGNORECASE)


class Heartbeat:
    """Tells the others, through torchrun's store, that this process lives and what it is about; and
    finds, when the run stands still, who does not. A thread beats, so a process that waits for
    others still does, and one that is stopped, starved or cut off does not. One whose own work
    hangs is behind the others in what it says.
    """

    def __init__(self, store: Store, rank: int, size: int, *, timeout_seconds: float) -> None:
        self.store, self.rank, self.size, self.timeout_seconds = store, rank, size, timeout_seconds
        self.place, self.moved = (0, 0, "getting ready"), time.monotonic()
        self.heard: dict[
            int, tuple[list[Any], float]
        ] = {}  # by rank: what it said, and when that was new
        self.answered, self.began_to_look = time.monotonic(), math.inf
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.beat, name="pulse", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.over.set()
        self.thread.join(timeout=SILENT_SECONDS)

    def at(self, step: int, phase: int, doing: str) -> None:
        self.place, self.moved = (step, phase, doing), time.monotonic()

    def beat(self) -> None:
        count, warned = 0, False
        try:
            while not self.over.wait(BEAT_SECONDS):
                count += 1
                self.store.set(f"pulse/{self.rank}", json.dumps([count, *self.place, here()]))
                stuck = time.monotonic() - self.moved
                if (
                    stuck > self.timeout_seconds / 2
                ):  # hundreds of processes ask the one store only when they must
                    self.poll()
                else:
                    self.heard, self.began_to_look = {}, math.inf
                self.answered = time.monotonic()
                # NCCL ends the process at its limit without a word in Python, so this is said
                # before it.
                if stuck > 0.8 * self.timeout_seconds and not warned:
                    warned = True
                    if self.rank == min(set(range(self.size)) - set(self.silent()), default=0):
                        print(
                            f"warning: no progress for {stuck:.0f} s: {self.hang_report()}",
                            file=sys.stderr,
                            flush=True,
                        )
        except RuntimeError:
            # the store went with the process that keeps it; the next collective says the rest
            return

    def poll(self) -> None:
        now = time.monotonic()
        self.began_to_look = min(self.began_to_look, now)
        for rank in range(self.size):
            if self.store.check([key := f"pulse/{rank}"]):
                said = json.loads(self.store.get(key))
                if rank not in self.heard or self.heard[rank][0] != said:
                    self.heard[rank] = (said, now)

    def silent(self) -> list[int]:
        """Those who said nothing new since we began to listen, or for a while."""
        return [
            rank
            for rank in range(self.size)
            if time.monotonic() - self.heard.get(rank, ([], self.began_to_look))[1]
            >= SILENT_SECONDS
        ]

    def hang_report(self) -> str:
        """Who keeps the others waiting, in words."""
        if time.monotonic() - self.answered > SILENT_SECONDS:
            return "rank 0, through which the processes keep in touch, does not answer"
        if silent := self.silent():
            return "; ".join(
                f"rank {rank} fell silent, last seen {self.seen(rank)}" for rank in silent
            )
        places = {rank: tuple(said[1:3]) for rank, (said, _) in self.heard.items()}
        last = [rank for rank, place in places.items() if place == min(places.values())]
        if len(last) < len(places):
            return "; ".join(f"rank {rank} lives but is behind, {self.seen(rank)}" for rank in last)
        return (
            f"every process lives and says it is {self.seen(self.rank)}"
            if places
            else "no process was heard of"
        )

    def seen(self, rank: int) -> str:
        if rank not in self.heard:
            return "never"
        _, step, _, doing, place = self.heard[rank][0]
        return f"in step {step}, {doing} ({place})"

    def hang_report_for(self, error: Exception) -> str | None:
        """What a collective's failure means; None where it is another kind of failure."""
        line = str(error).strip().splitlines()[0] if str(error) else ""
        if not LOST.search(line):
            return None
        if (
            not re.search("timed out|timeout", line, re.IGNORECASE)
            and self.began_to_look == math.inf
        ):
            # at once: torchrun says whose
            return f"the connection to another process was lost ({line})"
        self.moved = -self.timeout_seconds  # from now on, listen
        deadline = time.monotonic() + SILENT_SECONDS + 2 * BEAT_SECONDS
        while time.monotonic() < deadline and not self.silent():
            time.sleep(BEAT_SECONDS / 4)
        return f"a process did not come within {self.timeout_seconds:.0f} s: {self.hang_report()}"
