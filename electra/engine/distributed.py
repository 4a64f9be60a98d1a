"""The processes of a run: torchrun's process group, collectives, DDP, gradient accumulation."""

from __future__ import annotations

import contextlib
import math
import os
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from electra.config import RunFailed, UserError
from electra.engine.collectives import all_gather_bytes, all_gather_json, broadcast_json
from electra.engine.fsdp import is_sharded
from electra.engine.heartbeat import Heartbeat
from electra.engine.rendezvous import assert_same_on_all_ranks, fresh_rendezvous, software_versions
from electra.engine.settings import TIMEOUT_MINUTES

FAILED = "failed"  # the store's key for the name of a process that failed


@dataclass(frozen=True)
class World:
    """This process's rank and device among the processes of a run."""

    rank: int
    size: int
    device: torch.device
    heartbeat: Heartbeat | None = None

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def my_micro_batches(self, micro_batches: int) -> range:
        """Return this process's micro-batches of a step: a contiguous, even range."""
        if micro_batches < self.size:
            raise UserError(
                f"a step has {micro_batches} micro-batches, too few for {self.size} processes; "
                "choose a smaller training.micro_batch_size"
            )
        first = micro_batches * self.rank // self.size
        return range(first, micro_batches * (self.rank + 1) // self.size)

    def max_micro_batches_per_rank(self, micro_batches: int) -> int:
        """Return the number of micro-batches of the process that has most."""
        return -(-micro_batches // self.size)

    def all_reduce_sum(self, tensors: Iterable[Tensor]) -> None:
        """Add up each tensor over all processes, in place."""
        if self.size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def any_rank(self, flag: bool) -> bool:
        """Return whether the flag is true in any process."""
        if self.size == 1:
            return flag
        votes = torch.tensor([float(flag)], device=self.device)
        dist.all_reduce(votes)
        return bool(votes.item() > 0)

    def all_min(self, value: int) -> int:
        """Return the smallest value of all processes."""
        if self.size == 1:
            return value
        smallest = torch.tensor([value], device=self.device)
        dist.all_reduce(smallest, op=dist.ReduceOp.MIN)
        return int(smallest.item())

    def broadcast(self, value: Any) -> Any:
        """Return the main process's JSON value in every process."""
        if self.size == 1:
            return value
        return broadcast_json(value)

    def all_gather(self, value: Any) -> list[Any]:
        """Return the JSON values of all processes, by rank."""
        if self.size == 1:
            return [value]
        return all_gather_json(value)

    def all_gather_bytes(self, data: bytes) -> list[bytes]:
        """Return the bytes of all processes, by rank."""
        if self.size == 1:
            return [data]
        return all_gather_bytes(data)

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()

    @contextlib.contextmanager
    def without_timeout(self, name: str, *, main_only: bool = False) -> Iterator[None]:
        """Run a block that may take hours, longer than the timeout of a collective.

        Afterwards every process waits until all have left the block, or with `main_only` until the
        main process has, which then does the work for all.
        """
        if self.heartbeat is None:
            yield
            return
        store = self.heartbeat.store
        self.heartbeat.last_progress = math.inf  # during the block no process is late
        yield
        store.set(f"{name}/{self.rank}", "")
        ranks = range(self.size)
        if main_only:
            ranks = range(1)
        while not store.check([f"{name}/{rank}" for rank in ranks]):
            if store.check([FAILED]):
                raise RunFailed(f"{store.get(FAILED).decode()} failed, and says why")
            time.sleep(0.1)
        self.heartbeat.last_progress = time.monotonic()

    def report_progress(self, step: int, phase: int, activity: str) -> None:
        """Publish what this process does now, for a hang report should it stay there."""
        if self.heartbeat is not None:
            self.heartbeat.report_progress(step, phase, activity)

    def hang_report_for(self, error: Exception) -> str | None:
        """Return which process made a collective fail; None where the error is of another kind."""
        if self.heartbeat is None:
            return None
        return self.heartbeat.hang_report_for(error)


@contextlib.contextmanager
def process_group(*, minutes: float = TIMEOUT_MINUTES) -> Iterator[World]:
    """Join the process group that torchrun started, or give a world of one process."""
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    size = int(os.environ.get("WORLD_SIZE", 1))
    if size == 1 and not dist.is_torchelastic_launched():
        yield World(rank=0, size=1, device=device)
        return
    world = init_process_group(device, minutes=minutes)
    assert world.heartbeat is not None
    try:
        assert_same_on_all_ranks(software_versions())
        yield world
    except Exception as error:
        # Others may wait in `without_timeout`, which only this ends.
        with contextlib.suppress(RuntimeError):
            world.heartbeat.store.set(FAILED, f"rank {world.rank}")
        report = None
        if isinstance(error, RuntimeError) and not isinstance(error, RunFailed):
            report = world.hang_report_for(error)
        if report is None:
            raise
        raise RunFailed(report) from error
    finally:
        world.heartbeat.stop()
        dist.destroy_process_group()


def init_process_group(device: torch.device, *, minutes: float) -> World:
    """Initialise torch's process group and start this process's heartbeat."""
    store, rank, size = next(rendezvous("env://"))
    store = fresh_rendezvous(store, rank, size)
    backends = {"cuda": "nccl", "cpu": "gloo"}
    dist.init_process_group(
        backends[device.type],
        store=store,
        rank=rank,
        world_size=size,
        timeout=timedelta(minutes=minutes),
    )
    heartbeat = Heartbeat(PrefixStore("electra", store), rank, size, timeout_seconds=60 * minutes)
    return World(rank=rank, size=size, device=device, heartbeat=heartbeat)


def wrap_module(module: nn.Module, world: World, *, compiled: bool) -> nn.Module:
    """Return the module to call in a step: compiled if asked, and in DDP unless it is sharded."""
    called: Any = module
    if compiled:
        called = torch.compile(module, dynamic=False)
    if world.size == 1 or is_sharded(module):
        return called  # type: ignore[no-any-return]
    silence_ddp(world.device)
    with warnings.catch_warnings():
        # Older versions do not know the argument that takes its place.
        warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated")
        # DDP re-orders its buckets after the first step unless it looks for unused parameters; with
        # three processes or more that changes the order of summation, and a resumed run would not
        # repeat the unbroken one bit for bit.
        return DistributedDataParallel(
            called,
            broadcast_buffers=False,
            find_unused_parameters=True,
            gradient_as_bucket_view=True,
        )


def silence_ddp(device: torch.device) -> None:
    """Let DDP give its advice against `find_unused_parameters` here, where nobody reads it.

    The warning is C++'s, goes past Python's filters to stderr, and comes once in a process: in the
    first forward pass in which every parameter is used.
    """
    module = nn.LayerNorm(1, device=device)  # made without random numbers
    with open(os.devnull, "w") as nowhere, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stderr = os.dup(2)
        os.dup2(nowhere.fileno(), 2)
        try:
            wrapped = DistributedDataParallel(module, find_unused_parameters=True)
            wrapped(torch.ones(1, device=device))
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


@contextlib.contextmanager
def gradient_accumulation(wrapped: nn.Module, *, is_last: bool) -> Iterator[None]:
    """Let DDP reduce gradients only with the last micro-batch of a step (`no_sync` before it)."""
    if is_last or not isinstance(wrapped, DistributedDataParallel):
        yield
        return
    with wrapped.no_sync():
        yield
