"""A sanity table: GLUE tasks from random weights and from the quickstart's model, with nothing but
the data at hand.

    python -m benchmarks.sanity --glue DIR --quickstart runs/quickstart

DIR holds CoLA/, RTE/ and SST-2/ as GLUE distributes them. On a CPU add --max-train-examples 4000.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.harness import build_parser, keep, run_main

TASKS = ("glue/sst-2", "glue/rte", "glue/cola")


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
    asked = parser.parse_args()
    arms = {
        "small, random weights": (random_small(asked.quickstart, asked.output_dir / "small"), True),
        "tiny, random weights": (Path(asked.quickstart), True),
        "tiny of the quickstart": (Path(asked.quickstart), False),
    }
    found = {
        arm: {task: tuned(asked, model, task, arm=arm, random_weights=random) for task in TASKS}
        for arm, (model, random) in arms.items()
    }
    keep(
        asked.result,
        {"seeds": asked.seeds, "max_train_examples": asked.max_train_examples, "arms": found},
    )
    for arm, tasks in found.items():
        print(
            f"{arm:<24}",
            "  ".join(
                f"{task} {100 * each['median']:.1f} (baseline {100 * each['baseline']:.1f})"
                for task, each in tasks.items()
            ),
        )


def random_small(quickstart: str, folder: Path) -> Path:
    """The paper's Small as it is before pre-training, with the quickstart's tokenizer."""
    from electra.data.wordpiece import WordPiece
    from electra.model import huggingface
    from electra.model.encoder import Encoder
    from electra.model.networks import Discriminator
    from electra.pretraining.recipe import load_recipe
    from electra.tasks.models import model_folder

    words = WordPiece.load(model_folder(quickstart))
    network = Discriminator(Encoder(load_recipe("small").encoder, vocabulary=words.size))
    huggingface.save(network, folder, role="discriminator", tokenizer_files=words.copy_to)
    return folder


def tuned(
    asked: argparse.Namespace, model: Path, task: str, *, arm: str, random_weights: bool
) -> dict[str, Any]:
    from electra.finetuning.finetune import finetune

    flags = (
        ["--max-train-examples", str(asked.max_train_examples)] if asked.max_train_examples else []
    )
    place = asked.output_dir / arm.replace(", ", "-").replace(" ", "-") / task.removeprefix("glue/")
    summary = finetune(
        model,
        task,
        output_dir=place,
        data=asked.glue,
        seeds=asked.seeds,
        flags=flags,
        keep="best",
        random_weights=random_weights,
    )
    if summary is None:
        raise SystemExit("stopped early; the same command goes on")
    found = asdict(summary)
    return {
        key: found[key] for key in ("metric", "split", "baseline", "median", "mean", "sd", "best")
    } | {
        "scores": [run.score for run in summary.runs],
        "settings_hash": found["made"]["settings_hash"],
        "recipe": found["made"]["recipe"],
        "examples": found["made"]["data"]["train"]["examples"],
    }


if __name__ == "__main__":
    run_main(main)
