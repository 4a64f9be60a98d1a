"""Measure fine-tuning on a GPU against transformers' `Trainer`, and the time of six GLUE tasks.

    python -m benchmarks.finetune_gpu --model DIR [--data GLUE] [--only compare glue] [--steps 300]
                                      [--repeats 2] [--seeds 5] [--at-once 1] [--place DIR]
                                      [--quick] [--output FILE.json]

compare: training texts of SST-2 and QNLI (without --data, random ones of mixed length) in batches
of 32, bf16. The Trainer takes the very rows that ours encodes, pads each batch to its longest, and
runs with its default sampler and with the one that groups by length. Ours is `electra.finetune`. On
both sides the clock runs from the first logged step to the last.

glue: CoLA, SST-2, MRPC, STS-B, QNLI and RTE as `electra finetune` trains and scores them, each in a
process of its own, --at-once of them side by side; minutes from the first start to the last end.
With --place they stay in that folder, and after an interruption the same command continues there.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from benchmarks import finetuning_tables
from benchmarks.finetune_cpu import BATCH, write_texts
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
from benchmarks.peer import TrainerOptions, build_trainer
from electra.config import UserError
from electra.console import ignore
from electra.finetuning.finetune import finetune
from electra.finetuning.options import FinetuneOptions
from electra.finetuning.setup import prepare_finetuning
from electra.tasks import find_task
from electra.tasks.features import Features
from electra.tasks.glue import available_tasks
from electra.tasks.models import RESULTS, model_folder

GLUE_6 = ("cola", "sst-2", "mrpc", "sts-b", "qnli", "rte")
LOGGING_STEPS = 50
Marks = list[tuple[int, float]]  # steps done, and when


@dataclass(frozen=True, kw_only=True)
class Run:
    """One short fine-tuning that is timed."""

    model: Path
    source: dict[str, Any]  # the task, and its data as `finetune` takes it
    folder: Path
    steps: int
    every: int  # steps from one logged one to the next
    seed: int

    def flags(self) -> list[str]:
        return (
            f"--max-steps {self.steps} --logging-steps {self.every} "
            f"--max-train-examples {self.steps * BATCH} --batch-size {BATCH}"
        ).split()


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_options(arguments)
    result = read_earlier(options.output)
    for part in options.only:
        for values in PARTS[part](options, result):
            result[part] = values
            if options.output:
                write_result(options.output, result)
    print("\n" + "\n\n".join(table(result) for table in finetuning_tables.TABLES))


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = build_parser(__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a pre-trained discriminator")
    parser.add_argument("--data", help="GLUE's folder")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--steps", type=int, default=300, help="of each comparison")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=5, help="of each GLUE task")
    parser.add_argument(
        "--at-once", type=int, default=1, help="GLUE tasks in training at the same time"
    )
    parser.add_argument(
        "--place", type=Path, help="the folder of GLUE's runs; without it, a temporary one"
    )
    parser.add_argument("--quick", action="store_true", help="a few steps, to see that it runs")
    parser.add_argument("--output", help="the JSON file to write; it keeps other parts it holds")
    options = parser.parse_args(arguments)
    check_counts(parser, options, "repeats", "seeds", "at_once")
    if "compare" in options.only and not options.quick and options.steps < 2 * LOGGING_STEPS:
        parser.error(
            f"--steps {options.steps}: the clock runs from the first logged step to the last, and "
            f"every {LOGGING_STEPS}th is logged, so at least {2 * LOGGING_STEPS} are needed"
        )
    check_inputs(options)
    return options


def check_inputs(options: argparse.Namespace) -> None:
    """Refuse a missing model, task or package at once, not after minutes of work."""
    model_folder(options.model)
    if options.data and "glue" in options.only:
        check_glue(options.data)
    if "compare" in options.only and importlib.util.find_spec("accelerate") is None:
        raise UserError(
            "transformers' Trainer needs accelerate: pip install -e '.[benchmarks]', or pass "
            "--only glue"
        )


# ---- against the Trainer -------------------------------------------------------------------------


def compare(options: argparse.Namespace, result: Result) -> Iterator[Result]:
    """Yield the entries of all tasks so far, after every round."""
    entries: Result = dict(result.get("compare", {}))
    with tempfile.TemporaryDirectory() as folder:
        for name, source in task_sources(options, Path(folder)).items():
            for entry in measure_rounds(options, name, source, Path(folder)):
                entries[name] = entry
                yield entries


def measure_rounds(
    options: argparse.Namespace, name: str, source: dict[str, Any], folder: Path
) -> Iterator[Result]:
    """Yield the entry of one task after every round."""
    steps, every = options.steps, LOGGING_STEPS
    if options.quick:
        steps, every = 4, 2
    rounds: dict[str, list[Result]] = {side: [] for side in SIDES}
    entry = {"rounds": rounds, "batch_size": BATCH, "steps": steps, "made": provenance()}
    for repeat in range(options.repeats + 1):
        is_warmup = repeat == 0
        for side, measure in SIDES.items():  # in turn: a slow moment of the machine hits all
            run = Run(
                model=options.model,
                source=source,
                folder=folder / f"{name.replace('/', '-')}-{side}-{repeat}",
                steps=2 * every if is_warmup else steps,
                every=every,
                seed=repeat,
            )
            rate = compute_rate(measure(run))
            if not is_warmup:
                rounds[side].append(rate)
                print(f"{name}, {side}: {rate['examples_per_second']:,.0f} examples/s", flush=True)
        if not is_warmup:
            yield entry


def task_sources(options: argparse.Namespace, folder: Path) -> dict[str, dict[str, Any]]:
    """Return each task and its data, by the name that the table shows."""
    if options.data:
        return {task: {"task": task, "data": options.data} for task in ("glue/sst-2", "glue/qnli")}
    texts = folder / "texts.csv"
    count = BATCH * options.steps
    if options.quick:
        count = 64
    write_texts(texts, count)
    source = {"task": "classify", "train": [texts], "dev": [texts], "dev_on_train": True}
    return {"texts of 5 to 120 words": source}


def compute_rate(marks: Marks) -> Result:
    """Return the examples a second from the first mark to the last, and between any two."""
    windows = [rate_between(*pair) for pair in pairwise(marks)]
    return {"examples_per_second": rate_between(marks[0], marks[-1]), "windows": windows}


def rate_between(first: tuple[int, float], last: tuple[int, float]) -> float:
    return BATCH * (last[0] - first[0]) / (last[1] - first[1])


def ours(run: Run) -> Marks:
    finetune(
        run.model,
        output_dir=run.folder,
        quiet=True,
        seed=run.seed,
        flags=run.flags(),
        **run.source,
    )
    windows = read_windows(run.folder / f"seed-{run.seed}")
    return [(entry["step"], entry["time"]) for entry in windows]


def trainer(run: Run, *, sampling: str) -> Marks:
    from transformers import AutoTokenizer, TrainerCallback

    folder = model_folder(run.model)
    rows = as_dicts(encode_rows(run))
    marks: Marks = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_log(self, _: Any, state: Any, __: Any, logs: dict[str, Any], **___: Any) -> None:
            if "loss" in logs:  # not the summary at the end
                marks.append((state.global_step, time.time()))

    on_gpu = torch.cuda.is_available()
    options = TrainerOptions(
        output_dir=run.folder,
        batch_size=BATCH,
        sampling=sampling,
        seed=run.seed,
        logging_steps=run.every,
        settings={"max_steps": run.steps, "bf16": on_gpu, "use_cpu": not on_gpu},
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    build_trainer(folder, rows, tokenizer, options, callbacks=[Clock()]).train()
    return marks


def encode_rows(run: Run) -> Features:
    """Return the training rows of a run as ours encodes them."""
    task = find_task(run.source["task"])
    data = {name: value for name, value in run.source.items() if name != "task"}
    options = FinetuneOptions(**data, flags=run.flags())
    return prepare_finetuning(run.model, task, options, say=ignore).train


def as_dicts(rows: Features) -> list[dict[str, Any]]:
    """Return one dictionary for each row, as the Trainer's collator takes them."""
    dicts = []
    for n in range(len(rows)):
        ids = rows.input_ids[rows.offsets[n] : rows.offsets[n + 1]].tolist()
        second = int(rows.second_starts[n])
        dicts.append(
            {
                "input_ids": ids,
                "token_type_ids": [0] * second + [1] * (len(ids) - second),
                "attention_mask": [1] * len(ids),
                "labels": int(rows.row_labels["target"][n]),
            }
        )
    return dicts


