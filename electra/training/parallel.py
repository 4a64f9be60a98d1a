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
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from electra.config import RunFailed, UserError
from electra.kernels import usable
from electra.model.memory import training_bytes
from electra.training.peers import Pulse, agree, code, meeting
from electra.training.recipe import TIMEOUT_MINUTES, Parallel, Precision, Recipe, Switch
from electra.training.sharded import is_sharded

FAILED = "failed"  # where in the store a process says that it is going


@dataclass(frozen=True)
class World:
    """Where this process stands among its peers."""

    rank: int
    size: int
    device: torch.device
    pulse: Pulse | None = None

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def share(self, micro_batches: int) -> range:
        """The micro-batches of a step that are this process's: a contiguous run, as even as whole ones can be."""
        if micro_batches < self.size:
            raise UserError(f"a step has {micro_batches} micro-batches, too few for {self.size} processes; choose a "
                            f"smaller training.micro_batch_size")
        return range(micro_batches * self.rank // self.size, micro_batches * (self.rank + 1) // self.size)

    def rounds(self, passes: int) -> int:
        """How many of them the busiest process takes."""
        return -(-passes // self.size)

    def sum(self, tensors: Iterable[Tensor]) -> None:
        """Add up over all processes, in place."""
        if self.size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def any(self, flag: bool) -> bool:
        """True everywhere as soon as it is true anywhere."""
        if self.size == 1:
            return flag
        votes = torch.tensor([float(flag)], device=self.device)
        dist.all_reduce(votes)
        return bool(votes.item() > 0)

    def least(self, value: int) -> int:
        """The smallest value that any process has."""
        if self.size == 1:
            return value
        votes = torch.tensor([value], device=self.device)
        dist.all_reduce(votes, op=dist.ReduceOp.MIN)
        return int(votes.item())

    def from_leader(self, value: Any) -> Any:
        """What the leading process has, everywhere."""
        box = [value]
        if self.size > 1:
            dist.broadcast_object_list(box)
        return box[0]

    def everyones(self, value: Any) -> list[Any]:
        """What each process has, by rank."""
        found: list[Any] = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(found, value)
        return found

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()

    @contextlib.contextmanager
    def unhurried(self, what: str, *, leader_alone: bool = False) -> Iterator[None]:
        """What may take hours, longer than any collective waits: after the block all wait until all are through, or the
        leading process is, which does such things for all."""
        if self.pulse is None:
            yield
            return
        self.pulse.moved = math.inf  # so long as this takes, nobody is late
        yield
        self.pulse.store.set(f"{what}/{self.rank}", "")
        awaited = [f"{what}/{rank}" for rank in ([0] if leader_alone else range(self.size))]
        while not self.pulse.store.check(awaited):
            if self.pulse.store.check([FAILED]):
                raise RunFailed(f"{self.pulse.store.get(FAILED).decode()} failed, and says why")
            time.sleep(0.1)
        self.pulse.moved = time.monotonic()

    def at(self, step: int, phase: int, doing: str) -> None:
        """Where this process is, for the others to know should it stay there."""
        if self.pulse is not None:
            self.pulse.at(step, phase, doing)

    def explained(self, error: Exception) -> str | None:
        """What a collective's failure means, and who caused it; None where it is another kind of failure."""
        return self.pulse.explained(error) if self.pulse is not None else None


@contextlib.contextmanager
def connected(*, minutes: float = TIMEOUT_MINUTES) -> Iterator[World]:
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
    store = meeting(store, rank, size)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", store=store, rank=rank, world_size=size,
                            timeout=timedelta(minutes=minutes))
    pulse = Pulse(PrefixStore("electra", store), rank, size, timeout_seconds=60 * minutes)
    world = World(rank=rank, size=size, device=device, pulse=pulse)
    try:
        agree(code())
        yield world
    except Exception as error:
        with contextlib.suppress(RuntimeError):  # others may be where they wait without a limit
            pulse.store.set(FAILED, f"rank {rank}")
        torchs = isinstance(error, RuntimeError) and not isinstance(error, RunFailed)
        if (said := world.explained(error) if torchs else None) is None:
            raise
        raise RunFailed(said) from error
    finally:
        pulse.stop()
        dist.destroy_process_group()


def resolve_precision(wanted: Precision, device: torch.device) -> Precision:
    if device.type == "cpu" and wanted == "fp16":
        raise UserError("--precision fp16 needs a GPU; use bf16 or fp32 on a CPU")
    if wanted != "auto":
        return wanted
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"


# Dense bf16 operations a second, as the vendor states them; the name of a card contains one of these.
PEAKS = {"H200": 989e12, "H100 PCIe": 756e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12,
         "A10G": 70e12, "A10": 125e12, "RTX 4090": 165e12, "RTX 3090": 71e12}


def peak_flops(world: World) -> float | None:
    """What all processes' cards could do together; None where that is not known."""
    if world.device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(world.device)
    return next((world.size * peak for card, peak in PEAKS.items() if card in name), None)


class Switches(Protocol):
    """What a recipe says of its speed, for pre-training or fine-tuning."""

    @property
    def kernels(self) -> Switch: ...
    @property
    def cuda_graph(self) -> Switch: ...
    @property
    def compile(self) -> Switch: ...


class Speed(NamedTuple):
    """How a step is taken: all off is plain torch."""

    kernels: bool
    cuda_graph: bool
    compiled: bool


def resolve_speed(asked: Switches, precision: Precision, device: torch.device, *, head_width: int,
                  causal: bool = False, parallel: Parallel = "ddp", recomputed: bool = False,
                  flag: str = "--training.", compile_on_gpu: bool = True) -> Speed:
    """What "auto" means here; what cannot be is refused. `head_width` is the widest of all networks, `causal` whether
    any looks at earlier tokens alone, `recomputed` whether backward computes blocks again."""
    obstacles = [reason for reason, there in (
        ("the kernels know no causal attention, and this encoder is causal (its tokens see none after them)", causal),
        ("the kernels need whole weights, and --parallel fsdp leaves a process its part of them", parallel == "fsdp"),
        ("the kernels keep what backward needs, and --activation-checkpointing true computes it again", recomputed),
    ) if there]
    able = precision == "bf16" and not obstacles and usable(device, head_width=head_width)
    if asked.kernels == "on" and obstacles:
        raise UserError(f"{flag}kernels on: {obstacles[0]}; leave {flag}kernels at auto, or pass off")
    if asked.kernels == "on" and not able:
        raise UserError(f"{flag}kernels on needs Triton, an NVIDIA GPU of the Ampere generation or later, bf16 and "
                        f"heads no wider than 128 (64 on cards with little shared memory); pass {flag}kernels off to "
                        "go without them, also in a run that was begun with them")
    if asked.kernels == "on" and asked.compile == "on":
        raise UserError(f"{flag}kernels on and {flag}compile on do the same work; choose one of them")
    kernels = asked.kernels == "on" or (asked.kernels == "auto" and able and asked.compile != "on")
    if asked.cuda_graph == "on" and not kernels:
        raise UserError(f"{flag}cuda-graph on needs the kernels, which are off here")
    by_default = compile_on_gpu and device.type == "cuda" and not kernels
    return Speed(kernels, kernels and asked.cuda_graph != "off",
                 asked.compile == "on" or (asked.compile == "auto" and by_default))


def be_deterministic() -> None:
    """The same bits from the same state, at some cost in speed. Only compiled code on a GPU needs it: it adds gradients
    of shared rows in whatever order they arrive, and chooses kernels by timing them anew in each process."""
    import torch._inductor.config as inductor

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    inductor.deterministic = True  # type: ignore[attr-defined, unused-ignore]


def free_bytes(device: torch.device) -> int:
    """Memory for this process: what a GPU has left, or half of this machine's."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def fitting_micro_batch(recipe: Recipe, vocabulary: int, world: World) -> int:
    """The largest micro-batch that divides the batch, gives every process one, and should fit in memory."""
    free = free_bytes(world.device)
    work, batch_size = recipe.workload(vocabulary), recipe.training.batch_size
    low_precision = resolve_precision(recipe.training.precision, world.device) != "fp32"
    for size in range(batch_size // world.size, 0, -1):
        needed = sum(training_bytes(work, rows=size, activation_bytes=2 if low_precision else 4,
                                    recomputed=recipe.training.activation_checkpointing,
                                    spread_over=recipe.training.spread_over(world.size)).values())
        if batch_size % size == 0 and needed < 0.8 * free:
            return size
    if batch_size < world.size:
        raise UserError(f"training.batch_size={batch_size} is smaller than the number of processes, {world.size}")
    raise UserError(f"not even one row fits in {free / 1e9:.1f} GB of memory; choose a smaller encoder or data.length")


def autocast(precision: str, device: torch.device) -> torch.autocast:
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    return torch.autocast(device.type, dtype=dtype, enabled=precision != "fp32")


def wrap(objective: nn.Module, world: World, *, compiled: bool) -> nn.Module:
    """What is called in a step: the objective, compiled when asked, its gradients summed over processes."""
    called: Any = torch.compile(objective, dynamic=False) if compiled else objective
    if world.size == 1 or is_sharded(objective):
        return called  # type: ignore[no-any-return]
    with warnings.catch_warnings():
        # Older versions do not know the argument that takes its place.
        warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated")
        # DDP re-orders its buckets after the first step unless it looks for unused parameters; with three processes
        # or more that changes the order of summation, and a resumed run would not repeat the unbroken one bit for bit.
        return DistributedDataParallel(called, broadcast_buffers=False, find_unused_parameters=True,
                                       gradient_as_bucket_view=True)


@contextlib.contextmanager
def accumulating(wrapped: nn.Module, *, last: bool) -> Iterator[None]:
    """Gradients cross the network once a step, with its last micro-batch."""
    quiet = isinstance(wrapped, DistributedDataParallel) and not last
    with wrapped.no_sync() if quiet else contextlib.nullcontext():  # type: ignore[operator]
        yield
