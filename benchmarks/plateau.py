"""Find the settings that leave the plateau, and the step at which they do.

    python -m benchmarks.plateau --data SHARDS
                                 --run "mlm, 1e-3: bert-small --learning-rate 1e-3"
                                 [--run …] [--together 2] [--minutes 18]
                                 [--glue GLUE --tasks glue/sst-2 … --tuning "--learning-rate 3e-4"]
                                 [--output benchmarks/results/plateau.json]

Pre-trains several settings side by side and writes their held-out scores as curves; with --tasks it
also fine-tunes them. On the plateau a masked LM knows how frequent words are and a discriminator
how often they are replaced, and no more: `baseline_…` beside every score is the score of that
knowledge. A run that is longer than --minutes is stopped then, in the middle of its schedule.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.harness import (
    ELECTRA,
    Result,
    build_parser,
    provenance,
    read_earlier,
    read_windows,
    run_main,
    write_result,
)
from electra.cli import STOPPED_EARLY
from electra.config import UserError
from electra.data.shards import Shards
from electra.runs.journal import read_metrics
from electra.runs.run_dir import METRICS

PREFIX = "eval_"


def run_electra(*arguments: str, minutes: float | None = None) -> None:
    """Run a command; after so many minutes end it by SIGTERM, which it answers by exit code 75."""
    command = [*ELECTRA, *arguments, "--quiet"]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=environment, **pipes) as process:
        try:
            _, errors = process.communicate(timeout=minutes and 60 * minutes)
        except subprocess.TimeoutExpired:
            process.terminate()
            _, errors = process.communicate()
        except BaseException:
            process.kill()
            raise
    if process.returncode and not (minutes and process.returncode == STOPPED_EARLY):
        raise subprocess.CalledProcessError(process.returncode, command, stderr=errors)


def pretrain(data: str, settings: str, folder: Path, minutes: float | None = None) -> Result:
    """Pre-train with these settings and return the held-out scores by step."""
    recipe, *flags = shlex.split(settings)
    options = ["--data", data, "--output-dir", str(folder), "--save-total-limit", "1"]
    options += ["--stop-on-collapse", "false"]  # the curve is what is asked for
    run_electra("pretrain", recipe, *options, *flags, minutes=minutes)
    rates = [entry["tokens_per_second"] for entry in read_windows(folder)]
    rate = round(sum(rates) / len(rates))
    return {"settings": settings, **read_scores(folder), "tokens_per_second": rate}


def read_scores(folder: Path) -> Result:
    """Return the held-out scores of a run by step, and how many tokens it has seen."""
    entries = read_metrics(folder / METRICS)
    return {
        "held_out": [scores for entry in entries if (scores := held_out_scores(entry))],
        "tokens_seen": max(entry.get("tokens_seen", 0) for entry in entries),
    }


def held_out_scores(entry: Result) -> Result:
    """Return the step and the scores of a journal entry; nothing where it has no scores."""
    scores = {
        name.removeprefix(PREFIX): round(value, 4)
        for name, value in entry.items()
        if name.startswith(PREFIX)
    }
    if not scores:
        return {}
    return {"step": entry["step"], **scores}


def finetune(model: Path, options: argparse.Namespace) -> Result:
    """Return the median of each task's main score, on dev."""
    scores: Result = {"tuning": options.tuning}
    for task in options.tasks:
        folder = model.parent / f"{model.name}-{task.replace('/', '-')}"
        flags = ["--task", task, "--data", options.glue, "--output-dir", str(folder)]
        run_electra("finetune", str(model), *flags, *shlex.split(options.tuning))
        results = json.loads((folder / "results.json").read_text(encoding="utf8"))
        scores[task] = results["median"]
    return scores


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = build_parser(__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--run", action="append", required=True, metavar="NAME: RECIPE FLAGS")
    parser.add_argument("--together", type=int, default=1)
    parser.add_argument(
        "--minutes", type=float, help="of pre-training, after which a run is stopped"
    )
    parser.add_argument("--glue", help="folder with the tasks")
    parser.add_argument("--tasks", nargs="+", default=[])
    parser.add_argument("--tuning", default="", metavar="FLAGS", help="of electra finetune")
    parser.add_argument("--output", help="the JSON file to write; it keeps other runs it holds")
    options = parser.parse_args(arguments)
    if options.tasks and not options.glue:
        parser.error("--tasks needs --glue, the folder of their data")
    for run in options.run:
        if ": " not in run:
            raise UserError(
                f"--run {run!r}: give a name, a colon and a blank, then a recipe and flags"
            )
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_options(arguments)
    shards = Shards.open(options.data)
    result = {"runs": {}, **read_earlier(options.output)}
    lock = threading.Lock()
    about = {
        "rows": f"{len(shards.train):,} of {shards.length} tokens, {shards.tokenizer.size:,} words",
        "made": provenance(),
    }

    def measure(number: int, run: str) -> None:
        name, settings = run.split(": ", 1)
        model = Path(folder) / str(number)
        entry = pretrain(options.data, settings, model, options.minutes)
        if options.tasks:
            entry["tuned"] = finetune(model, options)
        print(f"{name}: {entry['held_out'][-1]} {entry.get('tuned', '')}", flush=True)
        with lock:
            result["runs"][name] = {**about, **entry}
            if options.output:
                write_result(options.output, result)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.together) as threads:
        list(threads.map(measure, range(len(options.run)), options.run))


if __name__ == "__main__":
    run_main(main)
