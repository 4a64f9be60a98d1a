"""Iteration with a thread that computes the next item meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Final, TypeVar

T = TypeVar("T")
END: Final = object()


def prefetch(items: Iterable[T], *, device_type: str = "cuda") -> Iterator[T]:
    """Yield the items in order, while a thread computes the one after.

    An error comes in the place of its item, after those before it. The iterable runs in the thread
    alone. On a CPU there is no thread: it made inference slower in both trials (docs/log.md).
    """
    if device_type == "cpu":
        yield from items
        return
    iterator = iter(items)
    run: Callable[..., Any] = copy_context().run  # for warnings in the words of the caller
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch") as reader:
        pending = reader.submit(run, next, iterator, END)
        while (item := pending.result()) is not END:
            pending = reader.submit(run, next, iterator, END)
            yield item
