"""k-fold cross-validation: split the training data, and combine the results of the folds."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from electra import atomic
from electra.config import UserError
from electra.data.shuffle import permutation
from electra.finetuning.results import FOLDS, SeedResult
from electra.finetuning.setup import DevSplit, FinetuneSetup
from electra.tasks.class_scores import ClassScores, average_scores
from electra.tasks.features import Array
from electra.tasks.inference import add_input_columns
from electra.tasks.task import AnyTask, Example

PREDICTIONS = "predictions-folds.jsonl"  # of every training example, by the fold that held it out


@dataclass(frozen=True)
class Fold:
    """One fold: the examples it holds out, and the setup that trains on the others."""

    number: int  # from 1
    held_out: Array  # indices of examples, in the order of the file
    setup: FinetuneSetup


def assign_folds(task: AnyTask, examples: Sequence[Example], folds: int) -> Array:
    """Return the number of the fold, from 0, that holds each example out.

    Every label has the same share in all folds, as far as it divides. They are the same for every
    seed.
    """
    count = len(examples)
    by_label = sorted(permutation(count, "folds"), key=lambda index: task.stratum(examples[index]))
    numbers = np.empty(count, dtype=np.int64)
    numbers[by_label] = np.arange(count) % folds
    return numbers


def build_folds(setup: FinetuneSetup, say: Callable[[str], None]) -> list[Fold]:
    """Split the training examples of a setup into folds, and encode each."""
    count = setup.config.folds
    if count is None:
        return []
    if setup.search is not None:
        raise UserError(
            f"--folds {count} does not go with --search, which compares settings on one dev set; "
            "search with --dev-share 0.1 first, and give the settings that it finds to --folds"
        )
    examples = setup.train_examples
    if len(examples) < count:
        raise UserError(f"--folds {count}: more than the {len(examples)} training examples")
    warn_rare(setup.task, examples, count, say)
    numbers = assign_folds(setup.task, examples, count)
    return [build_fold(setup, np.flatnonzero(numbers == n), n + 1) for n in range(count)]


def warn_rare(
    task: AnyTask, examples: Sequence[Example], folds: int, say: Callable[[str], None]
) -> None:
    """Print the labels that some folds cannot hold out."""
    counts = Counter(task.stratum(example) for example in examples)
    rare = [label for label, count in counts.items() if label and count < folds]
    if rare:
        say(
            f"warning: label {rare[0]!r} has {counts[rare[0]]} examples, fewer than {folds} folds "
            f"({len(rare)} such labels); some folds are scored without it"
        )


def build_fold(setup: FinetuneSetup, held_out: Array, number: int) -> Fold:
    """Return the fold that is scored on some examples and trained on all others."""
    examples, chosen = setup.train_examples, set(held_out.tolist())
    train = [example for index, example in enumerate(examples) if index not in chosen]
    dev = [examples[index] for index in held_out]
    task, length = setup.task.fit_weights(train), setup.config.length
    dev_features = task.features(dev, setup.tokenizer, length=length, training=False)
    fold = replace(
        setup,
        task=task,
        train=task.features(train, setup.tokenizer, length=length, training=True),
        dev={"dev": DevSplit(dev, dev_features)},
        data={**setup.data, "train": {**setup.data["train"], "examples": len(train)}},
    )
    return Fold(number, held_out, fold)


# ---- results -------------------------------------------------------------------------------------


def combine_folds(
    setup: FinetuneSetup, folds: Sequence[Fold], results: Sequence[SeedResult]
) -> FinetuneSetup:
    """Return the setup of the model on all data, with the mean of the folds as its scores.

    Where early stopping chose the steps of the folds, it trains for their mean share of the steps.
    """
    scores, parts = {}, []
    for metric in results[0].scores["dev"]:
        scores[metric] = statistics.fmean(result.scores["dev"][metric] for result in results)
    for fold, result in zip(folds, results, strict=True):
        parts.append(describe_fold(fold, result))
    classes = {}
    if mean := mean_classes([result.classes.get("dev", []) for result in results]):
        classes[FOLDS] = mean
    combined = replace(
        results[0],
        score=statistics.fmean(result.score for result in results),
        scores={FOLDS: scores},
        baseline=statistics.fmean(result.baseline for result in results),
        classes=classes,
        selected_step=None,
        folds=parts,
    )
    return replace(setup, cross_validated=combined, stop_ratio=mean_stop_ratio(folds, results))


def mean_stop_ratio(folds: Sequence[Fold], results: Sequence[SeedResult]) -> float:
    """Return the mean share of the steps after which the weights of the folds were chosen."""
    ratios = []
    for fold, result in zip(folds, results, strict=True):
        if result.selected_step is not None:
            steps = fold.setup.config.steps(len(fold.setup.train))
            ratios.append(result.selected_step / steps)
    if not ratios:
        return 1.0
    return statistics.fmean(ratios)


def describe_fold(fold: Fold, result: SeedResult) -> dict[str, Any]:
    """Return what results.json says of a fold."""
    return {
        "fold": fold.number,
        "train": fold.setup.data["train"]["examples"],
        "dev": len(fold.held_out),
        "score": result.score,
        "scores": result.scores["dev"],
        "steps": result.steps,
        "selected_step": result.selected_step,
    }


def mean_classes(folds: Sequence[Sequence[ClassScores]]) -> list[ClassScores]:
    """Return the mean over folds of each score of each class, and the sum of the examples."""
    means = average_scores(folds, statistics.fmean)
    for number, scores in enumerate(means):
        scores["support"] = sum(fold[number]["support"] for fold in folds)
    return means


def write_out_of_fold(
    setup: FinetuneSetup, folds: Sequence[Fold], output_dir: Path, seed: int
) -> None:
    """Write the prediction of every training example, by the model that did not train on it."""
    rows = {}
    for example in setup.task.read(setup.tables, labelled=False):
        rows[example.where] = getattr(example, "row", None)
    lines = [""] * len(setup.train_examples)
    for fold in folds:
        path = output_dir / f"fold-{fold.number}" / f"seed-{seed}" / "predictions-dev.jsonl"
        records = path.read_text(encoding="utf8").splitlines()
        for index, line in zip(fold.held_out, records, strict=True):
            row = rows.get(setup.train_examples[index].where)
            record = add_input_columns(json.loads(line), row) | {"fold": fold.number}
            lines[index] = json.dumps(record, ensure_ascii=False, default=str) + "\n"
    folder = output_dir / f"seed-{seed}"
    atomic.make_folder(folder)
    atomic.write(folder / PREDICTIONS, "".join(lines))
