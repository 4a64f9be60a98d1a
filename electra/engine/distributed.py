"""One process or many: torchrun's process group, the device, precision, compilation."""

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
from electra.engine.fsdp import is_sharded
from electra.engine.heartbeat import Heartbeat
from electra.engine.rendezvous import assert_same_on_all_ranks, code, fresh_rendezvous
from electra.engine.settings import TIMEOUT_MINUTES

FAILED = "failed"  # where in the store a process says that it is going


@dataclass(frozen=True)
class World:
    """Where this process stands among its peers."""

    rank: int
    size: int
    device: torch.device
    heartbeat: Heartbeat | None = None

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def my_micro_batches(self, micro_batches: int) -> range:
        """The micro-batches of a step that are this process's: a contiguous run, as even as whole
        ones can be.
        """
        if micro_batches < self.size:
            raise UserError(
                f"a step has {micro_batches} micro-batches, too few for {self.size} processes; "
                "choose a "
                f"smaller training.micro_batch_size"
            )
        return range(
            micro_batches * self.rank // self.size, micro_batches * (self.rank + 1) // self.size
        )

    def max_micro_batches_per_rank(self, micro_batches: int) -> int:
        """How many of them the busiest process takes."""
        return -(-micro_batches // self.size)

    def all_reduce_sum(self, tensors: Iterable[Tensor]) -> None:
        """Add up over all processes, in place."""
        if self.size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def any_rank(self, flag: bool) -> bool:
        """True everywhere as soon as it is true anywhere."""
        if self.size == 1:
            return flag
        votes = torch.tensor([float(flag)], device=self.device)
        dist.all_reduce(votes)
        return bool(votes.item() > 0)

    def all_min(self, value: int) -> int:
        """The smallest value that any process has."""
        if self.size == 1:
            return value
        votes = torch.tensor([value], device=self.device)
        dist.all_reduce(votes, op=dist.ReduceOp.MIN)
        return int(votes.item())

    def broadcast(self, value: Any) -> Any:
        """What the leading process has, everywhere."""
        box = [value]
        if self.size > 1:
            dist.broadcast_object_list(box)
        return box[0]

    def all_gather(self, value: Any) -> list[Any]:
        """What each process has, by rank."""
        found: list[Any] = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(found, value)
        return found

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()

    @contextlib.contextmanager
    def without_timeout(self, what: str, *, leader_alone: bool = False) -> Iterator[None]:
        """What may take hours, longer than any collective waits: after the block all wait until all
        are through, or the leading process is, which does such things for all.
        """
        if self.heartbeat is None:
            yield
            return
        self.heartbeat.moved = math.inf  # so long as this takes, nobody is late
        yield
        self.heartbeat.store.set(f"{what}/{self.rank}", "")
        awaited = [f"{what}/{rank}" for rank in ([0] if leader_alone else range(self.size))]
        while not self.heartbeat.store.check(awaited):
            if self.heartbeat.store.check([FAILED]):
                raise RunFailed(f"{self.heartbeat.store.get(FAILED).decode()} failed, and says why")
            time.sleep(0.1)
        self.heartbeat.moved = time.monotonic()

    def at(self, step: int, phase: int, doing: str) -> None:
        """Where this process is, for the others to know should it stay there."""
        if self.heartbeat is not None:
            self.heartbeat.at(step, phase, doing)

    def hang_report_for(self, error: Exception) -> str | None:
        """What a collective's failure means, and who caused it; None where it is another kind of
        failure.
        """
        return self.heartbeat.hang_report_for(error) if self.heartbeat is not None else None


@contextlib.contextmanager
def process_group(*, minutes: float = TIMEOUT_MINUTES) -> Iterator[World]:
    """Join the processes that torchrun started, or stand alone."""
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    size = int(os.environ.get("WORLD_SIZE", 1))
    if size == 1 and not dist.is_torchelastic_launched():
        yield World(rank=0, size=1, device=device)
        return
    store, rank, size = next(rendezvous("env://"))
    store = fresh_rendezvous(store, rank, size)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=size,
        timeout=timedelta(minutes=minutes),
    )
    heartbeat = Heartbeat(PrefixStore("electra", store), rank, size, timeout_seconds=60 * minutes)
    world = World(rank=rank, size=size, device=device, heartbeat=heartbeat)
    try:
        assert_same_on_all_ranks(code())
        yield world
    except Exception as error:
        with contextlib.suppress(RuntimeError):  # others may be where they wait without a limit
            heartbeat.store.set(FAILED, f"rank {rank}")
        torchs = isinstance(error, RuntimeError) and not isinstance(error, RunFailed)
        if (said := world.hang_report_for(error) if torchs else None) is None:
            raise
        raise RunFailed(said) from error
    finally:
        heartbeat.stop()
        dist.destroy_process_group()


def wrap_module(module: nn.Module, world: World, *, compiled: bool) -> nn.Module:
    """Return the module to call in a step: compiled if asked, and in DDP unless it is sharded."""
    called: Any = module
    if compiled:
        called = torch.compile(module, dynamic=False)
    if world.size == 1 or is_sharded(module):
        return called  # type: ignore[no-any-return]
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


@contextlib.contextmanager
def gradient_accumulation(wrapped: nn.Module, *, is_last: bool) -> Iterator[None]:
    """Let DDP reduce gradients only with the last micro-batch of a step (`no_sync` before it)."""
    if is_last or not isinstance(wrapped, DistributedDataParallel):
        yield
        return
    with wrapped.no_sync():
        yield
