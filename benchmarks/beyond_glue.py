"""Fine-tune pre-trained models on tasks beyond GLUE, and score them on minimal pairs.

    python -m benchmarks.beyond_glue "MODEL=NAME [FLAGS]" … --data DATA --folder DIR
                                     [--tasks "TASK [--seeds N] [FLAGS]" …] [--seeds 1]
                                     [--flags FLAGS] [--pairs 500] [--at-once 4]
                                     [--stop-after SECONDS] [--retry] [--scale tiny]
                                     [--output benchmarks/results/beyond_glue.json]

DATA holds conll2003/, conll2000/, squad/ and race/. Each model is fine-tuned with `electra
finetune` on race, squad-1.1, ner and chunk, --at-once processes beside each other; first all tasks
with seed 0, then with the next seed. FLAGS are settings of `electra finetune`: of one model, one
task, or all. The minimal pairs are those of `benchmarks.generate_pairs`; nothing is trained on
them. Scores are those of dev sets, and for CoNLL-2000, which has none, of the test set. Every score
lands in the result file when it is known, failures too, and the same command continues: it skips
what the file holds. A second command that writes the same file is refused meanwhile. After
--stop-after seconds running commands are asked to stop; on the same machine they continue from
their checkpoints. What is not done then, or has failed, gives exit code 1.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.generate_pairs import write_pairs
from benchmarks.harness import (
    Result,
    build_parser,
    check_counts,
    folder_name,
    lock_result,
    provenance,
    read_earlier,
    result_path,
    run_main,
    write_result,
)
from benchmarks.markdown import RESULTS
from benchmarks.minimal_pairs import score_files
from benchmarks.record_jobs import Commands, Failed, Stopped
from electra.config import UserError, suggest_or_list
from electra.tasks.models import model_folder

OUTPUT = RESULTS / "beyond_glue.json"
# Task of `electra finetune` → its folder in --data. The longest come first: they end last.
FOLDERS = {"race": "race", "squad-1.1": "squad", "ner": "conll2003", "chunk": "conll2000"}
PAIRS = "minimal pairs"
SCALES = {
    "tiny": "--max-steps 2 --batch-size 4 --length 64 --max-train-examples 32 --max-dev-examples 16"
}


@dataclass(frozen=True)
class Model:
    """A pre-trained model, its name in tables, and settings for all its fine-tunings."""

    path: str
    name: str
    flags: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Model:
        first, *flags = shlex.split(text)
        path, _, name = first.rpartition("=")
        if not path:
            path, name = first, Path(first).name
        return cls(path, name, tuple(flags))


@dataclass(frozen=True)
class Task:
    """A task with the settings and the number of seeds of its fine-tunings."""

    name: str
    seeds: int
    flags: tuple[str, ...]

    @classmethod
    def parse(cls, text: str, *, seeds: int) -> Task:
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--seeds", type=int, default=seeds)
        name, *rest = shlex.split(text)
        known, flags = parser.parse_known_args(rest)
        if name not in FOLDERS:
            raise UserError(f"--tasks {name}: unknown{suggest_or_list(name, FOLDERS)}")
        return cls(name, known.seeds, tuple(flags))


@dataclass(frozen=True)
class Job:
    """One fine-tuning."""

    model: Model
    task: Task
    seed: int
    flags: str

    @property
    def key(self) -> str:
        return f"{self.model.name}: {self.task.name}, seed {self.seed}"

    def command(self, data: Path, folder: Path) -> list[str]:
        command = ["finetune", self.model.path, "--task", self.task.name, "--data", str(data)]
        command += ["--output-dir", str(folder), "--seed", str(self.seed), "--no-report"]
        return [*command, *shlex.split(self.flags)]


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_options(arguments)
    for model in options.models:
        model_folder(model.path)  # raises where there is none, before minutes of work
    for task in options.tasks:
        if not (options.data / FOLDERS[task.name]).is_dir():
            raise UserError(
                f"--data {options.data}: no folder {FOLDERS[task.name]} for {task.name}"
            )
    with lock_result(options.output) as lock:  # before the file is read
        scoring = Scoring(options, held=[lock])
        with scoring.commands.stopped_by(signal.SIGTERM):
            scoring.run()


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = build_parser(__doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL=NAME", help="flags may follow")
    parser.add_argument("--data", type=Path, required=True, help="folder with the tasks")
    parser.add_argument("--folder", type=Path, required=True, help="for the fine-tunings")
    parser.add_argument("--tasks", nargs="+", default=list(FOLDERS), metavar="TASK")
    parser.add_argument("--seeds", type=int, default=1, help="of each fine-tuning")
    parser.add_argument("--flags", default="", help="settings of all fine-tunings")
    parser.add_argument("--pairs", type=int, default=500, help="minimal pairs of each paradigm")
    parser.add_argument("--at-once", type=int, default=4, help="fine-tunings")
    parser.add_argument("--stop-after", type=float, metavar="SECONDS")
    parser.add_argument("--retry", action="store_true", help="what failed before")
    parser.add_argument("--scale", choices=SCALES, help="a few steps, for a test")
    parser.add_argument("--output", type=result_path, default=OUTPUT)
    options = parser.parse_args(arguments)
    check_counts(parser, options, "seeds", "pairs", "at_once")
    if options.scale and options.output == OUTPUT:
        parser.error("--scale needs an --output of its own: its numbers are no results")
    options.models = [Model.parse(text) for text in options.models]
    options.tasks = [Task.parse(text, seeds=options.seeds) for text in options.tasks]
    return options


class Scoring:
    """The fine-tunings and scores of all models, and the result file they are written to."""

    def __init__(self, options: argparse.Namespace, *, held: Sequence[int] = ()) -> None:
        self.options = options
        self.commands = Commands(options.stop_after, held=held)
        self.made = provenance()
        self.result: Result = {"models": [], "runs": {}, **read_earlier(options.output)}
        names = [*self.result["models"], *(model.name for model in options.models)]
        self.result["models"] = list(dict.fromkeys(names))
        self.lock = threading.Lock()
        options.folder.mkdir(parents=True, exist_ok=True)

    def run(self) -> None:
        """Do what is left. Minimal pairs are scored here while fine-tunings run beside."""
        start = time.monotonic()
        asked = list(self.jobs())
        jobs = [job for job in asked if self.is_left(job.key, job.flags)]
        print(f"{len(jobs)} fine-tunings left", flush=True)
        with ThreadPoolExecutor(self.options.at_once) as threads:
            ended = threads.map(self.finetune, jobs)
            for model in self.options.models:
                if self.is_left(f"{model.name}: {PAIRS}", str(self.options.pairs)):
                    self.score_pairs(model)
            list(ended)
        left = sum("score" not in self.result["runs"].get(job.key, {}) for job in asked)
        seconds = time.monotonic() - start
        done = len(asked) - left
        print(f"{done} of {len(asked)} fine-tunings done after {seconds:.0f} s", flush=True)
        if left:
            sys.exit(1)

    def jobs(self) -> Iterator[Job]:
        """Yield all fine-tunings; those of an early end are then of all tasks and models."""
        tasks: Sequence[Task] = self.options.tasks
        for seed in range(max(task.seeds for task in tasks)):
            for task in tasks:
                for model in self.options.models:
                    if seed < task.seeds:
                        flags = [*shlex.split(self.options.flags), *model.flags, *task.flags]
                        flags += shlex.split(SCALES.get(self.options.scale, ""))
                        yield Job(model, task, seed, shlex.join(flags))

    def is_left(self, key: str, settings: str) -> bool:
        """Return whether something is left to do; raise where its settings have changed."""
        entry = self.result["runs"].get(key)
        if entry is None or "failed" in entry:
            return entry is None or bool(self.options.retry)
        if entry["settings"] != settings:
            raise UserError(
                f"{self.options.output}: {key} was scored with other settings "
                f"({entry['settings'] or 'none'}); give the model another name, or another --output"
            )
        return False

    def finetune(self, job: Job) -> None:
        """Fine-tune a model on a task with one seed and keep its scores."""
        folder = self.options.folder / folder_name(job.key)
        command = job.command(self.options.data / FOLDERS[job.task.name], folder)
        facts = {"model": job.model.name, "task": job.task.name, "seed": job.seed}
        facts |= {"settings": job.flags}
        try:
            seconds = self.commands.run(Path(f"{folder}.log.txt"), *command)
        except Stopped:
            print(f"{job.key}: stopped", flush=True)
            return
        except Failed as failure:
            self.keep(job.key, **facts, failed=str(failure))
            return
        self.keep(job.key, **facts, **scores_of(folder), command_seconds=round(seconds, 1))

    def score_pairs(self, model: Model) -> None:
        """Score a model on all minimal pairs and keep the accuracy of each paradigm."""
        start = time.monotonic()
        paths = write_pairs(self.options.folder / "pairs", count=self.options.pairs)
        facts = {"model": model.name, "task": PAIRS, "settings": str(self.options.pairs)}
        accuracies = score_files(model.path, paths)
        mean = sum(accuracies.values()) / len(accuracies)
        seconds = round(time.monotonic() - start, 1)
        scores = {"metric": "accuracy", "baseline": 0.5, "score": mean, "accuracies": accuracies}
        self.keep(f"{model.name}: {PAIRS}", **facts, **scores, command_seconds=seconds)

    def keep(self, key: str, **facts: object) -> None:
        """Write a score, or a failure, to the result file and print it."""
        shown = facts.get("failed") or f"{facts['metric']} {facts['score']:.4f}"
        print(f"{key}: {shown} ({facts.get('command_seconds', '–')} s)", flush=True)
        with self.lock:
            self.result["runs"][key] = {**facts, "made": self.made}
            write_result(self.options.output, self.result)


def scores_of(folder: Path) -> Result:
    """Return all scores of a fine-tuning with one seed."""
    results = json.loads((folder / "results.json").read_text(encoding="utf8"))
    (run,) = results["runs"]
    return {
        "metric": results["metric"],
        "baseline": results["baseline"],
        "score": run["score"],
        "scores": run["scores"],
        "steps": run["steps"],
        "seconds": round(run["seconds"], 1),  # of training and evaluation, without reading data
    }


if __name__ == "__main__":
    run_main(main)
