"""Score GLUE tasks from random weights and from the quickstart's model.

    python -m benchmarks.sanity --glue DIR --quickstart runs/quickstart

DIR holds CoLA/, RTE/ and SST-2/ as GLUE distributes them. On a CPU add --max-train-examples 4000.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from benchmarks.harness import Result, build_parser, run_main, write_result

TASKS = ("glue/sst-2", "glue/rte", "glue/cola")
KEYS = ("metric", "split", "baseline", "median", "mean", "sd", "best")  # of a summary


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--glue", required=True, help="GLUE's folder")
    parser.add_argument(
        "--quickstart", default="runs/quickstart", help="the run of `electra quickstart`"
    )
    parser.add_argument("--output-dir", type=Path, default=Path("runs/sanity"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--max-train-examples", type=int)
    parser.add_argument("--result", type=Path, default=Path("benchmarks/results/sanity.json"))
    options = parser.parse_args()
    small = save_random_small(options.quickstart, options.output_dir / "small")
    tiny = Path(options.quickstart)
    arms: dict[str, dict[str, Result]] = {
        "small, random weights": finetune_tasks(options, small, "small, random weights"),
        "tiny, random weights": finetune_tasks(options, tiny, "tiny, random weights"),
        "tiny of the quickstart": finetune_tasks(options, tiny, "tiny of the quickstart"),
    }
    write_result(
        options.result,
        {"seeds": options.seeds, "max_train_examples": options.max_train_examples, "arms": arms},
    )
    for arm, tasks in arms.items():
        cells = [
            f"{task} {100 * entry['median']:.1f} (baseline {100 * entry['baseline']:.1f})"
            for task, entry in tasks.items()
        ]
        print(f"{arm:<24}", "  ".join(cells))


def save_random_small(quickstart: str, folder: Path) -> Path:
    """Save the paper's Small before pre-training, with the quickstart's tokenizer."""
    from electra.data.wordpiece import WordPiece
    from electra.model import huggingface
    from electra.model.electra_encoder import ElectraEncoder
    from electra.model.networks import Discriminator
    from electra.pretraining.recipe import load_recipe
    from electra.tasks.models import model_folder

    tokenizer = WordPiece.load(model_folder(quickstart))
    network = Discriminator(ElectraEncoder(load_recipe("small").encoder, vocabulary=tokenizer.size))
    huggingface.save(network, folder, role="discriminator", tokenizer_files=tokenizer.copy_to)
    return folder


def finetune_tasks(options: argparse.Namespace, model: Path, arm: str) -> dict[str, Result]:
    return {task: finetune_task(options, model, task, arm=arm) for task in TASKS}


def finetune_task(options: argparse.Namespace, model: Path, task: str, *, arm: str) -> Result:
    """Return the scores of one arm on one task; an arm's name says if its weights are random."""
    from electra.finetuning.finetune import finetune

    flags: list[str] = []
    if options.max_train_examples:
        flags = ["--max-train-examples", str(options.max_train_examples)]
    arm_folder = options.output_dir / arm.replace(", ", "-").replace(" ", "-")
    summary = finetune(
        model,
        task,
        output_dir=arm_folder / task.removeprefix("glue/"),
        data=options.glue,
        seeds=options.seeds,
        flags=flags,
        keep="best",
        random_weights=arm.endswith("random weights"),
    )
    if summary is None:
        raise SystemExit("stopped early; the same command continues")
    values = asdict(summary)
    return {
        **{key: values[key] for key in KEYS},
        "scores": [run.score for run in summary.runs],
        "settings_hash": values["made"]["settings_hash"],
        "recipe": values["made"]["recipe"],
        "examples": values["made"]["data"]["train"]["examples"],
    }


if __name__ == "__main__":
    run_main(main)
