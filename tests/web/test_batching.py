"""The queue of a model: batches, order, bounds, cancelled requests and the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from electra.web.batching import BATCH_ITEMS, Worker
from electra.web.requests import Limits, RequestError


class Doubler:
    """Doubles numbers, once it is let go; refuses negative ones, and fails on a text."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.entered, self.free = threading.Event(), threading.Event()

    def compute(self, key: Hashable, items: Sequence[Any]) -> list[Any]:
        self.entered.set()
        self.free.wait(60)
        self.batches.append(list(items))
        results: list[Any] = []
        for item in items:
            if item < 0:
                results.append(RequestError(400, "negative"))
            else:
                results.append(2 * item)
        return results


@contextmanager
def working(doubler: Doubler, limits: Limits | None = None) -> Iterator[Worker]:
    worker = Worker("doubler", doubler.compute, limits or Limits())
    worker.thread.start()
    try:
        yield worker
    finally:
        doubler.free.set()
        worker.stop()
        worker.thread.join(60)
        assert not worker.thread.is_alive()


async def held(worker: Worker, doubler: Doubler, key: str = "k") -> asyncio.Future[list[Any]]:
    """A first request, which the worker has taken and holds until it is let go."""
    first = asyncio.ensure_future(worker.submit(key, [0], 1))
    await asyncio.sleep(0)
    assert await asyncio.to_thread(doubler.entered.wait, 60)
    return first


async def submit_all(worker: Worker, doubler: Doubler, jobs: Sequence[Any]) -> list[Any]:
    """The outcomes of jobs that wait together behind a first one."""
    first = await held(worker, doubler)
    tasks = [asyncio.ensure_future(worker.submit("k", job, 1)) for job in jobs]
    await asyncio.sleep(0)
    doubler.free.set()
    await first
    return await asyncio.gather(*tasks, return_exceptions=True)


def test_requests_that_wait_together_are_one_batch_and_get_their_own_answers() -> None:
    doubler = Doubler()
    with working(doubler) as worker:
        outcomes = asyncio.run(submit_all(worker, doubler, [[1, 2], [3], [4, 5, 6]]))
    assert outcomes == [[2, 4], [6], [8, 10, 12]]
    assert doubler.batches == [[0], [1, 2, 3, 4, 5, 6]]


def test_a_batch_has_at_most_so_many_items() -> None:
    doubler = Doubler()
    jobs = [[number] * 10 for number in range(20)]
    with working(doubler) as worker:
        outcomes = asyncio.run(submit_all(worker, doubler, jobs))
    assert outcomes == [[2 * number] * 10 for number in range(20)]
    assert max(map(len, doubler.batches)) <= BATCH_ITEMS


def test_a_request_that_is_refused_or_fails_leaves_its_neighbours_alone() -> None:
    doubler = Doubler()
    with working(doubler) as worker:
        outcomes = asyncio.run(submit_all(worker, doubler, [[1], [-1], ["x"], [2]]))
    assert outcomes[0] == [2]
    assert outcomes[3] == [4]
    assert outcomes[1].status == 400
    assert outcomes[2].status == 500
    assert "'<'" not in str(outcomes[2])


def test_only_requests_of_one_key_share_a_batch() -> None:
    doubler = Doubler()

    async def run(worker: Worker) -> list[Any]:
        first = await held(worker, doubler, "a")
        keys = ["a", "b", "a", "b"]
        jobs = [asyncio.ensure_future(worker.submit(k, [i], 1)) for i, k in enumerate(keys)]
        await asyncio.sleep(0)
        doubler.free.set()
        return [await each for each in (first, *jobs)]

    with working(doubler) as worker:
        assert asyncio.run(run(worker)) == [[0], [0], [2], [4], [6]]
    assert doubler.batches == [[0], [0, 2], [1, 3]]


def test_a_full_queue_is_told_to_come_back() -> None:
    doubler = Doubler()
    with working(doubler, Limits(queued_requests=2)) as worker:
        outcomes = asyncio.run(submit_all(worker, doubler, [[1], [2], [3]]))
    assert outcomes[:2] == [[2], [4]]
    assert (outcomes[2].status, outcomes[2].retry_after) == (503, 1)


def test_the_characters_that_wait_are_bounded() -> None:
    doubler = Doubler()
    with working(doubler, Limits(queued_characters=2)) as worker:
        outcomes = asyncio.run(submit_all(worker, doubler, [[1], [2], [3]]))
    assert outcomes[2].status == 503


def test_a_cancelled_request_is_dropped_from_the_queue() -> None:
    doubler = Doubler()

    async def run(worker: Worker) -> list[Any]:
        first = await held(worker, doubler)
        gone = asyncio.ensure_future(worker.submit("k", [1], 1))
        stays = asyncio.ensure_future(worker.submit("k", [2], 1))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        doubler.free.set()
        await first
        return await stays

    with working(doubler) as worker:
        assert asyncio.run(run(worker)) == [4]
    assert doubler.batches == [[0], [2]]


def test_a_worker_that_stops_finishes_its_queue_and_takes_no_more() -> None:
    doubler = Doubler()

    async def run(worker: Worker) -> list[Any]:
        jobs = [asyncio.ensure_future(worker.submit("k", [i], 1)) for i in range(3)]
        await asyncio.sleep(0)
        worker.stop()
        with pytest.raises(RequestError) as refused:
            await worker.submit("k", [9], 1)
        assert refused.value.status == 503
        doubler.free.set()
        return [await job for job in jobs]

    with working(doubler) as worker:
        assert asyncio.run(run(worker)) == [[0], [2], [4]]


def test_an_abandoned_queue_refuses_those_who_wait() -> None:
    doubler = Doubler()

    async def run(worker: Worker) -> list[Any]:
        jobs = [asyncio.ensure_future(worker.submit("k", [i], 1)) for i in range(3)]
        await asyncio.sleep(0)
        worker.abandon()
        return await asyncio.gather(*jobs, return_exceptions=True)

    with working(doubler) as worker:
        outcomes = asyncio.run(run(worker))
    assert [outcome.status for outcome in outcomes] == [503, 503, 503]
