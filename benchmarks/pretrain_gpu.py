"""Pre-training on a GPU: tokens a second against transformers' two ELECTRA models, eager and
compiled, in one run.

    python -m benchmarks.pretrain_gpu --data SHARDS [SHARDS …] [--only PART …] [--sizes SIZE …]
    [--sides SIDE …]
                                      [--window-tokens 500000] [--windows 5] [--quick] [--output
                                      FILE.json]

    paper     small, 128 rows of 128 tokens              startup   process start to the first step's record
    best      small, larger batches                      profile   where the milliseconds of a step go
    base      base, rows of 512 tokens                   curves    losses of the plain and the fast path, by seed
    scaling   the fast path by batch, length and size

Rows of 256 and 512 tokens are cut with `electra shard --length`; name one folder of shards for each
length. Every side takes whole steps (masking, sampling, dropout, clipping, AdamW) on the same
packed rows in bf16, in windows of so many tokens; the first window warms up, and of the others the
median counts. Ours is `electra.pretrain`, read from its metrics.jsonl, and pays for reading its
rows; the peer's lie in pinned memory before its clock starts. Only real tokens are counted, not
padding. Results are kept after every measurement, beside those of other parts: a run that is cut
short loses nothing.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks import pretraining_tables
from benchmarks.harness import build_parser, check_counts, provenance, run_main, write_result
from benchmarks.peer import Words, pretraining_step
from benchmarks.step_profile import TIMES, profiled
from electra.config import UserError
from electra.data.dataloader import DataLoader
from electra.data.shards import Shards
from electra.model.flops import standard
from electra.pretraining.pretrain import pretrain
from electra.pretraining.recipe import Recipe, load_recipe
from electra.runs.journal import read
from electra.runs.run_dir import METRICS

Side = dict[str, Any]  # tokens a second and peak memory of one way to train, or that it failed


@dataclass(frozen=True)
class Setting:
    size: str
    rows: int
    length: int

    def __str__(self) -> str:
        return f"{self.size} {self.rows} × {self.length}"


PAPER = Setting("small", 128, 128)
COMPARED = {
    "paper": [PAPER],
    "best": [Setting("small", rows, 128) for rows in (1024,)],
    "base": [Setting("base", rows, 512) for rows in (64,)],
}
SCALED = [
    *(Setting("small", rows, 128) for rows in (32, 128, 512, 1024)),
    *(Setting("small", 16_384 // length, length) for length in (256, 512)),
    *(Setting(size, 64, 512) for size in ("tiny", "small", "base", "large")),
]


@dataclass
class Bench:
    """Rows by their length, what was asked for, and what was found so far."""

    shards: dict[int, Path]
    options: Any  # as `parsed` gives them
    found: dict[str, Any] = field(default_factory=dict)
    device: torch.device = field(
        default_factory=lambda: torch.device("cuda" if torch.cuda.is_available() else "cpu")
    )

    def write_result(self) -> None:
        if self.options.output:
            write_result(
                self.options.output,
                {part: values for part, values in self.found.items() if part != "made"},
            )

    def possible(self, settings: Sequence[Setting], part: str) -> list[Setting]:
        """Those that were asked for and have rows; what is left out is said."""
        if self.options.quick:
            return [Setting("tiny", 4, next(iter(self.shards)))]
        wanted = [
            each
            for each in settings
            if self.options.sizes is None or each.size in self.options.sizes
        ]
        for each in wanted:
            if each.length not in self.shards:
                print(
                    f"{part}: {each} is left out: no --data has rows of {each.length} tokens; cut "
                    "them with "
                    f"`electra shard --length {each.length}`",
                    flush=True,
                )
        return [each for each in wanted if each.length in self.shards]

    def steps(self, setting: Setting) -> int:
        """In a window."""
        return max(2, round(int(self.options.window_tokens) / (setting.rows * setting.length)))

    def flags(
        self, setting: Setting, *more: str, steps: int | None = None, every: int | None = None
    ) -> list[str]:
        """Settings on top of a recipe: a step is one pass, and scores and checkpoints come at the
        end alone.
        """
        every = every or self.steps(setting)
        steps = steps or every * self.options.windows
        return [
            *f"--data.length {setting.length} --batch-size {setting.rows} --micro-batch-size "
            f"{setting.rows} "
            f"--max-steps {steps} --logging-steps {every} --eval-steps {steps} --save-steps "
            f"{steps} "
            f"--eval-rows {min(64, setting.rows)} --precision "
            f"{'bf16' if self.device.type == 'cuda' else 'fp32'} "
            f"--encoder.positions {max(512, setting.length)}".split(),
            *more,
        ]

    def recipe(self, setting: Setting, *more: str, **lengths: int) -> Recipe:
        return load_recipe(setting.size, flags=self.flags(setting, *more, **lengths))

    @property
    def plain(self) -> list[str]:
        return ["--training.kernels", "off", "--training.compile", "off"]

    @property
    def fast(self) -> list[str]:
        return ["--training.kernels", "on"] if self.device.type == "cuda" else self.plain


def main(arguments: Sequence[str] | None = None) -> None:
    options = parsed(arguments)
    earlier = Path(options.output) if options.output else None
    bench = Bench(
        found_shards(options.data),
        options,
        json.loads(earlier.read_text(encoding="utf8")) if earlier and earlier.exists() else {},
    )
    if bench.device.type == "cpu":
        print(
            "no CUDA device: peak memory and the ceiling of matrix products are left out, and the "
            "fast path is the "
            "plain one",
            flush=True,
        )
    for part in options.only:
        PARTS[part](bench)
    print("\n" + "\n\n".join(table(bench.found) for table in pretraining_tables.TABLES))


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
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
        "--quick", action="store_true", help="a tiny network and four rows throughout: does it run?"
    )
    parser.add_argument(
        "--output", help="where to keep the results, as JSON; parts that are there already stay"
    )
    options = parser.parse_args(arguments)
    if options.windows < 2:
        parser.error(f"--windows {options.windows}: one warms up, so at least 2 are needed")
    check_counts(parser, options, "curve_steps", "curve_seeds", "profile_steps")
    return options


def found_shards(folders: Sequence[str]) -> dict[int, Path]:
    """By the length of their rows. `128=DIR` says what a reader of the command wants to know, and
    is checked.
    """
    found: dict[int, Path] = {}
    for given in folders:
        said = re.match(r"(\d+)=", given)  # any other = belongs to the path
        folder = given[said.end() :] if said else given
        length = Shards.open(folder).length
        if said and int(said[1]) != length:
            raise UserError(
                f"--data {given}: its rows have {length} tokens; write {length}={folder}"
            )
        found[length] = Path(folder)
    return found


# ---- the four sides ------------------------------------------------------------------------------


def compare(bench: Bench, *, part: str) -> None:
    for setting in bench.possible(COMPARED[part], part):
        entry = bench.found.setdefault(part, {})[str(setting)] = begun(bench, setting)
        for name in bench.options.sides:
            entry["sides"][name] = measured(
                partial(SIDES[name], bench, setting), bench.device, f"{setting}, {name}"
            )
            bench.keep()


def scale(bench: Bench) -> None:
    for setting in bench.possible(SCALED, "scaling"):
        entry = bench.found.setdefault("scaling", {})[str(setting)] = begun(bench, setting)
        side = partial(ours, bench, setting, *bench.fast)
        entry["sides"]["ours_fast"] = measured(side, bench.device, f"{setting}, ours_fast")
        bench.keep()


def begun(bench: Bench, setting: Setting) -> dict[str, Any]:
    """What a setting is and what the machine could do with it at best, before it is measured."""
    words = Shards.open(bench.shards[setting.length]).tokenizer
    return {
        "size": setting.size,
        "rows": setting.rows,
        "length": setting.length,
        "vocabulary": words.size,
        "window_steps": bench.steps(setting),
        "flops_per_token": standard(bench.recipe(setting).workload(words.size)).training,
        **ceiling(bench.device),
        "made": provenance(),
        "sides": {},
    }


def measured(side: Callable[[], Side], device: torch.device, name: str) -> Side:
    """With its peak memory. A side that fails is kept as failed, and the others are measured all
    the same.
    """
    gc.collect()
    before = 0
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    began = time.perf_counter()
    try:
        found = side()
    except Exception as error:
        traceback.print_exc()
        return {"failed": type(error).__name__}
    found = {
        "tokens_per_second": median(found["windows"]),
        **found,
        "seconds": round(time.perf_counter() - began, 1),
    }
    if device.type == "cuda":
        found["peak_bytes"] = torch.cuda.max_memory_allocated() - before
    print(
        f"{name}: {found['tokens_per_second']:,.0f} tokens/s ({min(found['windows']):,.0f} to "
        f"{max(found['windows']):,.0f}), {found['seconds']:.0f} s in all",
        flush=True,
    )
    return found


def ours(bench: Bench, setting: Setting, *more: str) -> Side:
    entries = trained(bench, setting, *more)[1:]
    return {
        "windows": [entry["tokens_per_second"] for entry in entries],
        "data_wait": median(entry["data_wait"] for entry in entries),
    }


def trained(bench: Bench, setting: Setting, *more: str, **lengths: int) -> list[dict[str, Any]]:
    """The windows of a run, as a user's run writes them."""
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"
        pretrain(
            bench.recipe(setting, *more, **lengths),
            data=bench.shards[setting.length],
            output_dir=run,
            quiet=True,
        )
        return [entry for entry in read(run / METRICS) if "tokens_per_second" in entry]


