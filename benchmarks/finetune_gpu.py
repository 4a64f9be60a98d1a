"""Fine-tuning on a GPU: examples a second against transformers' `Trainer`, and how long six GLUE
tasks take.

    python -m benchmarks.finetune_gpu --model DIR [--data GLUE] [--only compare glue] [--steps 300]
    [--repeats 2]
                                      [--seeds 5] [--at-once 1] [--place DIR] [--quick] [--output
                                      FILE.json]

compare: training texts of SST-2 and QNLI (without --data, made-up ones of mixed length) in batches
of 32, bf16. The Trainer takes the very rows that ours encodes, pads each batch to its longest, and
runs with its default sampler and with the one that groups by length. Ours is `electra.finetune`. On
both sides the clock runs from the first logged step to the last.

glue: CoLA, SST-2, MRPC, STS-B, QNLI and RTE as `electra finetune` trains and scores them, each in a
process of its own, --at-once of them side by side; minutes from the first start to the last end.
With --place they stay in that folder, and after an interruption the same command goes on there.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import finetuning_tables
from benchmarks.finetune_cpu import BATCH, write_texts
from benchmarks.harness import build_parser, check_counts, provenance, run_main, write_result
from benchmarks.peer import build_trainer
from electra.config import UserError
from electra.console import ignore
from electra.finetuning.finetune import finetune
from electra.finetuning.options import FinetuneOptions
from electra.finetuning.setup import prepare_finetuning
from electra.runs.journal import read
from electra.runs.run_dir import METRICS
from electra.tasks import find_task
from electra.tasks.features import Features
from electra.tasks.glue import available_tasks
from electra.tasks.models import RESULTS, model_folder

GLUE_6 = ("cola", "sst-2", "mrpc", "sts-b", "qnli", "rte")
LOGGED = 50  # steps: what a Trainer logs by, and we
Marks = list[tuple[int, float]]  # steps done, and when


def main(arguments: Sequence[str] | None = None) -> None:
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
        "--place", type=Path, help="where GLUE's runs are kept; without it, a temporary folder"
    )
    parser.add_argument("--quick", action="store_true", help="a few steps throughout: does it run?")
    parser.add_argument(
        "--output", help="where to keep the results, as JSON; a part that is there already stays"
    )
    options = parser.parse_args(arguments)
    check_counts(parser, options, "repeats", "seeds", "at_once")
    if "compare" in options.only and not options.quick and options.steps < 2 * LOGGED:
        parser.error(
            f"--steps {options.steps}: the clock runs from the first logged step to the last, and "
            "every "
            f"{LOGGED}th is logged, so at least {2 * LOGGED} are needed"
        )
    model_folder(options.model)  # a wrong name should not show after minutes
    if options.data and "glue" in options.only:
        check_glue(options.data)
    if "compare" in options.only and importlib.util.find_spec("accelerate") is None:
        raise UserError(
            "transformers' Trainer needs accelerate: pip install -e '.[benchmarks]', or pass "
            "--only glue"
        )
    earlier = Path(options.output) if options.output else None
    found: dict[str, Any] = (
        json.loads(earlier.read_text(encoding="utf8")) if earlier and earlier.exists() else {}
    )
    found.pop("made", None)
    for part in options.only:
        for values in PARTS[part](options, found):
            found[part] = values
            if options.output:
                write_result(options.output, found)
    print("\n" + "\n\n".join(table(found) for table in finetuning_tables.TABLES))


# ---- against the Trainer -------------------------------------------------------------------------


def compare(options: argparse.Namespace, found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields what is known so far, after every round."""
    entries: dict[str, Any] = dict(found.get("compare", {}))
    steps, every = (4, 2) if options.quick else (options.steps, LOGGED)
    with tempfile.TemporaryDirectory() as place:
        for name, source in sources(options, Path(place)).items():
            rounds: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
            entries[name] = {
                "rounds": rounds,
                "batch_size": BATCH,
                "steps": steps,
                "made": provenance(),
            }
            for repeat in range(options.repeats + 1):
                for (
                    side,
                    work,
                ) in SIDES.items():  # in turn, so that a slow moment of the machine hits all
                    run = Path(place) / f"{name.replace('/', '-')}-{side}-{repeat}"
                    measured = rate(
                        work(
                            options.model,
                            source,
                            run,
                            steps=steps if repeat else 2 * every,
                            every=every,
                            seed=repeat,
                        )
                    )
                    if repeat:  # the first warms up
                        rounds[side].append(measured)
                        print(
                            f"{name}, {side}: {measured['examples_per_second']:,.0f} examples/s",
                            flush=True,
                        )
                if repeat:
                    yield entries


def sources(options: argparse.Namespace, place: Path) -> dict[str, dict[str, Any]]:
    """What `finetune` is told of each task's data, by the name that the table shows."""
    if options.data:
        return {task: {"task": task, "data": options.data} for task in ("glue/sst-2", "glue/qnli")}
    texts = place / "texts.csv"
    write_texts(texts, 64 if options.quick else BATCH * options.steps)
    return {"texts of 5 to 120 words": {"task": "classify", "train": [texts], "dev": [texts]}}


def rate(marks: Marks) -> dict[str, float]:
    (first, then), *_, (last, now) = marks
    return {"examples_per_second": BATCH * (last - first) / (now - then)}


