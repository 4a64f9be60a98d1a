"""Measure what many processes cost before there are many: torchrun, DDP, FSDP2 and checkpoints.

    python -m benchmarks.processes --data SHARDS [--output benchmarks/results/processes.json]
                                   [--only ways stall] [--sizes small base] [--rows 128]
                                   [--windows 8] [--window-steps 10] [--save-steps 100]
                                   [--processes 2 --parallel fsdp]

All ways take the same steps in one process, in bf16 on a GPU and in float32 elsewhere, and are read
from their metrics.jsonl: medians of windows, the first not counted. DDP runs with the kernels and
with plain modules, FSDP2 with plain modules alone. A checkpoint costs the time for which a save
blocks the host, and by how much the window of steps after it lasts longer than one without; this
can be measured with several processes, too. The result is written after every measurement.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import (
    ELECTRA,
    Result,
    build_parser,
    check_counts,
    provenance,
    read_earlier,
    read_windows,
    run_main,
    write_result,
)
from electra.data.shards import Shards
from electra.pretraining import loop, pretrain
from electra.pretraining.recipe import load_recipe
from electra.runs import checkpoint

WAYS = {
    "alone": [],
    "ddp": ["--parallel", "ddp"],
    "ddp_plain": ["--parallel", "ddp", "--training.kernels", "off", "--training.compile", "off"],
    "fsdp_plain": ["--parallel", "fsdp", "--training.compile", "off"],
}
SAVES = 6  # the first is not counted
TIMES = "times.json"  # what rank 0 of several processes has measured


@dataclass(frozen=True)
class SaveTimes:
    """Seconds of each window, of the host in each save, and of each write."""

    windows: list[float]
    hosts: list[float]
    writes: list[float]


def common_flags(options: argparse.Namespace, steps: int, every: int) -> list[str]:
    """Return the flags that all runs share."""
    length = Shards.open(options.data).length
    precision = "bf16" if torch.cuda.is_available() else "fp32"
    return (
        f"--data.length {length} --encoder.positions {max(512, length)} --batch-size "
        f"{options.rows} --micro-batch-size {options.rows // options.processes} --max-steps "
        f"{steps} --logging-steps {every} --eval-steps {steps} --eval-rows 64 --precision "
        f"{precision}"
    ).split()


# ---- ways to run one process ---------------------------------------------------------------------


def measure_ways(size: str, options: argparse.Namespace) -> Iterator[Result]:
    """Yield the speed of all ways so far, after each."""
    entry: Result = {}
    for way in WAYS:
        entry[way] = measure_way(size, way, options)
        print(f"{size}, {way}: {entry[way]['tokens_per_second']:,.0f} tokens/s", flush=True)
        yield entry


def measure_way(size: str, way: str, options: argparse.Namespace) -> Result:
    """Return the tokens a second of one process."""
    steps = options.windows * options.window_steps
    command = list(ELECTRA)
    if way != "alone":
        command = torchrun(1, "electra")
    with tempfile.TemporaryDirectory() as folder:
        command += ["pretrain", size, "--data", options.data, "--output-dir", folder, "--quiet"]
        command += ["--save-steps", str(steps), *WAYS[way]]
        command += common_flags(options, steps, options.window_steps)
        subprocess.run(command, check=True, stderr=subprocess.PIPE, text=True)
        windows = [entry["tokens_per_second"] for entry in read_windows(Path(folder))]
    return {"tokens_per_second": statistics.median(windows[1:]), "windows": windows}


def torchrun(processes: int, module: str) -> list[str]:
    """Return the command that starts a module in several processes."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*launcher, "--nproc-per-node", str(processes), "-m", module]


# ---- checkpoints ---------------------------------------------------------------------------------


def measure_stall(size: str, options: argparse.Namespace) -> Iterator[Result]:
    """Yield what a checkpoint costs the steps, and how long its write and a step take, in seconds.

    A save comes after every second window. Its cost (`stall`) is the host's time in it (`host`) and
    by how much the windows that follow one last longer than the others (`excess`): there the update
    waits until a GPU has made its copy, and the write shares the machine.
    """
    steps = (options.save_steps or 2 * options.window_steps) // 2
    with tempfile.TemporaryDirectory() as folder:
        measure = time_saves_of_processes if options.processes > 1 else time_saves
        times = measure(size, options, steps, Path(folder))
    entry = {
        **compute_cost(times.windows, times.hosts, steps=steps),
        "write": statistics.median(times.writes),
    }
    text = {name: f"{1000 * seconds:.1f} ms" for name, seconds in entry.items()}
    print(
        f"{size}: a step takes {text['step']}; a checkpoint costs {text['stall']}: {text['host']} "
        f"in the save (the first time {1000 * times.hosts[0]:.1f}) and {text['excess']} in the "
        f"steps after it; its write takes {text['write']}",
        flush=True,
    )
    if entry["write"] > steps * entry["step"]:
        print(
            f"{size}: a write outlasts the {steps} steps of a window, so part of its cost is not "
            "measured; ask for more --save-steps",
            flush=True,
        )
    yield {**entry, **asdict(times)}