SIDES: dict[str, Callable[[Run], Marks]] = {
    "trainer": partial(trainer, sampling="random"),
    "trainer_grouped": partial(trainer, sampling="group_by_length"),
    "ours": ours,
}


# ---- six tasks -----------------------------------------------------------------------------------


def glue(options: argparse.Namespace, result: Result) -> Iterator[Result]:
    """Yield once, when all tasks are done, since only then is their time known."""
    if not options.data:
        print("glue is left out: name GLUE's folder with --data", flush=True)
        return
    folder = nullcontext(options.place) if options.place else tempfile.TemporaryDirectory()
    with folder as place:
        note = note_earlier_runs(Path(place), options.seeds)
        start = time.perf_counter()
        # Threads wait for processes; the longest tasks come first.
        order = sorted(GLUE_6, key=lambda task: task not in ("qnli", "sst-2"))
        with ThreadPoolExecutor(options.at_once) as threads:
            entries = list(threads.map(partial(finetune_task, options, Path(place)), order))
        minutes = (time.perf_counter() - start) / 60
    by_task = dict(zip(order, entries, strict=True))
    entry = {
        "seeds": options.seeds,
        "at_once": options.at_once,
        "minutes": minutes,
        "tasks": {task: by_task[task] for task in GLUE_6},
    }
    if note:
        entry["note"] = note
    yield {**entry, "made": provenance()}


