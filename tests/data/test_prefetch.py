"""Iteration one item ahead."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from electra.config import UserError
from electra.data.prefetch import prefetch


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_items_come_in_order_and_none_is_lost(device_type: str) -> None:
    assert list(prefetch(range(5), device_type=device_type)) == [0, 1, 2, 3, 4]
    assert list(prefetch([], device_type=device_type)) == []
    assert list(prefetch([None, None], device_type=device_type)) == [None, None]


def test_a_cpu_computes_items_in_the_thread_that_uses_them() -> None:
    def threads() -> Iterator[int]:
        yield threading.get_ident()

    assert list(prefetch(threads(), device_type="cpu")) == [threading.get_ident()]
    assert list(prefetch(threads(), device_type="cuda")) != [threading.get_ident()]


def test_the_next_item_is_computed_while_the_last_one_is_used() -> None:
    computed = [threading.Event() for _ in range(3)]

    def items() -> Iterator[int]:
        for number, event in enumerate(computed):
            event.set()
            yield number

    iterator = prefetch(items())
    assert next(iterator) == 0
    assert computed[1].wait(10)
    assert not computed[2].is_set()
    assert list(iterator) == [1, 2]


def test_an_error_comes_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 0
        raise UserError("line 2: no number")

    iterator = prefetch(items())
    assert next(iterator) == 0
    with pytest.raises(UserError, match="line 2"):
        next(iterator)