def theirs(bench: Bench, setting: Setting, *, compiled: bool) -> Side:
    shards, recipe = Shards.open(bench.shards[setting.length]), bench.recipe(setting)
    torch.manual_seed(0)
    step = pretraining_step(
        recipe,
        Words.of(shards.tokenizer),
        device=bench.device,
        precision=recipe.training.precision,
        compiled=compiled,
    )
    batches = DataLoader(
        shards.train, batch_size=setting.rows, micro_batch_size=setting.rows, seed=0
    )
    steps, windows = bench.steps(setting), []
    for window in range(bench.options.windows):
        portion = [batches.load_step(window * steps + n + 1, [0])[0] for n in range(steps)]
        if bench.device.type == "cuda":
            portion = [batch.pin_memory() for batch in portion]
        finish(bench.device)
        began = time.perf_counter()
        for batch in portion:
            step(batch.to(bench.device))
        finish(bench.device)
        windows.append(
            sum(int(batch.lengths.sum()) for batch in portion) / (time.perf_counter() - began)
        )
    return {"windows": windows[1:]}


def finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


SIDES: dict[str, Callable[[Bench, Setting], Side]] = {
    "peer_eager": partial(theirs, compiled=False),
    "peer_compiled": partial(theirs, compiled=True),
    "ours_plain": lambda bench, setting: ours(bench, setting, *bench.plain),
    "ours_fast": lambda bench, setting: ours(bench, setting, *bench.fast),
}