def ours(
    model: Path, source: dict[str, Any], run: Path, *, steps: int, every: int, seed: int
) -> Marks:
    finetune(model, output_dir=run, quiet=True, seed=seed, flags=flags(steps, every), **source)
    return [
        (entry["step"], entry["time"])
        for entry in read(run / f"seed-{seed}" / METRICS)
        if "tokens_per_second" in entry
    ]


def flags(steps: int, every: int) -> list[str]:
    return (
        f"--max-steps {steps} --logging-steps {every} --max-train-examples {steps * BATCH} "
        f"--batch-size {BATCH}"
    ).split()


def trainer(
    model: Path,
    source: dict[str, Any],
    run: Path,
    *,
    steps: int,
    every: int,
    seed: int,
    sampling: str,
) -> Marks:
    from transformers import AutoTokenizer, TrainerCallback

    folder = model_folder(model)
    rows = encoded(the_same_rows(model, source, steps, every))
    marks: Marks = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_log(self, _: Any, state: Any, __: Any, logs: dict[str, Any], **___: Any) -> None:
            if "loss" in logs:  # not the summary at the end
                marks.append((state.global_step, time.time()))

    on_gpu = torch.cuda.is_available()
    build_trainer(
        folder,
        rows,
        AutoTokenizer.from_pretrained(folder),
        place=run,
        batch_size=BATCH,
        sampling=sampling,
        seed=seed,
        callbacks=[Clock()],
        max_steps=steps,
        logging_steps=every,
        bf16=on_gpu,
        use_cpu=not on_gpu,
    ).train()
    return marks


def the_same_rows(model: Path, source: dict[str, Any], steps: int, every: int) -> Features:
    task = find_task(source["task"])
    given = {name: value for name, value in source.items() if name != "task"}
    options = FinetuneOptions(**given, flags=flags(steps, every))
    return prepare_finetuning(model, task, options, say=ignore).train


def encoded(rows: Features) -> list[dict[str, Any]]:
    """One dictionary a row, as the Trainer's collator takes them."""
    found = []
    for n in range(len(rows)):
        ids = rows.input_ids[rows.offsets[n] : rows.offsets[n + 1]].tolist()
        second = int(rows.second_starts[n])
        found.append(
            {
                "input_ids": ids,
                "token_type_ids": [0] * second + [1] * (len(ids) - second),
                "attention_mask": [1] * len(ids),
                "labels": int(rows.row_labels["target"][n]),
            }
        )
    return found


SIDES: dict[str, Callable[..., Marks]] = {
    "trainer": partial(trainer, sampling="random"),
    "trainer_grouped": partial(trainer, sampling="group_by_length"),
    "ours": ours,
}


# ---- six tasks -----------------------------------------------------------------------------------


def glue(options: argparse.Namespace, found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields once, when all is done: a part of it would not say how long it takes."""
    if not options.data:
        print("glue is left out: name GLUE's folder with --data", flush=True)
        return
    with nullcontext(options.place) if options.place else tempfile.TemporaryDirectory() as place:
        note = found_there(Path(place), options.seeds)
        began = time.perf_counter()
        with ThreadPoolExecutor(
            options.at_once
        ) as workers:  # they wait for processes; the longest tasks first
            order = sorted(GLUE_6, key=lambda task: task not in ("qnli", "sst-2"))
            done = dict(
                zip(order, workers.map(partial(tuned, options, Path(place)), order), strict=True)
            )
        minutes = (time.perf_counter() - began) / 60
    yield {
        "seeds": options.seeds,
        "at_once": options.at_once,
        "minutes": minutes,
        "tasks": {task: done[task] for task in GLUE_6},
        **({"note": note} if note else {}),
        "made": provenance(),
    }


def check_glue(data: str) -> None:
    """Known before the first minute of work, not after the last."""
    _, missing = available_tasks(data)
    if lacking := [task for task in GLUE_6 if f"glue/{task}" in missing]:
        raise UserError(
            f"{data}: no training and dev files of {', '.join(lacking)}; six tasks are needed: "
            f"{', '.join(GLUE_6)}"
        )


def found_there(place: Path, seeds: int) -> str:
    """What has to be said with the minutes, when they are not those of all the work."""
    begun = sum(
        (place / task / f"seed-{seed}").exists() for task in GLUE_6 for seed in range(seeds)
    )
    if not begun:
        return ""
    return f"{begun} of {seeds * len(GLUE_6)} runs had been begun earlier; the minutes count this start alone"


def tuned(options: argparse.Namespace, place: Path, task: str) -> dict[str, Any]:
    few = ["--max-steps", "2", "--max-train-examples", "64"] if options.quick else []
    subprocess.run(
        [
            sys.executable,
            "-m",
            "electra",
            "finetune",
            str(options.model),
            "--task",
            f"glue/{task}",
            "--data",
            options.data,
            "--output-dir",
            str(place / task),
            "--seeds",
            str(options.seeds),
            "--keep",
            "best",
            "--quiet",
            *few,
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    kept = json.loads((place / task / RESULTS).read_text(encoding="utf8"))
    print(f"{task}: {kept['metric']} {kept['median']:.4f}, median of {options.seeds}", flush=True)
    return {
        "metric": kept["metric"],
        "median": kept["median"],
        "scores": [run["score"] for run in kept["runs"]],
        "steps": kept["runs"][0]["steps"],
        "seconds": [run["seconds"] for run in kept["runs"]],
        "examples": kept["made"]["data"]["train"]["examples"],
        "settings_hash": kept["made"]["settings_hash"],
    }


PARTS = {"compare": compare, "glue": glue}


if __name__ == "__main__":
    run_main(main)
