"""The sides that `benchmarks.pretrain_gpu` compares, and how one side is measured."""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.ceiling import continue_or_begin_run
from benchmarks.harness import Result, provenance, read_windows, write_result
from benchmarks.peer import SpecialIds, pretraining_step
from electra.data.batch_schedule import BatchSchedule
from electra.data.dataloader import DataLoader
from electra.data.shards import Shards
from electra.model.flops import standard
from electra.pretraining.pretrain import pretrain
from electra.pretraining.recipe import Recipe, load_recipe
from electra.tasks.inference import default_device

Side = dict[str, Any]  # tokens a second and peak memory of one way to train, or that it failed


@dataclass(frozen=True)
class Setting:
    """A recipe, the rows of a step and their length."""

    size: str
    rows: int
    length: int

    def __str__(self) -> str:
        return f"{self.size} {self.rows} × {self.length}"


@dataclass
class Bench:
    """Shards by the length of their rows, the options, and the result so far."""

    shards: dict[int, Path]
    options: argparse.Namespace
    result: Result = field(default_factory=dict)
    device: torch.device = field(default_factory=default_device)
    failures: list[str] = field(default_factory=list)

    @cached_property
    def run(self) -> Result:
        """The run that all of this is measured in, with its one ceiling."""
        run = continue_or_begin_run(self.result.get("run"), self.device)
        self.result["run"] = run
        return run

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def write(self) -> None:
        """Write the result so far."""
        if self.options.output:
            write_result(self.options.output, self.result)

    def select(self, settings: Sequence[Setting], part: str) -> list[Setting]:
        """Return the settings that were asked for and have rows; print which are left out."""
        if self.options.quick:
            size = {"modern": "modern-tiny"}.get(part, "tiny")
            return [Setting(size, 4, next(iter(self.shards)))]
        selected = []
        for setting in settings:
            if self.options.sizes is not None and setting.size not in self.options.sizes:
                continue
            if setting.length in self.shards:
                selected.append(setting)
                continue
            print(
                f"{part}: {setting} is left out: no --data has rows of {setting.length} tokens; "
                f"cut them with `electra shard --length {setting.length}`",
                flush=True,
            )
        return selected

    def window_steps(self, setting: Setting) -> int:
        """Return the steps of a window."""
        return max(2, round(int(self.options.window_tokens) / (setting.rows * setting.length)))

    def flags(
        self, setting: Setting, *more: str, steps: int | None = None, every: int | None = None
    ) -> list[str]:
        """Return flags of `electra pretrain`: a step is one micro-batch, and scores and checkpoints
        come at the end alone.
        """
        every = every or self.window_steps(setting)
        steps = steps or every * self.options.windows
        precision = "bf16" if self.on_gpu else "fp32"
        if "--optimizer.name" not in more:
            more = (*more, "--optimizer.name", "adamw")  # the peer's, whatever the recipe's is
        return [
            *f"--data.length {setting.length} --batch-size {setting.rows} --micro-batch-size "
            f"{setting.rows} --max-steps {steps} --logging-steps {every} --eval-steps {steps} "
            f"--save-steps {steps} --eval-rows {min(64, setting.rows)} --precision {precision} "
            f"--encoder.positions {max(512, setting.length)}".split(),
            *more,
        ]

    def recipe(self, setting: Setting, *more: str, **lengths: int) -> Recipe:
        return load_recipe(setting.size, flags=self.flags(setting, *more, **lengths))

    @property
    def plain(self) -> list[str]:
        """Flags of the plain path."""
        return ["--training.kernels", "off", "--training.compile", "off"]

    @property
    def compiled(self) -> list[str]:
        """Flags of the plain path, compiled by torch on a GPU."""
        if self.on_gpu:
            return ["--training.kernels", "off", "--training.compile", "on"]
        return self.plain

    @property
    def fast(self) -> list[str]:
        """Flags of the fast path, which on a CPU is the plain one."""
        if self.on_gpu:
            return ["--training.kernels", "on"]
        return self.plain


def find_or_add_entry(bench: Bench, part: str, setting: Setting) -> Result:
    """Return the entry of a setting: this run's with the sides that it has, or a new one."""
    entries = bench.result.setdefault(part, {})
    entry: Result = entries.get(str(setting), {})
    window_steps = bench.window_steps(setting)
    if (entry.get("run"), entry.get("window_steps")) == (bench.run["started"], window_steps):
        return entry
    shards = Shards.open(bench.shards[setting.length])
    vocabulary = shards.tokenizer.size
    limits = {name: bench.run[name] for name in ("matmul_flops", "copy_bytes") if name in bench.run}
    entry = entries[str(setting)] = {
        "size": setting.size,
        "rows": setting.rows,
        "length": setting.length,
        "vocabulary": vocabulary,
        "fill": shards.manifest.fill,
        "window_steps": window_steps,
        "flops_per_token": standard(bench.recipe(setting).workload(vocabulary)).training,
        **limits,
        "run": bench.run["started"],
        "made": provenance(),
        "sides": {},
    }
    return entry


