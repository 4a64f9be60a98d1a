"""Iteration with a thread that computes the next item meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")
END: Final = object()


def prefetch(items: Iterable[T]) -> Iterator[T]:
    """Yield the items in order, while a thread computes the one after.

    An error comes in the place of its item, after those before it. The iterable runs in the thread
    alone.
    """
    iterator = iter(items)
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch") as reader:
        pending = reader.submit(next, iterator, END)
        while (item := pending.result()) is not END:
            pending = reader.submit(next, iterator, END)
            yield item  # type: ignore[misc]