# ---- what the machine can do ---------------------------------------------------------------------


def ceiling(device: torch.device, *, size: int = 8192) -> dict[str, float]:
    """Operations a second of a large bf16 matrix product, and bytes a second read and written by a
    copy.

    On random values: zeros draw less power, and the clock runs faster than in any training.
    """
    if device.type != "cuda":
        return {}
    first, second = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    product = torch.empty_like(first)
    source = torch.randn(2**28, device=device)
    target = torch.empty_like(source)
    return {
        "matmul_flops": 2 * size**3 / seconds_of(lambda: torch.mm(first, second, out=product)),
        "copy_bytes": 2 * source.nbytes / seconds_of(lambda: target.copy_(source)),
    }


def seconds_of(work: Callable[[], object], *, repeats: int = 30) -> float:
    """Median on the device, after as many repetitions that bring the clock to where work keeps it."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(2 * repeats + 1)]
    for mark in marks[:-1]:
        mark.record()
        work()
    marks[-1].record()
    torch.cuda.synchronize()
    times = [before.elapsed_time(after) for before, after in pairwise(marks)]
    return float(median(times[repeats:])) / 1000


# ---- the other parts -----------------------------------------------------------------------------


def start(bench: Bench) -> None:
    """Cold: nothing was ever compiled here. Warm: the second run, which finds what the first one
    compiled.
    """
    for setting in bench.possible([PAPER], "startup"):
        flags = bench.flags(setting, *bench.fast, steps=2, every=1)
        seconds: dict[str, float] = {}
        with tempfile.TemporaryDirectory() as place:
            caches = {
                name: str(Path(place) / name)
                for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
            }
            for name in ("cold", "warm"):
                run = Path(place) / name
                began = time.time()
                subprocess.run(
                    [
                        sys.executable,
                        "-m",
                        "electra",
                        "pretrain",
                        setting.size,
                        "--data",
                        str(bench.shards[setting.length]),
                        "--output-dir",
                        str(run),
                        "--quiet",
                        *flags,
                    ],
                    check=True,
                    env=os.environ | caches,
                )
                seconds[name] = round(read(run / METRICS)[0]["time"] - began, 2)
                print(f"{name} start to first step: {seconds[name]:.1f} s", flush=True)
        bench.found["startup"] = {"setting": str(setting), "seconds": seconds, "made": provenance()}
        bench.keep()


def profile(bench: Bench) -> None:
    """At the paper's batch, at the best one that was measured, and of the larger network."""
    rates = {
        entry["rows"]: entry["sides"].get("ours_fast", {}).get("tokens_per_second", 0.0)
        for entry in bench.found.get("best", {}).values()
    }
    best = max(rates, key=lambda rows: rates[rows], default=512)
    for setting in bench.possible(
        [PAPER, Setting("small", best, 128), *COMPARED["base"]], "profile"
    ):
        steps = bench.options.profile_steps
        recipe = bench.recipe(setting, *bench.fast, steps=TIMES * steps)
        found = profiled(recipe, bench.shards[setting.length], steps=steps)
        bench.found.setdefault("profile", {})[str(setting)] = {**found, "made": provenance()}
        bench.keep()


def curves(bench: Bench) -> None:
    """Losses of both paths: they should differ by no more than two seeds do."""
    for setting in bench.possible([PAPER], "curves"):
        steps, seeds = bench.options.curve_steps, bench.options.curve_seeds
        every = max(1, steps // 20)
        losses: dict[str, list[list[float]]] = {"plain": [], "fast": []}
        for seed in range(seeds):
            for path, flags in (("plain", bench.plain), ("fast", bench.fast)):
                entries = trained(
                    bench,
                    setting,
                    *flags,
                    "--seed",
                    str(seed),
                    "--warmup-steps",
                    str(steps // 2),
                    steps=steps,
                    every=every,
                )
                losses[path].append([entry["loss"] for entry in entries])
        bench.found["curves"] = {
            "setting": str(setting),
            "every": every,
            "losses": losses,
            **apart(losses, every=every),
            "made": provenance(),
        }
        bench.keep()


def apart(losses: dict[str, list[list[float]]], *, every: int) -> dict[str, float]:
    """The largest difference of the two mean curves, and how far the seeds of one path lie apart in
    that place.
    """
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
    "scaling": scale,
    "startup": start,
    "profile": profile,
    "curves": curves,
}


if __name__ == "__main__":
    run_main(main)
