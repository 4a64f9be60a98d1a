"""What a machine can do at most, measured once for each run of a benchmark.

A run may consist of several commands. It continues while the machine, its GPU, torch and the commit
stay the same and its beginning is not long ago.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median

import torch

from benchmarks.harness import Result, provenance

MAX_RUN_SECONDS = 2 * 3600  # a GPU's clock and its neighbours do not stay the same for long


def continue_or_begin_run(earlier: Result | None, device: torch.device) -> Result:
    """Return the run that a result file was last written in, or a new one with its ceiling."""
    made = {**provenance(), "device": device_digest(device)}
    if (
        earlier is not None
        and earlier["made"] == made
        and 0 <= time.time() - earlier["started"] < MAX_RUN_SECONDS
    ):
        return earlier
    return {"started": time.time(), "made": made, **measure_ceiling(device)}


def device_digest(device: torch.device) -> str:
    """Return what tells one GPU from another of its kind, without its serial number."""
    if device.type != "cuda":
        return device.type
    uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
    return hashlib.sha256(uuid.encode()).hexdigest()[:12]


def measure_ceiling(device: torch.device, *, size: int = 8192) -> dict[str, float]:
    """Return the operations a second of a bf16 matrix product and the bytes a second of a copy.

    On random values: zeros draw less power, and the clock runs faster than in any training.
    """
    if device.type != "cuda":
        return {}
    first, second = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    product = torch.empty_like(first)
    source = torch.randn(2**28, device=device)
    target = torch.empty_like(source)
    return {
        "matmul_flops": 2 * size**3 / time_on_device(lambda: torch.mm(first, second, out=product)),
        "copy_bytes": 2 * source.nbytes / time_on_device(lambda: target.copy_(source)),
    }


def time_on_device(work: Callable[[], object], *, repeats: int = 30) -> float:
    """Return the median seconds on the device.

    As many repetitions before them bring the clock to the rate that work keeps it at.
    """
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2 * repeats + 1)]
    for event in events[:-1]:
        event.record()
        work()
    events[-1].record()
    torch.cuda.synchronize()
    times = [before.elapsed_time(after) for before, after in pairwise(events)]
    return float(median(times[repeats:])) / 1000
