"""A queue and a worker thread for each model: requests that wait together are one batch."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from electra.config import UserError
from electra.console import to_stderr
from electra.web.requests import Limits, RequestError, as_request_error

# A batch ends at the request that passes one of these. The network itself runs parts of it that fit
# into memory.
BATCH_ITEMS, BATCH_CHARACTERS = 64, 60_000
RETRY_SECONDS = 1

# Computes one result for each item; an exception in place of a result refuses that item's request.
Compute = Callable[[Hashable, Sequence[Any]], Sequence[Any]]


@dataclass(eq=False)
class Job:
    """The items of one request."""

    key: Hashable  # only items of one key go into a batch
    items: Sequence[Any]
    characters: int
    future: asyncio.Future[list[Any]]
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def resolve(self, results: Sequence[Any]) -> None:
        """Hand the results to the request, from the worker's thread."""
        failure = next((result for result in results if isinstance(result, BaseException)), None)
        self.settle(list(results), failure)

    def fail(self, error: BaseException) -> None:
        self.settle([], error)

    def settle(self, results: list[Any], failure: BaseException | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: the server has stopped
            self.loop.call_soon_threadsafe(set_outcome, self.future, results, failure)


def set_outcome(
    future: asyncio.Future[list[Any]], results: list[Any], failure: BaseException | None
) -> None:
    if future.done():  # its client has gone
        return
    if failure is not None:
        future.set_exception(failure)
    else:
        future.set_result(results)


class Worker:
    """The only thread that runs a model. It takes the oldest request, and those that fit to it."""

    def __init__(self, name: str, compute: Compute, limits: Limits) -> None:
        self.compute, self.limits = compute, limits
        self.jobs: deque[Job] = deque()
        self.running: list[Job] = []
        self.characters = 0
        self.is_stopping = False
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self.run, name=name, daemon=True)

    @property
    def queued(self) -> int:
        return len(self.jobs) + len(self.running)

    async def submit(self, key: Hashable, items: Sequence[Any], characters: int) -> list[Any]:
        """Return the results of the items, in order; raise RequestError where the queue is full."""
        job = Job(key, items, characters, asyncio.get_running_loop().create_future())
        with self.changed:
            if self.is_stopping:
                raise stopping()
            self.drop_cancelled()
            total = self.characters + characters
            is_full = len(self.jobs) >= self.limits.queued_requests
            if is_full or (self.jobs and total > self.limits.queued_characters):
                raise RequestError(
                    503,
                    f"{len(self.jobs):,} requests wait for this model; send yours again in "
                    f"{RETRY_SECONDS} s.",
                    retry_after=RETRY_SECONDS,
                )
            self.jobs.append(job)
            self.characters += characters
            self.changed.notify_all()
        return await job.future

    def drop_cancelled(self) -> None:
        """Forget requests whose clients have gone."""
        if any(job.future.cancelled() for job in self.jobs):
            self.jobs = deque(job for job in self.jobs if not job.future.cancelled())
            self.characters = sum(job.characters for job in self.jobs)

    # ---- the thread ------------------------------------------------------------------------------

    def run(self) -> None:
        while batch := self.take():
            try:
                self.answer(batch)
            finally:
                with self.changed:
                    self.running = []
                    self.changed.notify_all()

    def take(self) -> list[Job]:
        """Wait for work, and return a batch; an empty one when the server stops."""
        with self.changed:
            while True:
                self.drop_cancelled()
                if self.jobs or self.is_stopping:
                    break
                self.changed.wait()
            if not self.jobs:
                return []
            batch: list[Job] = []
            items = characters = 0
            for job in list(self.jobs):
                if batch and job.key != batch[0].key:
                    continue
                items, characters = items + len(job.items), characters + job.characters
                if batch and (items > BATCH_ITEMS or characters > BATCH_CHARACTERS):
                    break
                batch.append(job)
            taken = set(map(id, batch))
            self.jobs = deque(job for job in self.jobs if id(job) not in taken)
            self.characters = sum(job.characters for job in self.jobs)
            self.running = batch
            return batch

    def answer(self, batch: Sequence[Job]) -> None:
        """Compute a batch; where that fails, each request of it alone."""
        items = [item for job in batch for item in job.items]
        try:
            results = self.compute(batch[0].key, items)
            assert len(results) == len(items)
        except BaseException as error:  # a thread that ends would leave every request waiting
            if len(batch) == 1:
                batch[0].fail(as_failure(error))
                return
            for job in batch:
                self.answer([job])
            return
        start = 0
        for job in batch:
            job.resolve(results[start : start + len(job.items)])
            start += len(job.items)

    # ---- the end ---------------------------------------------------------------------------------

    def stop(self) -> None:
        """Take no more requests; the thread ends when the queue is empty."""
        with self.changed:
            self.is_stopping = True
            self.changed.notify_all()

    def abandon(self) -> None:
        """Refuse everything that still waits."""
        self.stop()
        with self.changed:
            for job in (*self.jobs, *self.running):
                job.fail(stopping())
            self.jobs.clear()


def stopping() -> RequestError:
    return RequestError(
        503, "The server is stopping; send the request again when it is back.", retry_after=5
    )


def as_failure(error: BaseException) -> BaseException:
    """Return what the client is told: a refusal as it is, and nothing of any other error."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, UserError):
        return as_request_error(error)
    to_stderr(f"a request failed: {type(error).__name__}: {error}")
    return RequestError(
        500, "The model failed on this input; the server's terminal says why. Change the input."
    )
