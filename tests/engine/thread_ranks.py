"""Several ranks as threads of one process, for collectives of flat buffers."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
import torch
from torch import Tensor

T = TypeVar("T")


class ThreadRanks:
    """Collectives between threads. Sums go from the first rank to the last."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.local = threading.local()
        self.barrier = threading.Barrier(size, timeout=240)
        self.tensors: list[Tensor] = [torch.empty(0)] * size

    def run(self, work: Callable[[int], T], monkeypatch: pytest.MonkeyPatch) -> list[T]:
        """Return what `work` returns in each rank."""
        monkeypatch.setattr("electra.engine.flat_shard.all_gather", self.all_gather)
        monkeypatch.setattr("torch.distributed.all_reduce", self.all_reduce)
        monkeypatch.setattr("torch.distributed.reduce", self.reduce)
        monkeypatch.setattr("torch.distributed.broadcast", self.broadcast_tensor)
        monkeypatch.setattr("electra.engine.distributed.broadcast_json", self.broadcast)
        if importlib.util.find_spec("triton"):
            from electra.kernels import adamw, muon

            lock = threading.Lock()
            kernels = ((adamw, "adamw_step"), (muon, "momentum_step"), (muon, "weight_step"))
            for module, name in kernels:
                monkeypatch.setattr(module, name, one_by_one(getattr(module, name), lock))
        failures: list[BaseException] = []

        def begin(rank: int) -> T:
            self.local.rank = rank
            try:
                return work(rank)
            except BaseException as failure:
                failures.append(failure)
                self.barrier.abort()  # the others would wait for this one
                raise

        with ThreadPoolExecutor(self.size) as pool:
            results = [pool.submit(begin, rank) for rank in range(self.size)]
        if failures:
            raise failures[0]
        return [result.result() for result in results]

    def exchange(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks."""
        self.tensors[self.local.rank] = tensor.clone()
        self.barrier.wait()
        tensors = list(self.tensors)
        self.barrier.wait()
        return tensors

    def total(self, tensor: Tensor) -> Tensor:
        first, *others = self.exchange(tensor)
        for other in others:
            first = first + other
        return first

    def all_reduce(self, tensor: Tensor) -> None:
        tensor.copy_(self.total(tensor))

    def reduce(self, tensor: Tensor, dst: int) -> None:
        total = self.total(tensor)
        if self.local.rank != dst:
            total.fill_(float("nan"))  # what is left there is not defined
        tensor.copy_(total)

    def broadcast(self, values: list[int]) -> list[int]:
        first: list[int] = self.exchange(torch.tensor(values))[0].tolist()
        return first

    def broadcast_tensor(self, tensor: Tensor, src: int) -> None:
        tensor.copy_(self.exchange(tensor)[src])

    def all_gather(self, tensor: Tensor, part: Tensor) -> None:
        tensor.copy_(torch.cat(self.exchange(part)))


def one_by_one(kernel: Callable[..., None], lock: threading.Lock) -> Callable[..., None]:
    """Return a kernel that one thread runs at a time, as Triton's interpreter needs it."""

    def run(*arguments: object, **options: object) -> None:
        with lock:
            kernel(*arguments, **options)

    return run