def check_glue(data: str) -> None:
    """Refuse a folder without all six tasks, before any work."""
    _, missing = available_tasks(data)
    if lacking := [task for task in GLUE_6 if f"glue/{task}" in missing]:
        raise UserError(
            f"{data}: no training and dev files of {', '.join(lacking)}; six tasks are needed: "
            f"{', '.join(GLUE_6)}"
        )


def note_earlier_runs(folder: Path, seeds: int) -> str:
    """Return a note to the minutes where they do not count all of the work."""
    earlier = sum((folder / task / f"seed-{n}").exists() for task in GLUE_6 for n in range(seeds))
    if not earlier:
        return ""
    return (
        f"{earlier} of {seeds * len(GLUE_6)} runs had been begun earlier; the minutes count this "
        "start alone"
    )


def finetune_task(options: argparse.Namespace, folder: Path, task: str) -> Result:
    """Fine-tune on one GLUE task in a process of its own, and return its scores and times."""
    flags = [
        *("--task", f"glue/{task}", "--data", options.data, "--output-dir", str(folder / task)),
        *("--seeds", str(options.seeds), "--keep", "best", "--quiet"),
    ]
    if options.quick:
        flags += ["--max-steps", "2", "--max-train-examples", "64"]
    subprocess.run(
        [*ELECTRA, "finetune", str(options.model), *flags], check=True, stdout=subprocess.DEVNULL
    )
    summary = json.loads((folder / task / RESULTS).read_text(encoding="utf8"))
    metric, median = summary["metric"], summary["median"]
    print(f"{task}: {metric} {median:.4f}, median of {options.seeds}", flush=True)
    return {
        "metric": metric,
        "median": median,
        "scores": [run["score"] for run in summary["runs"]],
        "steps": summary["runs"][0]["steps"],
        "seconds": [run["seconds"] for run in summary["runs"]],
        "examples": summary["made"]["data"]["train"]["examples"],
        "settings_hash": summary["made"]["settings_hash"],
    }


PARTS = {"compare": compare, "glue": glue}


if __name__ == "__main__":
    run_main(main)
