"""Pre-train `small` for a sixteenth of the paper's steps on one GPU, then fine-tune it.

    python -m benchmarks.small_gpu --corpus TEXTS --glue GLUE --run DIR [--max-steps 62500]
                                   [--seeds 5] [--at-once 6] [--output FILE]

Runs `electra pretrain small --corpus TEXTS --output-dir DIR --max-steps 62500`, then `electra
finetune DIR` for each task, in DIR/glue. After an interruption the same command continues, and a
note beside the minutes says which of them are missing. Shards that exist already go to --data
instead of --corpus.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from types import SimpleNamespace

from benchmarks import finetune_gpu
from benchmarks.harness import ELECTRA, Result, build_parser, check_counts, run_main, write_result
from electra import atomic
from electra.config import UserError, build
from electra.data.shards import Shards
from electra.files import read_toml
from electra.pretraining.recipe import Recipe
from electra.runs.journal import read_metrics
from electra.runs.run_dir import CONFIG, METRICS

# In the run's folder: a start that finds the model finished cannot measure its time.
SUMMARY = "pretraining.json"
HELD_OUT = (
    "eval_mlm_accuracy",
    "eval_baseline_mlm_accuracy",
    "eval_mlm_loss",
    "eval_baseline_mlm_loss",
    "eval_auc",
    "eval_average_precision",
    "eval_replaced_fraction",
)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_options(arguments)
    if options.glue:
        finetune_gpu.check_glue(options.glue)
    result: Result = {"pretraining": pretrain(options)}
    if options.output:
        write_result(options.output, result)
    if options.glue:
        glue_options = SimpleNamespace(
            model=options.run,
            data=options.glue,
            seeds=options.seeds,
            at_once=options.at_once,
            place=options.run / "glue",
            quick=False,
        )
        for entry in finetune_gpu.glue(glue_options, {}):  # type: ignore[arg-type]
            result["glue"] = entry
        if options.output:
            write_result(options.output, result)
    print(json.dumps(result, indent=1))


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = build_parser(__doc__)
    texts = parser.add_mutually_exclusive_group(required=True)
    texts.add_argument("--corpus", nargs="+", help="texts, as `electra pretrain` takes them")
    texts.add_argument("--data", help="or a folder of shards")
    parser.add_argument("--glue", help="GLUE's folder; without it, pre-training alone")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--recipe", default="small")
    parser.add_argument("--max-steps", type=int, default=62_500)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--at-once", type=int, default=6, help="GLUE tasks in training at the same time"
    )
    parser.add_argument(
        "--flags", nargs=argparse.REMAINDER, default=[], help="of `electra pretrain`, last"
    )
    parser.add_argument("--output")
    options = parser.parse_args(arguments)
    check_counts(parser, options, "max_steps", "seeds", "at_once")
    return options


def pretrain(options: argparse.Namespace) -> Result:
    """Pre-train, or continue, and return what the model read and how it scored."""
    source = ["--corpus", *(options.corpus or ())]
    if options.data:
        source = ["--data", options.data]
    command = [
        *(*ELECTRA, "pretrain", options.recipe, *source, "--output-dir", str(options.run)),
        *("--max-steps", str(options.max_steps), *options.flags),
    ]
    check_windows(command)
    is_continued, start = (options.run / METRICS).exists(), time.perf_counter()
    subprocess.run(command, check=True)
    minutes = (time.perf_counter() - start) / 60
    shards = Shards.open(options.data or options.run / "data" / "shards")
    summary = summarize(options.run, shards, options)
    if (options.run / SUMMARY).exists():
        earlier: Result = json.loads((options.run / SUMMARY).read_text(encoding="utf8"))
        if earlier == {**earlier, **summary}:  # no step has been taken since
            return earlier
    summary["minutes_in_all"] = minutes
    if is_continued:
        summary["note"] = (
            "begun earlier and continued; the minutes of training hold the pause, those from "
            "process start count this start alone"
        )
    atomic.write_json(options.run / SUMMARY, summary)
    return summary


def check_windows(command: Sequence[str]) -> None:
    """Refuse wrong flags, and too few logged windows to measure a speed, before any work."""
    printed = subprocess.run(
        [*command, "--print-config"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    training = build(Recipe, tomllib.loads(printed), source="--flags").training
    if training.max_steps <= training.logging_steps:
        raise UserError(
            f"{training.max_steps} steps, logged every {training.logging_steps}, are one window, "
            "and the first is not counted; ask for more --max-steps, or for fewer --logging-steps "
            "in --flags"
        )


def summarize(run: Path, shards: Shards, options: argparse.Namespace) -> Result:
    """Return what the model read and how it scored, from its settings and its journal."""
    journal = read_metrics(run / METRICS)
    logged = [entry for entry in journal if "tokens_per_second" in entry]
    counted = logged[1:] or logged  # a run may have been logged only once
    recipe = build(Recipe, read_toml(run / CONFIG), source=str(run / CONFIG))
    evaluated = [held_out_scores(entry) for entry in journal if "eval_auc" in entry]
    return {
        "recipe": options.recipe,
        "flags": options.flags,
        "steps": recipe.training.max_steps,
        "rows": f"{recipe.training.batch_size} × {recipe.data.length}",
        "corpus_tokens": shards.manifest.tokens,
        "documents": shards.manifest.documents,
        "vocabulary": shards.manifest.vocab_size,
        "tokens_seen": logged[-1]["tokens_seen"],
        "epochs": round(logged[-1]["epoch"], 2),
        "minutes": (logged[-1]["time"] - logged[0]["time"]) / 60,
        "tokens_per_second": median(entry["tokens_per_second"] for entry in counted),
        "data_wait": median(entry["data_wait"] for entry in counted),
        "held_out": evaluated,
        "losses": [
            [entry["step"], round(entry["mlm"], 4), round(entry["rtd"], 4)]
            for entry in logged[:: max(1, len(logged) // 100)]
        ],
    }


def held_out_scores(entry: Result) -> Result:
    scores = {name.removeprefix("eval_"): round(entry[name], 4) for name in HELD_OUT}
    return {"step": entry["step"], **scores}


if __name__ == "__main__":
    run_main(main)