def add_side(
    bench: Bench, entry: Result, setting: Setting, name: str, side: Callable[[], Side]
) -> None:
    """Measure a side and write it to its entry."""
    entry["sides"][name] = measured = measure_side(side, bench.device, f"{setting}, {name}")
    if "failed" in measured:
        bench.failures.append(f"{setting}, {name}")
    bench.write()


def measure_side(side: Callable[[], Side], device: torch.device, name: str) -> Side:
    """Return the speed and the peak memory of a side, or that it failed."""
    allocated, reserved = release_memory(device)
    start = time.perf_counter()
    try:
        measured = side()
    except Exception as error:
        traceback.print_exc()
        return {"failed": type(error).__name__}
    windows = measured["windows"]
    seconds = round(time.perf_counter() - start, 1)
    measured = {
        "tokens_per_second": median(windows),
        "lowest": min(windows),
        "highest": max(windows),
        **measured,
        "seconds": seconds,
    }
    if device.type == "cuda":
        measured["peak_bytes"] = torch.cuda.max_memory_allocated() - allocated
        measured["peak_reserved_bytes"] = torch.cuda.max_memory_reserved() - reserved
    print(
        f"{name}: {measured['tokens_per_second']:,.0f} tokens/s ({min(windows):,.0f} to "
        f"{max(windows):,.0f}), {seconds:.0f} s in all",
        flush=True,
    )
    return measured


def release_memory(device: torch.device) -> tuple[int, int]:
    """Free what the side before has left; return the bytes that stay allocated and reserved."""
    torch.compiler.reset()  # compiled code keeps its CUDA graphs, and these their memory
    gc.collect()
    if device.type != "cuda":
        return 0, 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()


def ours(bench: Bench, setting: Setting, *more: str) -> Side:
    """Measure ours; the first window warms up."""
    entries = train_windows(bench, setting, *more)[1:]
    return {
        "windows": [entry["tokens_per_second"] for entry in entries],
        "data_wait": median(entry["data_wait"] for entry in entries),
    }


def train_windows(bench: Bench, setting: Setting, *more: str, **lengths: int) -> list[Result]:
    """Pre-train as a user does, and return the journal's entries of the windows."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        pretrain(
            bench.recipe(setting, *more, **lengths),
            data=bench.shards[setting.length],
            output_dir=run,
            quiet=True,
        )
        return read_windows(run)


def theirs(
    bench: Bench, setting: Setting, *, compile_mode: str | None, gather_first: bool = False
) -> Side:
    """Measure transformers' models; the first window warms up."""
    shards, recipe = Shards.open(bench.shards[setting.length]), bench.recipe(setting)
    torch.manual_seed(0)
    step = pretraining_step(
        recipe,
        SpecialIds.of(shards.tokenizer),
        device=bench.device,
        precision=recipe.training.precision,
        compile_mode=compile_mode,
        gather_first=gather_first,
    )
    loader = DataLoader(
        shards.train,
        batches=BatchSchedule(setting.rows, setting.rows),
        micro_batch_size=setting.rows,
        seed=0,
    )
    steps, windows = bench.window_steps(setting), []
    for window in range(bench.options.windows):
        batches = [loader.load_step(window * steps + n + 1, [0])[0] for n in range(steps)]
        if bench.on_gpu:
            batches = [batch.pin_memory() for batch in batches]
        synchronize(bench.device)
        start = time.perf_counter()
        for batch in batches:
            step(batch.to(bench.device))
        synchronize(bench.device)
        seconds = time.perf_counter() - start
        windows.append(sum(int(batch.lengths.sum()) for batch in batches) / seconds)
    return {"windows": windows[1:]}


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


SIDES: dict[str, Callable[[Bench, Setting], Side]] = {
    "peer_eager": partial(theirs, compile_mode=None),
    "peer_compiled": partial(theirs, compile_mode="default"),
    "peer_reduce_overhead": partial(theirs, compile_mode="reduce-overhead"),
    "peer_gather_compiled": partial(theirs, compile_mode="default", gather_first=True),
    "peer_gather_reduce_overhead": partial(
        theirs, compile_mode="reduce-overhead", gather_first=True
    ),
    "ours_plain": lambda bench, setting: ours(bench, setting, *bench.plain),
    "ours_fast": lambda bench, setting: ours(bench, setting, *bench.fast),
    "ours_muon": lambda bench, setting: ours(
        bench, setting, *bench.fast, "--optimizer.name", "muon"
    ),
}
UNCOMPILED = ("peer_eager", "ours_plain")


def sides_of(bench: Bench, setting: Setting) -> list[str]:
    """Return the sides that were asked for; by default Muon is one where it is the recipe's."""
    if bench.options.sides is not None:
        return list(bench.options.sides)
    if load_recipe(setting.size).optimizer.name == "muon":
        return list(SIDES)
    return [name for name in SIDES if name != "ours_muon"]
