"""Do two checkouts compute the same numbers? Run both on the same text and compare bit by bit.

    python -m benchmarks.same_numbers --before CHECKOUT --after CHECKOUT --corpus TEXT
                                      [--only NAME …] [--steps 200] [--work-dir FOLDER]
                                      [--output FILE.json]

A refactoring must not change a loss or a weight. Each scenario runs the command line of both
checkouts and compares every logged number (except time and speed) and the SHA-256 of every
exported weight file. Scenarios: vocabulary and shards; pre-training with each objective, as a tiny
and as a small network; two stages; a run that was killed and resumed; three processes with DDP and
with FSDP2. A result is kept after every scenario.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import build_parser, run_main, write_result
from electra.config import RunFailed, UserError

Digest = dict[str, Any]  # what a scenario computed, in short
NOT_COMPARED = ("time", "tokens_per_second", "data_wait", "mfu")
RENAMED = {"trivial_": "baseline_"}  # metrics whose names differ between checkouts
RECIPES = {
    "rtd": "small",
    "mlm": "bert-small",
    "replace-mlm": "replace-mlm-base",
    "all-tokens-mlm": "all-tokens-mlm-base",
    "adversarial": "adversarial-base",
    "electra-15": "electra-15-base",
    "unigram": "unigram-base",
    "next-sentence": "bert-nsp-base",
    "left-to-right": "left-to-right-base",
    "official": "small-official",
}
WITH_GENERATOR = ("rtd", "replace-mlm", "all-tokens-mlm", "adversarial", "electra-15", "official")
TINY = (
    "--data.length 32 --encoder.layers 2 --encoder.width 64 "
    "--encoder.heads 4 --encoder.feedforward 256 --encoder.embedding 32 --encoder.positions 64 "
    "--batch-size 32 --micro-batch-size 8 --warmup-steps 20 --logging-steps 5 --eval-steps 50 "
    "--eval-rows 256 --save-steps 50 --learning-rate 2e-3"
).split()
SMALL = (
    "--data.length 64 --encoder.layers 12 --encoder.width 256 "
    "--encoder.heads 4 --encoder.feedforward 1024 --encoder.embedding 128 --encoder.positions 512 "
    "--batch-size 4 --micro-batch-size 2 --warmup-steps 20 --logging-steps 5 --eval-steps 100 "
    "--eval-rows 64 --save-steps 100"
).split()
HALF = ["--objective.generator.fraction", "0.5"]


@dataclass(frozen=True)
class Checkout:
    """One checkout, and the folder for what it computes."""

    root: Path
    output_dir: Path
    steps: int

    def command(self, *arguments: str | Path, processes: int = 1) -> list[str]:
        launcher = [sys.executable, "-m"]
        if processes > 1:
            launcher += ["torch.distributed.run", "--nproc-per-node", str(processes), "-m"]
        return [*launcher, "electra", *map(str, arguments)]

    @property
    def environment(self) -> dict[str, str]:
        cache = str(self.output_dir / "cache")
        own = {"PYTHONPATH": str(self.root), "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": cache}
        return {**os.environ, **own}

    def run(self, *arguments: str | Path, processes: int = 1) -> None:
        command = self.command(*arguments, processes=processes)
        finished = subprocess.run(
            command, cwd=self.root, env=self.environment, capture_output=True, text=True
        )
        if finished.returncode:
            raise RunFailed(f"{self.root}: {' '.join(command)}\n{finished.stderr[-2000:]}")

    def pretrain(self, recipe: str, name: str, *flags: str | Path, processes: int = 1) -> Digest:
        """Pre-train on the shards that fit the flags, and return the digest of the run."""
        self.run(*self.pretrain_arguments(recipe, name, *flags), processes=processes)
        return digest_run(self.output_dir / name)

    def pretrain_arguments(self, recipe: str, name: str, *flags: str | Path) -> list[str | Path]:
        length = flags[flags.index("--data.length") + 1]
        data = ["--data", self.output_dir / f"shards-{length}"]
        output = ["--output-dir", self.output_dir / name, "--max-steps", str(self.steps)]
        return ["pretrain", recipe, *data, *output, "--quiet", *flags]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--before", type=Path, required=True, help="the checkout to compare with")
    parser.add_argument("--after", type=Path, required=True, help="the checkout to check")
    parser.add_argument("--corpus", type=Path, required=True, help="text, some megabytes")
    parser.add_argument("--only", nargs="+", default=[], help="scenarios; all by default")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument(
        "--work-dir", type=Path, default=Path("runs/same-numbers"), help="for the runs; fresh"
    )
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/same_numbers.json"))
    options = parser.parse_args(arguments)
    both = checkouts(options)
    compared: dict[str, bool] = {}
    for name, scenario in scenarios(options.corpus.resolve()).items():
        if options.only and name not in options.only and not name.startswith("shard"):
            continue
        before, after = (scenario(checkout) for checkout in both)
        compared[name] = before == after
        print(f"{name:<24} {'identical' if compared[name] else 'DIFFERENT'}", flush=True)
        write_result(options.output, {"scenarios": compared})
    if not all(compared.values()):
        raise SystemExit(1)


def checkouts(options: argparse.Namespace) -> list[Checkout]:
    """Return both checkouts; raise UserError where a run of earlier code would be compared."""
    both = []
    for name in ("before", "after"):
        root, output_dir = getattr(options, name).resolve(), options.work_dir.resolve() / name
        # Not emptied: the folder may hold the checkouts themselves.
        if output_dir.exists():
            raise UserError(
                f"{output_dir} is there already, and its runs would be compared as they are; "
                "remove it, or choose another --work-dir"
            )
        both.append(Checkout(root, output_dir, options.steps))
    return both


def scenarios(corpus: Path) -> dict[str, Callable[[Checkout], Digest]]:
    """Return what is compared, by name; the shards come first, since the others read them."""
    every: dict[str, Callable[[Checkout], Digest]] = {"shards": lambda c: make_shards(c, corpus)}
    for objective, recipe in RECIPES.items():
        generator = HALF if objective in WITH_GENERATOR else []
        for size, shape in (("tiny", TINY), ("small", SMALL)):
            flags = [*shape, *generator]
            every[f"{size} {objective}"] = pretraining(recipe, f"{size}-{objective}", flags)
    every["tiny two stages"] = two_stages
    every["tiny killed and resumed"] = killed_and_resumed
    for parallel in ("ddp", "fsdp"):
        flags = [*TINY, *HALF, "--parallel", parallel]
        every[f"tiny three processes {parallel}"] = pretraining("small", parallel, flags, 3)
    return every


def pretraining(
    recipe: str, name: str, flags: list[str], processes: int = 1
) -> Callable[[Checkout], Digest]:
    return lambda checkout: checkout.pretrain(recipe, name, *flags, processes=processes)


def make_shards(checkout: Checkout, corpus: Path) -> Digest:
    tokenizer = checkout.output_dir / "tokenizer"
    checkout.run("vocab", corpus, "--output-dir", tokenizer, "--vocab-size", "2048")
    for length in ("32", "64"):
        output = checkout.output_dir / f"shards-{length}"
        options = ["--length", length, "--held-out", "0.02"]
        checkout.run("shard", corpus, "--tokenizer", tokenizer, "--output-dir", output, *options)
    files = sorted(checkout.output_dir.glob("shards-*/*.npy"))
    files.append(tokenizer / "tokenizer.json")
    return {str(path.relative_to(checkout.output_dir)): sha256(path) for path in files}


def two_stages(checkout: Checkout) -> Digest:
    first = checkout.pretrain("two-stage-generator-base", "stage-1", *TINY)
    source = ["--init-from", checkout.output_dir / "stage-1"]
    second = checkout.pretrain("two-stage-base", "stage-2", *TINY, *source)
    return {"first": first, "second": second}


def killed_and_resumed(checkout: Checkout) -> Digest:
    """Kill a run after its first checkpoint, and let the same command finish it."""
    arguments = checkout.pretrain_arguments("small", "killed", *TINY, *HALF)
    command = checkout.command(*arguments)
    process = subprocess.Popen(command, cwd=checkout.root, env=checkout.environment)
    while not list((checkout.output_dir / "killed").glob("checkpoint-*")):
        if process.poll() is not None:
            raise RunFailed(f"{checkout.root}: the run ended before its first checkpoint")
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    checkout.run(*arguments)
    return digest_run(checkout.output_dir / "killed")


def digest_run(run: Path) -> Digest:
    """Return every logged number and the hash of every exported weight file."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    numbers = [compared_numbers(json.loads(line)) for line in lines]
    weights = {path.parent.name: sha256(path) for path in run.glob("*/model.safetensors")}
    return {"numbers": numbers, "weights": weights}


def compared_numbers(entry: Digest) -> Digest:
    return {rename(key): value for key, value in entry.items() if key not in NOT_COMPARED}


def rename(key: str) -> str:
    for old, new in RENAMED.items():
        key = key.replace(old, new)
    return key


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    run_main(main)
