"""Random numbers in a program that trains: one training at a time draws them."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from electra.console import to_stderr

training_lock = threading.RLock()


def renew_lock() -> None:
    """Give a forked process a lock of its own: the thread that holds this one is not there."""
    global training_lock
    training_lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=renew_lock)


@contextmanager
def own_random_numbers(*, quiet: bool) -> Iterator[None]:
    """Wait for another training of this process; in the end restore the random numbers of the
    caller.

    torch has one generator for all threads. Of two trainings that draw from it, none could be
    repeated.
    """
    lock = training_lock
    if not lock.acquire(blocking=False):
        if not quiet:
            to_stderr(
                "another thread of this process is training; waiting for it (trainings run side by "
                "side in processes of their own)"
            )
        lock.acquire()
    try:
        with restored_random_numbers():
            yield
    finally:
        lock.release()


@contextmanager
def restored_random_numbers() -> Iterator[None]:
    """Leave the global generators of torch, NumPy and Python as they were.

    sentence-transformers seeds the last two.
    """
    has_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = range(torch.cuda.device_count() * has_cuda)
    state, numpy_state = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)
