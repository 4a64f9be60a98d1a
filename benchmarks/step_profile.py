"""Profile a training step: the milliseconds of its GPU kernels, by what they are for."""

from __future__ import annotations

import ast
import re
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity

from benchmarks.harness import Result
from electra import kernels
from electra.config import UserError
from electra.engine.async_checkpoint import AsyncCheckpointer
from electra.engine.distributed import process_group
from electra.engine.train_step import FusedTrainStep
from electra.pretraining.loop import train
from electra.pretraining.options import PretrainOptions
from electra.pretraining.recipe import Recipe
from electra.pretraining.run import Run
from electra.pretraining.setup import prepare_run
from electra.runs.journal import Journal

PHASES = ("warm-up", "timed", "traced")  # of as many steps each; one that captured is repeated
MAX_PHASES = 25  # repetitions included
LISTED_KERNELS = 40

# The first that matches counts: cuBLAS calls its Hopper products nvjet, and cutlass has attention
# kernels too.
KINDS = {
    "attention": r"flash|fmha|attention|sdpa",
    "matrix products": r"nvjet|gemm|gemv|cutlass|cublas|split_?k",
    # Torch's norms are those of all gradients and of the matrices that Muon orthogonalises.
    "optimizer": r"adam|multi_tensor|lp_?norm|normtwo",
    "norm": r"layer_?norm",
    "gelu": r"gelu",
    "cross-entropy": r"softmax|nll_loss|cross_entropy",
    "embeddings": r"embedding",
    "masking and other indexing": (
        r"gather|scatter|index|topk|sort|scan|distribution|random|arange|compare|where"
    ),
    "copies and fills": r"memcpy|memset|copy|catarray|fill",
    "element-wise arithmetic": r"functor(onself)?_add|mulfunctor|divfunctor|clamp",
}
# The kinds of our own kernels by module. The kind of another module is its name.
OUR_KINDS = {
    "activation": "gelu",
    "adamw": "optimizer",
    "attention_backward": "attention",
    "attention_one_pass": "attention",
    "column_sums": "column sums",
    "corruption": "masking and other indexing",
    "embedding_tables": "embeddings",
    "gather": "masking and other indexing",
    "linear": "column sums",
    "linear_cross_entropy_kernels": "cross-entropy",
    "mlm_head": "MLM head",
    "muon": "optimizer",
    "narrow_block_backward": "narrow blocks",
    "narrow_block_forward": "narrow blocks",
    "rtd_head": "RTD head",
    "weight_grads": "matrix products",
}


class Kernel(NamedTuple):
    name: str
    launches: int  # in all steps that were traced
    microseconds: float  # likewise


def profile_steps(recipe: Recipe, shards: Path, *, steps: int) -> Result:
    """Return the milliseconds of a step by kind of kernel, once all graphs are captured.

    Tracing slows a step down, so its wall time is taken from others. `recipe` has steps for
    `MAX_PHASES`; the run ends when it has been measured.
    """
    recipe = without_scores(recipe)
    with tempfile.TemporaryDirectory() as folder, process_group() as world:
        options = PretrainOptions(data=shards, quiet=True)
        run = prepare_run(recipe, options, Path(folder), world)
        clock = StepClock(steps, world.device, lambda: count_graphs(run))
        with (
            Journal(None, max_steps=recipe.training.max_steps, quiet=True) as journal,
            AsyncCheckpointer() as writer,
        ):
            train(run, journal, clock, writer)
    launched = sorted(clock.kernels(), key=lambda kernel: -kernel.microseconds)
    kinds_ms = {kind: time / steps / 1000 for kind, time in by_kind(launched).items()}
    wall = 1000 * clock.seconds / steps
    return {
        "wall_ms": wall,
        "kinds_ms": {**kinds_ms, "idle": wall - sum(kinds_ms.values())},
        "steps": steps,
        "steps_before": clock.steps_before,
        "captured_graphs": clock.graphs.captured,
        "kernels": [
            {
                "name": kernel.name[:120],
                "launches": kernel.launches / steps,
                "microseconds": kernel.microseconds / steps,
            }
            for kernel in launched[:LISTED_KERNELS]
        ],
    }


def without_scores(recipe: Recipe) -> Recipe:
    """Return the recipe with held-out rows scored after its last step alone.

    Otherwise the diagnosis of networks on the plateau scores them after a tenth of the steps or
    after warm-up, which may be a step that is timed or traced.
    """
    steps = recipe.training.max_steps
    return replace(
        recipe,
        training=replace(recipe.training, eval_steps=steps),
        optimizer=replace(recipe.optimizer, warmup_steps=steps),
    )


