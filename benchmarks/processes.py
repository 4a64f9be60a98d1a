"""What many processes cost before there are many: one process under torchrun, by DDP and by FSDP2;
and what a checkpoint costs the steps beside which it is written.

    python -m benchmarks.processes --data SHARDS [--output benchmarks/results/processes.json]
    [--only ways stall]
                                   [--sizes small base] [--rows 128] [--windows 8] [--window-steps
                                   10] [--save-steps 100] [--processes 2 --parallel fsdp]

All ways take the same steps, in bf16 on a GPU and in float32 elsewhere, and are read from their
metrics.jsonl: medians of windows, the first not counted. DDP takes them by the kernels and by plain
modules, FSDP2 by plain modules alone. A checkpoint costs the time for which a save holds up the
host, and by how much the window of steps after it lasts longer than one without; this can be
measured with several processes, too. Results are kept after every measurement.
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
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import build_parser, check_counts, provenance, run_main, write_result
from electra.data.shards import Shards
from electra.pretraining import loop, pretrain
from electra.pretraining.recipe import load_recipe
from electra.runs import checkpoint
from electra.runs.journal import read

WAYS = {
    "alone": [],
    "ddp": ["--parallel", "ddp"],
    "ddp_plain": ["--parallel", "ddp", "--training.kernels", "off", "--training.compile", "off"],
    "fsdp_plain": ["--parallel", "fsdp", "--training.compile", "off"],
}
SAVES = 6  # the first is not counted
TIMES = "times.json"  # what the leading one of several processes has measured


def flags(options: Any, steps: int, every: int) -> list[str]:
    length, precision = (
        Shards.open(options.data).length,
        "bf16" if torch.cuda.is_available() else "fp32",
    )
    return [
        *f"--data.length {length} --encoder.positions {max(512, length)} --batch-size "
        f"{options.rows} "
        f"--micro-batch-size {options.rows // options.processes} --max-steps {steps} "
        f"--logging-steps {every} "
        f"--eval-steps {steps} --eval-rows 64 --precision {precision}".split()
    ]


def ways(size: str, options: Any) -> Iterator[dict[str, Any]]:
    found: dict[str, Any] = {}
    for way in WAYS:
        found[way] = rate(size, way, options)
        print(f"{size}, {way}: {found[way]['tokens_per_second']:,.0f} tokens/s", flush=True)
        yield found


def rate(size: str, way: str, options: Any) -> dict[str, Any]:
    """Tokens a second of one process."""
    steps = options.windows * options.window_steps
    launcher = (
        []
        if way == "alone"
        else ["torch.distributed.run", "--standalone", "--nproc-per-node", "1", "-m"]
    )
    with tempfile.TemporaryDirectory() as place:
        subprocess.run(
            [
                sys.executable,
                "-m",
                *launcher,
                "electra",
                "pretrain",
                size,
                "--data",
                options.data,
                "--output-dir",
                place,
                "--quiet",
                "--save-steps",
                str(steps),
                *WAYS[way],
                *flags(options, steps, options.window_steps),
            ],
            check=True,
            stderr=subprocess.PIPE,
            text=True,
        )
        windows = [
            entry["tokens_per_second"]
            for entry in read(Path(place) / "metrics.jsonl")
            if "tokens_per_second" in entry
        ]
    return {"tokens_per_second": statistics.median(windows[1:]), "windows": windows}


def timed(function: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    def measured(*arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*arguments, **named)
        finally:
            spent.append(time.perf_counter() - began)

    return measured


def stall(size: str, options: Any) -> Iterator[dict[str, Any]]:
    """What a checkpoint costs the steps, in seconds; and what its write takes beside them, and a
    step.

    A save comes after every second window. Its cost (`stall`) is the host's time in it (`host`) and
    by how much the windows that follow one last longer than the others (`excess`): there the update
    waits until a GPU has made its copy, and the write takes its share of the machine.
    """
    steps = (options.save_steps or 2 * options.window_steps) // 2
    with tempfile.TemporaryDirectory() as place:
        windows, hosts, writes = (together if options.processes > 1 else saving)(
            size, options, steps, Path(place)
        )
    found = {**cost(windows, hosts, steps=steps), "write": statistics.median(writes)}
    shown = {name: f"{1000 * seconds:.1f} ms" for name, seconds in found.items()}
    print(
        f"{size}: a step takes {shown['step']}; a checkpoint costs {shown['stall']}: "
        f"{shown['host']} in the save "
        f"(the first time {1000 * hosts[0]:.1f}) and {shown['excess']} in the steps after it; its "
        "write takes "
        f"{shown['write']}",
        flush=True,
    )
    if found["write"] > steps * found["step"]:
        print(
            f"{size}: a write outlasts the {steps} steps of a window, so part of its cost is not "
            "seen; ask for more "
            f"--save-steps",
            flush=True,
        )
    yield {**found, "windows": windows, "hosts": hosts, "writes": writes}


def saving(
    size: str, options: Any, window_steps: int, place: Path
) -> tuple[list[float], list[float], list[float]]:
    """Seconds of each window, of the host in each save, and of each write."""
    standing: list[float] = []
    writing: list[float] = []
    recipe = load_recipe(
        size,
        flags=[
            *flags(options, 2 * SAVES * window_steps, window_steps),
            "--save-steps",
            str(2 * window_steps),
            "--parallel",
            options.parallel,
        ],
    )
    save, write = loop.save, checkpoint.write
    loop.save, checkpoint.write = timed(save, standing), timed(write, writing)
    try:
        pretrain.pretrain(recipe, data=options.data, output_dir=place / "run", quiet=True)
    finally:
        loop.save, checkpoint.write = save, write
    entries = [
        entry for entry in read(place / "run" / "metrics.jsonl") if "tokens_per_second" in entry
    ]
    seen = [0, *(entry["tokens_seen"] for entry in entries)]
    windows = [
        (after - before) / entry["tokens_per_second"]
        for (before, after), entry in zip(pairwise(seen), entries, strict=True)
    ]
    return windows, standing, writing


def together(
    size: str, options: Any, window_steps: int, place: Path
) -> tuple[list[float], list[float], list[float]]:
    """The same of the leading one of several processes."""
    subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(options.processes),
            "-m",
            "benchmarks.processes",
            "--data",
            options.data,
            "--sizes",
            size,
            "--rows",
            str(options.rows),
            "--save-steps",
            str(2 * window_steps),
            "--processes",
            str(options.processes),
            "--parallel",
            options.parallel,
            "--part-of",
            str(place),
        ],
        check=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    windows, hosts, writes = json.loads((place / TIMES).read_text(encoding="utf8"))
    return windows, hosts, writes


def take_part(options: Any) -> None:
    """One process of `together`."""
    place = Path(options.part_of)
    found = saving(options.sizes[0], options, options.save_steps // 2, place)
    if os.environ["RANK"] == "0":
        (place / TIMES).write_text(json.dumps(found), encoding="utf8")


def cost(windows: Sequence[float], hosts: Sequence[float], *, steps: int) -> dict[str, float]:
    """Of a save after every second window of so many steps. The first window and the first save
    warm up. A window is no shorter for a save, so an excess below nothing says how little windows
    can tell.
    """
    free, following, host = (
        statistics.median(each) for each in (windows[1::2], windows[2::2], hosts[1:])
    )
    excess = following - free
    return {"step": free / steps, "stall": host + max(0.0, excess), "host": host, "excess": excess}


PARTS = {"ways": ways, "stall": stall}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--sizes", nargs="+", default=["small"])
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--window-steps", type=int, default=10)
    parser.add_argument(
        "--save-steps",
        type=int,
        help="between two checkpoints, an even number: half of them should "
        "last longer than a write (default: twice --window-steps)",
    )
    parser.add_argument(
        "--processes", type=int, default=1, help="of a run whose checkpoints are timed"
    )
    parser.add_argument("--parallel", choices=["ddp", "fsdp"], default="ddp")
    parser.add_argument(
        "--part-of", help=argparse.SUPPRESS
    )  # the folder of a measurement by several processes
    parser.add_argument("--only", nargs="+", choices=["ways", "stall"], default=["ways", "stall"])
    parser.add_argument(
        "--output", help="what is there already of other sizes, rows or machines stays"
    )
    options = parser.parse_args(arguments)
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
            "so an even "
            f"number is needed"
        )
    if options.part_of:
        take_part(options)
        return
    made = provenance()
    company = (
        f", {options.processes} processes by {options.parallel.upper()}"
        if options.processes > 1
        else ""
    )
    kept = Path(options.output) if options.output else None
    found = json.loads(kept.read_text(encoding="utf8")) if kept and kept.exists() else {}
    for size in options.sizes:
        setting = f"{size} {options.rows} × {Shards.open(options.data).length}, {made['hardware']}{company}"
        entry = found.setdefault(setting, {})
        for part in options.only:
            for measured in PARTS[part](size, options):
                entry[part] = {"made": made, **measured}
                if kept:
                    write_result(
                        kept, {name: each for name, each in found.items() if name != "made"}
                    )


if __name__ == "__main__":
    run_main(main)
