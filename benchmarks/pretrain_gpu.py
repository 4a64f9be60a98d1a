"""Measure pre-training on a GPU against transformers' two models, eager and compiled.

    python -m benchmarks.pretrain_gpu --data SHARDS [SHARDS …] [--only PART …] [--sizes SIZE …]
                                      [--sides SIDE …] [--window-tokens 500000] [--windows 11]
                                      [--warm-up] [--quick] [--output FILE.json]

    paper     small, 128 rows of 128 tokens
    best      small, larger batches
    base      base and modern-base, 64 rows of 512 tokens
    modern    modern-small, 256 rows of 128 tokens, against transformers' ModernBERT
    scaling   the fast path by batch, length and size
    startup   process start to the first step's record
    profile   where the milliseconds of a step go
    curves    losses of the plain and the fast path, by seed, --at-once

Rows of 256 and 512 tokens are cut with `electra shard --length`; name one folder of shards for each
length. Every side takes whole steps (masking, sampling, dropout, clipping, AdamW) on the same
packed rows in bf16, in windows of so many tokens; the first window warms up, and the median of the
others counts. Ours is `electra.pretrain`, read from its metrics.jsonl; its time includes reading
its rows; the peer's lie in pinned memory before its clock starts. Only real tokens are counted, not
padding. Ours takes AdamW as the peer does; a further side takes Muon where the recipe does.

The result is written after every measurement and keeps other parts, so that a run that is cut short
loses nothing. Commands that follow one another on the same machine at the same commit are one run,
with one speed of matrix products: sides may be measured by several commands, but not at once. Exit
code 1: a side has failed.

Compilation takes most of the time. --warm-up measures nothing: it takes a few steps of every side
that compiles, each in a process of its own and --at-once of them at a time, so that the measurement
afterwards finds their code in the caches of torch and Triton.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import pretraining_tables
from benchmarks.harness import (
    ELECTRA,
    build_parser,
    check_counts,
    provenance,
    read_earlier,
    read_windows,
    run_main,
)
from benchmarks.pretrain_sides import (
    SIDES,
    UNCOMPILED,
    Bench,
    Setting,
    add_side,
    find_or_add_entry,
    ours,
    sides_of,
)
from benchmarks.step_profile import MAX_PHASES, profile_steps
from electra.config import UserError
from electra.data.shards import Shards
from electra.runs.journal import read_metrics
from electra.runs.run_dir import METRICS

PAPER = Setting("small", 128, 128)
COMPARED = {
    "paper": [PAPER],
    "best": [Setting("small", rows, 128) for rows in (1024,)],
    "base": [Setting(size, 64, 512) for size in ("base", "modern-base")],
    "modern": [Setting("modern-small", 256, 128)],
}
SCALED = [
    *(Setting("small", rows, 128) for rows in (32, 128, 256, 512, 1024)),
    *(Setting("small", 16_384 // length, length) for length in (256, 512)),
    *(Setting(size, 64, 512) for size in ("tiny", "small", "base", "large", "modern-base")),
    Setting("modern-small", 256, 128),
]


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_options(arguments)
    bench = Bench(find_shards(options.data), options, read_earlier(options.output))
    if not bench.on_gpu:
        print(
            "no CUDA device: peak memory and the speed of matrix products are left out, and the "
            "fast path is the plain one",
            flush=True,
        )
    if options.warm_up:
        if warm_up(bench):
            sys.exit(1)
        return
    for part in options.only:
        PARTS[part](bench)
    print("\n" + "\n\n".join(table(bench.result) for table in pretraining_tables.TABLES))
    if bench.failures:
        print("failed: " + "; ".join(bench.failures), flush=True)
        sys.exit(1)


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = build_parser(__doc__)
    parser.add_argument(
        "--data", nargs="+", required=True, help="folders of shards, one for each length of rows"
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--sizes", nargs="+", help="only settings of these recipes")
    parser.add_argument("--sides", nargs="+", choices=SIDES, help="only these sides")
    parser.add_argument("--window-tokens", type=int, default=500_000, help="padding included")
    parser.add_argument("--windows", type=int, default=11, help="the first of them warms up")
    parser.add_argument("--curve-steps", type=int, default=200)
    parser.add_argument("--curve-seeds", type=int, default=3)
    parser.add_argument("--curve-folder", type=Path, help="keeps their runs, which continue")
    parser.add_argument("--profile-steps", type=int, default=40)
    parser.add_argument("--warm-up", action="store_true", help="only fill the compilation caches")
    parser.add_argument("--at-once", type=int, default=5, help="processes of --warm-up and curves")
    parser.add_argument(
        "--quick", action="store_true", help="a tiny network and four rows, to see that it runs"
    )
    parser.add_argument("--output", help="the JSON file to write; it keeps other parts it holds")
    options = parser.parse_args(arguments)
    if options.windows < 2:
        parser.error(f"--windows {options.windows}: one warms up, so at least 2 are needed")
    check_counts(parser, options, "curve_steps", "curve_seeds", "profile_steps", "at_once")
    return options


def find_shards(folders: Sequence[str]) -> dict[int, Path]:
    """Return folders of shards by the length of their rows.

    `128=DIR` tells a reader of the command the length, and is checked.
    """
    by_length: dict[int, Path] = {}
    for argument in folders:
        prefix = re.match(r"(\d+)=", argument)  # any other = belongs to the path
        folder = re.sub(r"^\d+=", "", argument)
        length = Shards.open(folder).length
        if prefix and int(prefix[1]) != length:
            raise UserError(
                f"--data {argument}: its rows have {length} tokens; write {length}={folder}"
            )
        by_length[length] = Path(folder)
    return by_length


def compare(bench: Bench, *, part: str) -> None:
    """Measure all sides in the settings of a part."""
    for setting in bench.select(COMPARED[part], part):
        entry = find_or_add_entry(bench, part, setting)
        for name in sides_of(bench, setting):
            add_side(bench, entry, setting, name, partial(SIDES[name], bench, setting))


def warm_up(bench: Bench) -> int:
    """Take a few steps of every side that compiles, in processes beside each other; return how
    many of them have failed.
    """
    commands = []
    for part in (part for part in bench.options.only if part in COMPARED):
        for setting in bench.select(COMPARED[part], part):
            names = [name for name in sides_of(bench, setting) if name not in UNCOMPILED]
            commands += [warm_up_command(bench, part, setting, name) for name in names]
    start = time.perf_counter()
    compilers = max(1, (os.cpu_count() or 1) // bench.options.at_once)  # processes of each process
    run = partial(
        subprocess.run, env=os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": str(compilers)}
    )
    with ThreadPoolExecutor(bench.options.at_once) as threads:  # they wait for processes
        codes = [process.returncode for process in threads.map(run, commands)]
    failed = sum(code != 0 for code in codes)
    seconds = time.perf_counter() - start
    print(f"warmed up {len(codes)} sides in {seconds:.0f} s; {failed} of them failed", flush=True)
    return failed


def warm_up_command(bench: Bench, part: str, setting: Setting, side: str) -> list[str]:
    """Return the command that takes two windows of two steps of one side."""
    options = ["--only", part, "--sides", side, "--windows", "2", "--window-tokens", "1"]
    if bench.options.quick:
        options.append("--quick")
    else:
        options += ["--sizes", setting.size]
    shards = f"{setting.length}={bench.shards[setting.length]}"
    return [sys.executable, "-m", "benchmarks.pretrain_gpu", "--data", shards, *options]


def measure_scaling(bench: Bench) -> None:
    """Measure the fast path by batch, length and size."""
    for setting in bench.select(SCALED, "scaling"):
        entry = find_or_add_entry(bench, "scaling", setting)
        add_side(bench, entry, setting, "ours_fast", partial(ours, bench, setting, *bench.fast))


def measure_startup(bench: Bench) -> None:
    """Measure the time to the first step, with empty compilation caches and with full ones."""
    for setting in bench.select([PAPER], "startup"):
        seconds: dict[str, float] = {}
        with tempfile.TemporaryDirectory() as folder:
            names = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
            caches = {name: str(Path(folder) / name) for name in names}
            for name in ("cold", "warm"):
                run = Path(folder) / name
                seconds[name] = time_first_step(bench, setting, run, os.environ | caches)
                print(f"{name} start to first step: {seconds[name]:.1f} s", flush=True)
        entry = {"setting": str(setting), "seconds": seconds, "made": provenance()}
        bench.result["startup"] = entry
        bench.write()


def time_first_step(
    bench: Bench, setting: Setting, run: Path, environment: dict[str, str]
) -> float:
    """Return the seconds from the start of a process to the record of its first step."""
    start = time.time()
    pretrain_in_process(bench, setting, run, *bench.fast, steps=2, every=1, env=environment)
    return round(float(read_metrics(run / METRICS)[0]["time"]) - start, 2)


def pretrain_in_process(
    bench: Bench,
    setting: Setting,
    run: Path,
    *flags: str,
    steps: int,
    every: int,
    env: dict[str, str] | None = None,
) -> None:
    """Pre-train by the command line."""
    folders = ["--data", str(bench.shards[setting.length]), "--output-dir", str(run)]
    settings = bench.flags(setting, *flags, steps=steps, every=every)
    command = [*ELECTRA, "pretrain", setting.size, *folders, "--quiet", *settings]
    subprocess.run(command, check=True, env=env)


def measure_profile(bench: Bench) -> None:
    """Profile the paper's batch, the fastest one that was measured, and the larger network."""
    rates = {
        entry["rows"]: entry["sides"].get("ours_fast", {}).get("tokens_per_second", 0.0)
        for entry in bench.result.get("best", {}).values()
    }
    best = max(rates, key=lambda rows: rates[rows], default=512)
    settings = [PAPER, Setting("small", best, 128), *COMPARED["base"], *COMPARED["modern"]]
    for setting in bench.select(settings, "profile"):
        steps = bench.options.profile_steps
        recipe = bench.recipe(setting, *bench.fast, steps=MAX_PHASES * steps)
        entry = profile_steps(recipe, bench.shards[setting.length], steps=steps)
        entries = bench.result.setdefault("profile", {})
        entries[str(setting)] = {**entry, "run": bench.run["started"], "made": provenance()}
        bench.write()


