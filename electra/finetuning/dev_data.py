"""The dev data of a fine-tuning: a share of the training data, and never the same data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import NoReturn

from electra.config import UserError
from electra.data.shuffle import permutation
from electra.data.sources import warn
from electra.data.tables import Table
from electra.tasks.conll import Sentence
from electra.tasks.task import AnyTask, Example, Files

FEW_EXAMPLES = 10  # fewer to score on are warned of
# The share of dev examples that are also trained on from which this is warned of: short texts
# repeat by chance, in GLUE's own files too.
MIN_SHARED = 0.1
PLACE = ("where", "id", "row")  # fields of examples that say nothing of their content


def split_off_dev(
    task: AnyTask, examples: Sequence[Example], share: float
) -> tuple[list[Example], list[Example]]:
    """Return the examples to train on and those to score on, each in the order of the file.

    Every label has the same share in both. The split is the same for every seed. A label with one
    example stays in training, where the model can learn it.
    """
    if len(examples) == 1:
        refuse_only_example(examples[0], share)
    labels = [task.stratum(example) for example in examples]
    counts = Counter(labels)
    count = len(examples)
    shuffled = permutation(count, "dev share")
    candidates = [int(index) for index in shuffled if len(counts) == 1 or counts[labels[index]] > 1]
    # Sorted by label, every (1 / share)-th is taken: at least one of each two neighbours stays.
    candidates.sort(key=lambda index: labels[index])
    chosen = set()
    for rank, index in enumerate(candidates):
        if int((rank + 0.5) * share + 0.5) > int((rank - 0.5) * share + 0.5):
            chosen.add(index)
    if not candidates:
        raise UserError(
            f"--dev-share {share:g}: each of the {count:,} training examples has a label of its "
            "own, and one stays in training; check --label, or name a file with --dev"
        )
    if not chosen:
        raise UserError(
            f"--dev-share {share:g}: no dev example in {count:,} training examples; raise it, or "
            "name a file with --dev"
        )
    train = [example for index, example in enumerate(examples) if index not in chosen]
    return train, [examples[index] for index in sorted(chosen)]


def refuse_only_example(example: Example, share: float) -> NoReturn:
    named, remedy = "one example", "add examples"
    if isinstance(example, Sentence):
        named = f"one sentence of {len(example.words):,} words ({example.where})"
        remedy = "add sentences (in CoNLL columns a blank line ends a sentence)"
    raise UserError(
        f"--dev-share {share:g}: the training data is {named}, which cannot be divided; {remedy}, "
        "or name a file with --dev"
    )


def refuse_same_data(files: Files) -> None:
    """Raise UserError where a file to score on, or a copy of it, is also trained on."""
    for tables in files.dev.values():
        for table in tables:
            for train in files.train:
                if is_same_data(table, train):
                    raise UserError(
                        f"{table} is the same data as {train}, which is trained on: its score "
                        "would show what was memorised. Name another file with --dev, set a part "
                        "of the training data aside with --dev-share 0.1, or add --dev-on-train if "
                        "that is what you want to see"
                    )


def is_same_data(one: Table, other: Table) -> bool:
    """Return whether two tables have the same content. Files of different sizes are not read."""
    if one.rows is not None and other.rows is not None:
        return one.hash_rows() == other.hash_rows()
    if (one.format == "hub") != (other.format == "hub") or one.split != other.split:
        return False
    if one.format == "hub":
        return one.fingerprint() == other.fingerprint()
    if one.source.size != other.source.size or not one.source.size:
        return False
    if one.source.path.resolve() == other.source.path.resolve():
        return True
    name = {"name": ""}
    return one.fingerprint() | name == other.fingerprint() | name


def warn_of_few(dev: Mapping[str, Sequence[Example]]) -> None:
    """Warn of dev data that is too small to compare models on."""
    for name, examples in dev.items():
        if len(examples) < FEW_EXAMPLES:
            warn(
                f"so few {name} examples ({len(examples)}) hardly rank anything; add some, or "
                "score on all of the training data in turn with --folds 5"
            )


def warn_of_shared(train: Sequence[Example], dev: Mapping[str, Sequence[Example]]) -> None:
    """Warn of dev examples whose input and label are also those of a training example."""
    trained_on = {content(example) for example in train}
    for name, examples in dev.items():
        shared = sum(content(example) in trained_on for example in examples)
        if shared and shared >= MIN_SHARED * len(examples):
            warn(
                f"{shared:,} of {len(examples):,} {name} examples are also trained on: their score "
                "shows what was memorised. Remove them from the training or from the dev data"
            )


def content(example: Example) -> int:
    """Return a hash of an example without its place."""
    if not is_dataclass(example):
        return hash(repr(example))
    return hash(repr([getattr(example, e.name) for e in fields(example) if e.name not in PLACE]))
