"""Where the milliseconds of a training step go: every kernel that the GPU ran, by what it is for."""

from __future__ import annotations

import ast
import re
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity

from electra import kernels
from electra.engine.async_checkpoint import AsyncCheckpointer
from electra.engine.distributed import process_group
from electra.pretraining.loop import train
from electra.pretraining.options import PretrainOptions
from electra.pretraining.recipe import Recipe
from electra.pretraining.setup import prepare_run
from electra.runs.journal import Journal

TIMES = 4  # as many steps as are profiled: two parts warm up, one is timed, one is traced
SHOWN_KERNELS = 40

# The first that matches counts: cuBLAS calls its Hopper products nvjet, and cutlass has attention
# kernels too.
KINDS = {
    "attention": r"flash|fmha|attention|sdpa",
    "matrix products": r"nvjet|gemm|gemv|cutlass|cublas|split_?k",
    "optimiser": r"adam|multi_tensor|lp_?norm",
    "norm": r"layer_?norm",
    "gelu": r"gelu",
    "vocabulary": r"softmax|nll_loss|cross_entropy",
    "embeddings": r"embedding",
    "masking and other "
    "indexing": r"gather|scatter|index|topk|sort|scan|distribution|random|arange|compare|where",
    "copies and fills": r"memcpy|memset|copy|catarray|fill",
}
OUR_KINDS = {
    "activation": "gelu",
    "linear_cross_entropy_kernels": "vocabulary",
    "adamw": "optimiser",
}  # other modules are called as they are


class Kernel(NamedTuple):
    name: str
    launches: int  # in all steps that were traced
    microseconds: float  # likewise


def profiled(recipe: Recipe, shards: Path, *, steps: int) -> dict[str, Any]:
    """Milliseconds of a step by kind of kernel. Tracing slows a step down, so its wall time is
    taken from others.
    """
    with tempfile.TemporaryDirectory() as place, process_group() as world:
        options = PretrainOptions(data=shards, quiet=True)
        run = prepare_run(recipe, options, Path(place), world)
        watch = Watch(steps, world.device)
        with (
            Journal(None, max_steps=recipe.training.max_steps, quiet=True) as journal,
            AsyncCheckpointer() as writer,
        ):
            train(run, journal, watch, writer)
    found = sorted(watch.kernels(), key=lambda kernel: -kernel.microseconds)
    spent = {kind: each / steps / 1000 for kind, each in by_kind(found).items()}
    wall = 1000 * watch.seconds / steps
    return {
        "wall_ms": wall,
        "kinds_ms": {**spent, "idle": wall - sum(spent.values())},
        "kernels": [
            {
                "name": kernel.name[:120],
                "launches": kernel.launches / steps,
                "microseconds": kernel.microseconds / steps,
            }
            for kernel in found[:SHOWN_KERNELS]
        ],
    }


class Watch:
    """Called after every step, as the question whether to stop: never says so, but starts and stops
    its clocks.
    """

    def __init__(self, steps: int, device: torch.device) -> None:
        self.steps, self.device, self.called, self.seconds = steps, device, 0, 0.0
        on_gpu = device.type == "cuda"
        self.profiler = torch.profiler.profile(
            activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]
        )

    def __call__(self) -> bool:
        self.called += 1
        part, within = divmod(self.called, self.steps)
        if within == 0 and part >= TIMES - 2:
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            if part == TIMES - 2:
                self.seconds = -time.perf_counter()
            elif part == TIMES - 1:
                self.seconds += time.perf_counter()
                self.profiler.start()
            elif part == TIMES:
                self.profiler.stop()
        return False

    def kernels(self) -> list[Kernel]:
        """On a CPU, which has no kernels, its operations without those that they call."""
        assert self.called == TIMES * self.steps, self.called
        launches, spent = Counter[str](), Counter[str]()
        for event in self.profiler.events():
            marks_others = re.match(
                r"Optimizer\.|ProfilerStep", event.name
            )  # spans kernels that are counted already
            if event.device_type.name == self.device.type.upper() and not marks_others:
                launches[event.name] += 1
                spent[event.name] += (
                    event.time_range.elapsed_us()
                    if self.device.type == "cuda"
                    else event.self_cpu_time_total
                )
        return [Kernel(name, launches[name], spent[name]) for name in spent]


def by_kind(found: list[Kernel]) -> dict[str, float]:
    """Microseconds of each kind, the costliest first, what matches none at the end."""
    ours = our_kernels()
    spent: dict[str, float] = defaultdict(float)
    for kernel in found:
        spent[ours.get(kernel.name) or kind_of(kernel.name)] += kernel.microseconds
    return dict(sorted(spent.items(), key=lambda item: (item[0] == "other", -item[1])))


def kind_of(name: str) -> str:
    return next(
        (kind for kind, pattern in KINDS.items() if re.search(pattern, name, re.IGNORECASE)),
        "other",
    )


def our_kernels() -> dict[str, str]:
    """The kind of each of our own kernels: Triton calls them as their functions, so look where
    these stand.
    """
    found: dict[str, str] = {}
    for path in sorted(Path(kernels.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
            if isinstance(node, ast.FunctionDef) and any(
                "jit" in ast.unparse(each) for each in node.decorator_list
            ):
                kind = OUR_KINDS.get(path.stem, path.stem)
                found[node.name] = f"{found[node.name]} or {kind}" if node.name in found else kind
    return found