def measure_curves(bench: Bench) -> None:
    """Compare the losses of both paths, which should differ by no more than two seeds do.

    The plain one is compiled: eager, 5,000 steps of one seed would take seven minutes.
    """
    for setting in bench.select([PAPER], "curves"):
        steps, seeds = bench.options.curve_steps, range(bench.options.curve_seeds)
        every = max(1, steps // 20)
        with ExitStack() as stack:
            folder = bench.options.curve_folder
            if folder is None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            runs = {}
            for path, flags in (("plain", bench.compiled), ("fast", bench.fast)):
                flags = [*flags, "--warmup-steps", str(steps // 2)]
                runs |= {folder / f"{path}-{seed}": [*flags, "--seed", str(seed)] for seed in seeds}
            train = partial(losses_of_run, bench, setting, steps=steps, every=every)
            with ThreadPoolExecutor(bench.options.at_once) as threads:  # they wait for processes
                curves = list(threads.map(train, runs, runs.values()))
        losses = {"plain": curves[: len(seeds)], "fast": curves[len(seeds) :]}
        bench.result["curves"] = {
            "setting": str(setting),
            "every": every,
            "plain": "compiled",
            "losses": losses,
            **largest_difference(losses, every=every),
            "made": provenance(),
        }
        bench.write()


def losses_of_run(
    bench: Bench, setting: Setting, run: Path, flags: Sequence[str], *, steps: int, every: int
) -> list[float]:
    """Return the losses of a run in a process of its own; its speed does not count."""
    pretrain_in_process(bench, setting, run, *flags, steps=steps, every=every)
    return [entry["loss"] for entry in read_windows(run)]


def largest_difference(losses: dict[str, list[list[float]]], *, every: int) -> dict[str, float]:
    """Return the largest difference of the two mean curves, and the range of seeds at that step."""
    plain, fast = (np.array(losses[path]) for path in ("plain", "fast"))  # [seeds, windows]
    difference = np.abs(plain.mean(axis=0) - fast.mean(axis=0))
    at = int(difference.argmax())
    ranges = [float(np.ptp(path[:, at])) for path in (plain, fast)]
    return {
        "step": every * (at + 1),
        "largest_difference": float(difference[at]),
        "seed_range": max(ranges),
        "mean_loss": float(plain[:, at].mean()),
    }


PARTS: dict[str, Callable[[Bench], None]] = {
    **{part: partial(compare, part=part) for part in COMPARED},
    "scaling": measure_scaling,
    "startup": measure_startup,
    "profile": measure_profile,
    "curves": measure_curves,
}


if __name__ == "__main__":
    run_main(main)