class GraphCount(NamedTuple):
    shapes: int  # of batches that have come
    captured: int  # of them


def count_graphs(run: Run) -> GraphCount:
    """Return how many shapes of batches a run has met; a plain step has no graphs."""
    if not isinstance(run.train_step, FusedTrainStep):
        return GraphCount(0, 0)
    graphs = run.train_step.graphed.graphs
    return GraphCount(len(graphs), sum(graph is not None for graph in graphs.values()))


class StepClock:
    """Start and stop the clocks when the loop asks after each step whether to stop.

    A phase in which a batch of a new shape came, or a graph was captured, is repeated: those steps
    run eagerly, and come once in a run. The answer is yes after the last phase.
    """

    def __init__(
        self, steps: int, device: torch.device, count_graphs: Callable[[], GraphCount]
    ) -> None:
        self.steps, self.device, self.count_graphs = steps, device, count_graphs
        self.calls = self.steps_before = self.phase = 0
        self.seconds = self.start = 0.0
        self.graphs = GraphCount(0, 0)
        self.profiler = self.new_profiler()

    def new_profiler(self) -> torch.profiler.profile:
        activity = ProfilerActivity.CPU
        if self.device.type == "cuda":
            activity = ProfilerActivity.CUDA
        return torch.profiler.profile(activities=[activity])

    def __call__(self) -> bool:
        if self.is_done:
            return True
        self.calls += 1
        if self.calls % self.steps == 0:
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            self.end_phase()
            self.begin_phase()
        return self.is_done

    @property
    def is_done(self) -> bool:
        return self.phase == len(PHASES)

    def end_phase(self) -> None:
        """Go on to the next phase unless this one met a new shape."""
        seconds = time.perf_counter() - self.start
        if PHASES[self.phase] == "traced":
            self.profiler.stop()
        earlier, self.graphs = self.graphs, self.count_graphs()
        if self.graphs != earlier:
            return
        if PHASES[self.phase] == "timed":
            self.seconds, self.steps_before = seconds, self.calls - self.steps
        self.phase += 1

    def begin_phase(self) -> None:
        if not self.is_done and PHASES[self.phase] == "traced":
            self.profiler = self.new_profiler()
            self.profiler.start()
        self.start = time.perf_counter()

    def kernels(self) -> list[Kernel]:
        """Return the kernels; on a CPU its operations, without those that they call."""
        if not self.is_done:
            raise UserError(
                f"{self.calls} steps were too few: of every {self.steps} some had batches of a new "
                "size; lower --profile-steps"
            )
        launches, times = Counter[str](), Counter[str]()
        for event in self.profiler.events():
            # Spans of kernels that are counted already.
            is_span = re.match(r"Optimizer\.|ProfilerStep", event.name)
            if is_span or event.device_type.name != self.device.type.upper():
                continue
            launches[event.name] += 1
            if self.device.type == "cuda":
                times[event.name] += event.time_range.elapsed_us()
            else:
                times[event.name] += event.self_cpu_time_total
        return [Kernel(name, launches[name], times[name]) for name in times]


def by_kind(launched: list[Kernel]) -> dict[str, float]:
    """Return the microseconds of each kind, the costliest first, "other" last."""
    ours = our_kernels()
    times: dict[str, float] = defaultdict(float)
    for kernel in launched:
        times[ours.get(kernel.name) or kind_of(kernel.name)] += kernel.microseconds
    return dict(sorted(times.items(), key=lambda item: (item[0] == "other", -item[1])))


def kind_of(name: str) -> str:
    return next(
        (kind for kind, pattern in KINDS.items() if re.search(pattern, name, re.IGNORECASE)),
        "other",
    )


def our_kernels() -> dict[str, str]:
    """Return the kind of each of our own kernels, which Triton names after their functions."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for path in sorted(Path(kernels.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
            if isinstance(node, ast.FunctionDef) and is_kernel(node):
                kinds[node.name].append(OUR_KINDS.get(path.stem, path.stem))
    return {name: " or ".join(modules) for name, modules in kinds.items()}


def is_kernel(function: ast.FunctionDef) -> bool:
    return any("jit" in ast.unparse(decorator) for decorator in function.decorator_list)
