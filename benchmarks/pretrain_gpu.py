"""Measure pre-training on a GPU against transformers' two models, eager and compiled.

    python -m benchmarks.pretrain_gpu --data SHARDS [SHARDS …] [--only PART …] [--sizes SIZE …]
                                      [--sides SIDE …] [--window-tokens 500000] [--windows 5]
                                      [--quick] [--output FILE.json]

    paper     small, 128 rows of 128 tokens
    best      small, larger batches
    base      base, rows of 512 tokens
    modern    modern-small, 256 rows of 128 tokens, against transformers' ModernBERT
    scaling   the fast path by batch, length and size
    startup   process start to the first step's record
    profile   where the milliseconds of a step go
    curves    losses of the plain and the fast path, by seed

Rows of 256 and 512 tokens are cut with `electra shard --length`; name one folder of shards for each
length. Every side takes whole steps (masking, sampling, dropout, clipping, AdamW) on the same
packed rows in bf16, in windows of so many tokens; the first window warms up, and the median of the
others counts. Ours is `electra.pretrain`, read from its metrics.jsonl; its time includes reading
its rows; the peer's lie in pinned memory before its clock starts. Only real tokens are counted, not
padding. The result is written after every measurement and keeps other parts, so that a run that is
cut short loses nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
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
    run_main,
)
from benchmarks.pretrain_sides import (
    SIDES,
    Bench,
    Setting,
    measure_side,
    new_entry,
    ours,
    train_windows,
)
from benchmarks.step_profile import TIMES, profile_steps
from electra.config import UserError
from electra.data.shards import Shards
from electra.runs.journal import read_metrics
from electra.runs.run_dir import METRICS

PAPER = Setting("small", 128, 128)
COMPARED = {
    "paper": [PAPER],
    "best": [Setting("small", rows, 128) for rows in (1024,)],
    "base": [Setting("base", rows, 512) for rows in (64,)],
    "modern": [Setting("modern-small", 256, 128)],
}
SCALED = [
    *(Setting("small", rows, 128) for rows in (32, 128, 256, 512, 1024)),
    *(Setting("small", 16_384 // length, length) for length in (256, 512)),
    *(Setting(size, 64, 512) for size in ("tiny", "small", "base", "large")),
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
    for part in options.only:
        PARTS[part](bench)
    print("\n" + "\n\n".join(table(bench.result) for table in pretraining_tables.TABLES))


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = build_parser(__doc__)
    parser.add_argument(
        "--data", nargs="+", required=True, help="folders of shards, one for each length of rows"
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--sizes", nargs="+", help="only settings of these recipes")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--window-tokens", type=int, default=500_000, help="padding included")
    parser.add_argument("--windows", type=int, default=5, help="the first of them warms up")
    parser.add_argument("--curve-steps", type=int, default=200)
    parser.add_argument("--curve-seeds", type=int, default=3)
    parser.add_argument("--profile-steps", type=int, default=40)
    parser.add_argument(
        "--quick", action="store_true", help="a tiny network and four rows, to see that it runs"
    )
    parser.add_argument("--output", help="the JSON file to write; it keeps other parts it holds")
    options = parser.parse_args(arguments)
    if options.windows < 2:
        parser.error(f"--windows {options.windows}: one warms up, so at least 2 are needed")
    check_counts(parser, options, "curve_steps", "curve_seeds", "profile_steps")
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
        entry = bench.result.setdefault(part, {})[str(setting)] = new_entry(bench, setting)
        for name in bench.options.sides:
            side = partial(SIDES[name], bench, setting)
            entry["sides"][name] = measure_side(side, bench.device, f"{setting}, {name}")
            bench.write()


def measure_scaling(bench: Bench) -> None:
    """Measure the fast path by batch, length and size."""
    for setting in bench.select(SCALED, "scaling"):
        entries = bench.result.setdefault("scaling", {})
        entry = entries[str(setting)] = new_entry(bench, setting)
        side = partial(ours, bench, setting, *bench.fast)
        entry["sides"]["ours_fast"] = measure_side(side, bench.device, f"{setting}, ours_fast")
        bench.write()


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
    folders = ["--data", str(bench.shards[setting.length]), "--output-dir", str(run)]
    flags = bench.flags(setting, *bench.fast, steps=2, every=1)
    start = time.time()
    subprocess.run(
        [*ELECTRA, "pretrain", setting.size, *folders, "--quiet", *flags],
        check=True,
        env=environment,
    )
    return round(float(read_metrics(run / METRICS)[0]["time"]) - start, 2)


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
        recipe = bench.recipe(setting, *bench.fast, steps=TIMES * steps)
        entry = profile_steps(recipe, bench.shards[setting.length], steps=steps)
        entries = bench.result.setdefault("profile", {})
        entries[str(setting)] = {**entry, "made": provenance()}
        bench.write()


def measure_curves(bench: Bench) -> None:
    """Compare the losses of both paths, which should differ by no more than two seeds do."""
    for setting in bench.select([PAPER], "curves"):
        steps, seeds = bench.options.curve_steps, bench.options.curve_seeds
        every = max(1, steps // 20)
        losses: dict[str, list[list[float]]] = {"plain": [], "fast": []}
        for seed in range(seeds):
            schedule = ["--seed", str(seed), "--warmup-steps", str(steps // 2)]
            for path, flags in (("plain", bench.plain), ("fast", bench.fast)):
                entries = train_windows(bench, setting, *flags, *schedule, steps=steps, every=every)
                losses[path].append([entry["loss"] for entry in entries])
        bench.result["curves"] = {
            "setting": str(setting),
            "every": every,
            "losses": losses,
            **largest_difference(losses, every=every),
            "made": provenance(),
        }
        bench.write()


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
