"""Pre-train and fine-tune encoders of several settings on the same text, with seeds.

    python -m benchmarks.encoders --data SHARDS --glue GLUE --folder RUNS
                                  --arm "modern: modern-small" --arm "paper: small --max-steps 4000"
                                  [--seeds 3] [--seed 0] [--together 4] [--finetune-together 8]
                                  [--tasks "glue/qnli --epochs 2" …] [--finetune-seeds 1]
                                  [--tuning "3e-4: --learning-rate 3e-4" …]
                                  [--minutes 8] [--output benchmarks/results/encoders.json]

An arm is a name, a recipe and flags of `electra pretrain`; with `blocks=PART,…` before the recipe
its networks are those of `benchmarks.block_variants`. A tuning is a name and flags of `electra
finetune`, and a task may have such flags too. Every arm is trained with each seed, then every model
is fine-tuned on each task with each tuning. Runs are kept in --folder; the same command skips
what is done. After --minutes no further fine-tuning is started. Exit code 1: a run has failed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import (
    ELECTRA,
    Result,
    build_parser,
    check_counts,
    folder_name,
    provenance,
    read_earlier,
    read_windows,
    run_main,
    write_result,
)
from benchmarks.plateau import read_scores
from electra.config import UserError
from electra.data.shards import Shards
from electra.runs.run_dir import METRICS, get_status

BLOCKS = "blocks="
LOG = "log.txt"  # what a command printed, beside its folder


@dataclass(frozen=True)
class Named:
    """An arm or a tuning: its name and its flags."""

    name: str
    flags: str

    @classmethod
    def parse(cls, text: str) -> Named:
        name, separator, flags = text.partition(": ")
        if not separator:
            raise UserError(f"{text!r}: give a name, a colon and a blank, then flags")
        return cls(name, flags)

    @property
    def command(self) -> tuple[Sequence[str], list[str]]:
        """Return what its commands begin with, and its recipe and flags."""
        words = shlex.split(self.flags)
        if not self.flags.startswith(BLOCKS):
            return ELECTRA, words
        parts = words[0].removeprefix(BLOCKS)
        return (sys.executable, "-m", "benchmarks.block_variants", parts), words[1:]


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_options(arguments)
    shards = Shards.open(options.data)
    options.folder.mkdir(parents=True, exist_ok=True)
    kept = Kept(options, shards)
    runs = [(arm, seed) for seed in options.all_seeds for arm in options.arms]
    with ThreadPoolExecutor(options.together) as threads:
        list(threads.map(lambda run: kept.pretrain(*run), runs))
    jobs = []
    for task, run, tuning in itertools.product(options.tasks, runs, options.tunings):
        jobs.append((*run, tuning, task))
    with ThreadPoolExecutor(options.finetune_together) as threads:
        list(threads.map(lambda job: kept.finetune(*job), jobs))
    if kept.failures:
        sys.exit(1)


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = build_parser(__doc__)
    parser.add_argument("--data", required=True, help="shards")
    parser.add_argument("--folder", type=Path, required=True, help="for the runs")
    parser.add_argument("--arm", action="append", required=True, metavar="NAME: RECIPE FLAGS")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="the first of them")
    parser.add_argument("--together", type=int, default=1, help="pre-trainings at a time")
    parser.add_argument("--finetune-together", type=int, default=4, help="fine-tunings at a time")
    parser.add_argument("--glue", help="folder with the tasks")
    parser.add_argument("--tasks", nargs="+", default=[])
    parser.add_argument("--tuning", action="append", metavar="NAME: FLAGS")
    parser.add_argument("--finetune-seeds", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--output", help="the JSON file to write; it keeps other runs it holds")
    options = parser.parse_args(arguments)
    check_counts(parser, options, "seeds", "together", "finetune_together", "finetune_seeds")
    if options.tasks and not options.glue:
        parser.error("--tasks needs --glue, the folder of their data")
    options.all_seeds = range(options.seed, options.seed + options.seeds)
    options.arms = [Named.parse(text) for text in options.arm]
    options.tunings = [Named.parse(text) for text in options.tuning or ["default: "]]
    return options


class Kept:
    """The runs in their folder, and the result file that they are written to."""

    def __init__(self, options: argparse.Namespace, shards: Shards) -> None:
        self.options = options
        self.until = time.monotonic() + 60 * options.minutes
        self.result: Result = {"runs": {}, **read_earlier(options.output)}
        self.about = {
            "rows": f"{len(shards.train):,} of {shards.length} tokens, "
            f"{shards.tokenizer.size:,} words",
            "made": provenance(),
        }
        self.lock = threading.Lock()
        self.failures: list[str] = []

    def entry(self, arm: Named, seed: int) -> Result:
        entry: Result = self.result["runs"].setdefault(f"{arm.name}, seed {seed}", {})
        return entry

    def folder_of(self, arm: Named, seed: int) -> Path:
        return Path(self.options.folder) / f"{folder_name(arm.name)}-{seed}"

    def write(self, change: Callable[[], None]) -> None:
        with self.lock:
            change()
            if self.options.output:
                write_result(self.options.output, self.result)

    def pretrain(self, arm: Named, seed: int) -> None:
        """Pre-train an arm with a seed and keep its held-out scores by step."""
        folder = self.folder_of(arm, seed)
        command, flags = arm.command
        source = ["--data", self.options.data, "--output-dir", str(folder), "--seed", str(seed)]
        # Also of a network that has collapsed the curve is kept, and its tasks are scored.
        source += ["--save-total-limit", "1", "--stop-on-collapse", "false"]
        step_before = get_status(folder).get("step")
        if not self.has_succeeded(folder, *command, "pretrain", *flags, *source):
            return
        rates = sorted(entry["tokens_per_second"] for entry in read_windows(folder))
        found = {
            "arm": arm.name,
            "seed": seed,
            "settings": arm.flags,
            **read_scores(folder),
            "tokens_per_second": round(rates[len(rates) // 2]),
        }
        about = dict(self.about)
        if get_status(folder).get("step") == step_before:
            del about["made"]  # it was finished before: this commit and machine trained nothing
        self.write(lambda: self.entry(arm, seed).update(about | found))
        last = found["held_out"][-1:]
        print(f"{arm.name}, seed {seed}: {last}", flush=True)

    def finetune(self, arm: Named, seed: int, tuning: Named, task_with_flags: str) -> None:
        """Fine-tune a model and keep the score of every fine-tuning seed."""
        model = self.folder_of(arm, seed)
        if time.monotonic() > self.until or not (model / METRICS).is_file():
            return
        task, *task_flags = shlex.split(task_with_flags)
        own = f"{folder_name(tuning.name)}-{task.replace('/', '-')}"
        folder = model.parent / f"{model.name}-{own}"
        flags = ["--task", task, "--data", self.options.glue, "--output-dir", str(folder)]
        flags += ["--seeds", str(self.options.finetune_seeds), *task_flags]
        flags += shlex.split(tuning.flags)
        command, _ = arm.command
        if not self.has_succeeded(folder, *command, "finetune", str(model), *flags):
            return
        results = json.loads((folder / "results.json").read_text(encoding="utf8"))
        scores = {
            "flags": " ".join([*task_flags, tuning.flags]),
            "metric": results["metric"],
            "baseline": results["baseline"],
            "scores": [run["score"] for run in results["runs"]],
        }
        self.write(lambda: self.add_scores(self.entry(arm, seed), tuning, task, scores))
        print(f"{arm.name}, seed {seed}, {tuning.name}, {task}: {scores['scores']}", flush=True)

    def has_succeeded(self, folder: Path, *command: str) -> bool:
        """Run a command with one thread; keep what it prints beside its folder, and failures."""
        with Path(f"{folder}.{LOG}").open("a", encoding="utf8") as log:
            ended = subprocess.run(
                [*command, "--quiet"],
                check=False,
                stdout=log,
                stderr=log,
                env={"OMP_NUM_THREADS": "1", **os.environ},
            )
        if ended.returncode:
            print(f"{folder.name} failed: see {folder}.{LOG}", flush=True)
            self.failures.append(folder.name)
        return ended.returncode == 0

    def add_scores(self, entry: Result, tuning: Named, task: str, scores: Result) -> None:
        entry.setdefault("tuned", {}).setdefault(tuning.name, {})[task] = scores


if __name__ == "__main__":
    run_main(main)