def time_saves(
    size: str, options: argparse.Namespace, window_steps: int, folder: Path
) -> SaveTimes:
    """Time the windows and the saves of a run in this process."""
    hosts: list[float] = []
    writes: list[float] = []
    flags = [
        *common_flags(options, 2 * SAVES * window_steps, window_steps),
        *("--save-steps", str(2 * window_steps), "--parallel", options.parallel),
    ]
    save, write = loop.save, checkpoint.write
    loop.save, checkpoint.write = timed(save, hosts), timed(write, writes)
    try:
        pretrain.pretrain(
            load_recipe(size, flags=flags), data=options.data, output_dir=folder / "run", quiet=True
        )
    finally:
        loop.save, checkpoint.write = save, write
    entries = read_windows(folder / "run")
    seen = [0, *(entry["tokens_seen"] for entry in entries)]
    windows = [
        (after - before) / entry["tokens_per_second"]
        for (before, after), entry in zip(pairwise(seen), entries, strict=True)
    ]
    return SaveTimes(windows, hosts, writes)


def timed(function: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    """Return the function, with the seconds of each call added to a list."""

    def call(*arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            seconds.append(time.perf_counter() - start)

    return call


def time_saves_of_processes(
    size: str, options: argparse.Namespace, window_steps: int, folder: Path
) -> SaveTimes:
    """Time the windows and the saves of rank 0 of several processes."""
    command = [
        *torchrun(options.processes, "benchmarks.processes"),
        *("--data", options.data, "--sizes", size, "--rows", str(options.rows)),
        *("--save-steps", str(2 * window_steps), "--processes", str(options.processes)),
        *("--parallel", options.parallel, "--part-of", str(folder)),
    ]
    subprocess.run(command, check=True, stderr=subprocess.PIPE, text=True)
    return SaveTimes(**json.loads((folder / TIMES).read_text(encoding="utf8")))


def run_as_rank(options: argparse.Namespace) -> None:
    """Be one process of `time_saves_of_processes`."""
    folder = Path(options.part_of)
    times = time_saves(options.sizes[0], options, options.save_steps // 2, folder)
    if os.environ["RANK"] == "0":
        (folder / TIMES).write_text(json.dumps(asdict(times)), encoding="utf8")


def compute_cost(
    windows: Sequence[float], hosts: Sequence[float], *, steps: int
) -> dict[str, float]:
    """Return the cost of a save after every second window of so many steps.

    The first window and the first save warm up. A save makes no window shorter, so a negative
    excess shows how far windows vary.
    """
    free = statistics.median(windows[1::2])
    following = statistics.median(windows[2::2])
    host = statistics.median(hosts[1:])
    excess = following - free
    return {"step": free / steps, "stall": host + max(0.0, excess), "host": host, "excess": excess}


PARTS = {"ways": measure_ways, "stall": measure_stall}


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_options(arguments)
    if options.part_of:
        run_as_rank(options)
        return
    made = provenance()
    machine = made["hardware"]
    if options.processes > 1:
        machine += f", {options.processes} processes by {options.parallel.upper()}"
    length = Shards.open(options.data).length
    result = read_earlier(options.output)
    for size in options.sizes:
        entry = result.setdefault(f"{size} {options.rows} × {length}, {machine}", {})
        for part in options.only:
            for measured in PARTS[part](size, options):
                entry[part] = {"made": made, **measured}
                if options.output:
                    write_result(options.output, result)


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = build_parser(__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--sizes", nargs="+", default=["small"])
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--window-steps", type=int, default=10)
    parser.add_argument(
        "--save-steps",
        type=int,
        help="between two checkpoints, an even number: half of them should last longer than a "
        "write (default: twice --window-steps)",
    )
    parser.add_argument(
        "--processes", type=int, default=1, help="of a run whose checkpoints are timed"
    )
    parser.add_argument("--parallel", choices=["ddp", "zero1", "fsdp"], default="ddp")
    # The folder of a measurement with several processes, of which this is one.
    parser.add_argument("--part-of", help=argparse.SUPPRESS)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--output", help="the JSON file to write; it keeps other entries it holds")
    options = parser.parse_args(arguments)
    check_options(parser, options)
    return options


def check_options(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse counts that cannot be measured."""
    if options.windows < 2:
        parser.error(
            f"--windows {options.windows}: the first is not counted, so at least 2 are needed"
        )
    check_counts(parser, options, "rows", "window_steps", "processes")
    if options.rows % options.processes:
        parser.error(f"--rows {options.rows}: {options.processes} processes need equal shares")
    if options.processes > 1 and "ways" in options.only and not options.part_of:
        parser.error("--processes is for --only stall; ways are of one process")
    if options.save_steps is not None and (options.save_steps < 2 or options.save_steps % 2):
        parser.error(
            f"--save-steps {options.save_steps}: two equal windows lie between two checkpoints, "
            "so an even number is needed"
        )


if __name__ == "__main__":
    run_main(main)
