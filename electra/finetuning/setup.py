"""What is to be fine-tuned: a model, a task, its data and settings, all of it checked before any
work begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from electra import __version__
from electra.config import UserError
from electra.console import redirect_warnings
from electra.data.shuffle import random_key
from electra.data.tables import Table, find_table
from electra.data.wordpiece import WordPiece
from electra.finetuning.feature_cache import CACHED_FROM, cache_folder, cached, keep, source_of
from electra.finetuning.recipe import FinetuneConfig
from electra.model.huggingface import Loaded
from electra.model.layers import layer_width
from electra.model.shape import EncoderShape
from electra.settings import as_dict, fingerprint
from electra.tasks.features import Features
from electra.tasks.models import load_pretrained, weights_hash
from electra.tasks.task import Files


@dataclass(frozen=True)
class FinetuneSetup:
    """Everything about a fine-tuning but its seed."""

    model: Path
    loaded: Loaded | None  # what the folder gave; None: random weights
    shape: EncoderShape
    tokenizer: WordPiece
    task: Any
    config: FinetuneConfig
    recipe: str
    train: Features
    dev: Mapping[str, tuple[Sequence[Any], Features]]
    data: Mapping[str, Any]  # which files, how many examples

    @property
    def weights(self) -> str:
        return "random" if self.loaded is None else weights_hash(self.model)

    def identity(self) -> dict[str, Any]:
        """What makes it this fine-tuning and no other; where model and data lie does not."""
        model = {
            "weights": self.weights,
            "shape": as_dict(self.shape),
            "tokenizer": self.tokenizer.fingerprint,
        }
        return {
            "model": model,
            "task": self.task.settings(),
            "data": self.data,
            "config": as_dict(self.config),
        }


def prepare_finetuning(
    model: str | Path,
    task: Any,
    load: Callable[[EncoderShape], FinetuneConfig],
    *,
    recipe: str,
    data: str | None = None,
    train: Sequence[str | Path] = (),
    dev: Sequence[str | Path] = (),
    random_weights: bool = False,
    say: Callable[[str], None],
) -> FinetuneSetup:
    """Read, check and encode everything. `load` gives the settings for a model of this shape."""
    source = load_pretrained(model, random_weights=random_weights)
    tokenizer, shape = source.tokenizer, source.encoder.shape
    settings = load(shape)
    if settings.length > shape.positions:
        raise UserError(
            f"--length {settings.length}: the model has only {shape.positions} positions; use that "
            "or less"
        )
    layer_width(
        task.frozen or "last", shape.width, layers=shape.layers
    )  # refuses layers that are not there
    with redirect_warnings(say):
        files = given_files(task, data, train=train, dev=dev)
    task, examples, parts = read(task, files, say)
    examples = chosen(examples, settings.max_train_examples)
    if task.description:
        say(f"{task.name}: {task.description}")
    with redirect_warnings(say):
        encoded = {
            part: encode(
                task, found, tokenizer, settings, training=False, tables=files.dev[part], say=say
            )
            for part, found in parts.items()
        }
        rows = encode(
            task, examples, tokenizer, settings, training=True, tables=files.train, say=say
        )
    if not len(rows):
        raise UserError(
            f"{names(files.train)}: none of its {len(examples):,} examples can be learnt from in "
            "rows of "
            f"{settings.length} tokens; raise --length"
        )
    return FinetuneSetup(
        model=source.folder,
        loaded=source.loaded,
        shape=shape,
        tokenizer=tokenizer,
        task=task,
        config=settings,
        recipe=recipe,
        train=rows,
        dev={part: (found, encoded[part]) for part, found in parts.items()},
        data={
            "train": described(files.train, len(examples)),
            "dev": {part: described(files.dev[part], len(found)) for part, found in parts.items()},
        },
    )


def read(
    task: Any, files: Files, say: Callable[[str], None]
) -> tuple[Any, list[Any], dict[str, list[Any]]]:
    """The task with what training data taught it, the training examples, and those of each part of
    the dev data.
    """
    with redirect_warnings(say):
        examples = list(task.read(files.train, labelled=True))
        if not examples:
            raise UserError(f"{names(files.train)}: no examples to train on")
        task = task.fit_labels(examples)
        parts = {part: list(task.read(tables, labelled=True)) for part, tables in files.dev.items()}
    for part, found in parts.items():
        if not found:
            raise UserError(f"{names(files.dev[part])}: no examples; the {part} set is empty")
        task.check(found)
    return task, examples, parts


def given_files(
    task: Any, data: str | None, *, train: Sequence[str | Path], dev: Sequence[str | Path]
) -> Files:
    """Named files win over those that a data folder holds."""
    found = task.locate(data) if data else Files(train=(), dev={}, test={})
    if train:
        found = replace(found, train=tuple(find_table(path) for path in train))
    if dev:
        found = replace(found, dev={"dev": tuple(find_table(path) for path in dev)})
    if not found.train:
        raise UserError(
            f"{data or task.name}: no training data; name files with --train"
            + ("" if data else ", or a folder that holds them with --data")
        )
    if not found.dev:
        raise UserError(f"{data or task.name}: no dev data to score on; name a file with --dev")
    return found


def chosen(examples: list[Any], most: int | None) -> list[Any]:
    """A random part of fixed content, the same for every seed, in the order of the file."""
    if most is None or most >= len(examples):
        return examples
    picked = np.random.Generator(np.random.PCG64(random_key("examples"))).permutation(
        len(examples)
    )[:most]
    return [examples[i] for i in sorted(picked)]


def described(tables: Sequence[Table], examples: int) -> dict[str, Any]:
    return {"examples": examples, "files": [each.fingerprint() for each in tables]}


def names(tables: Sequence[Table]) -> str:
    return ", ".join(map(str, tables))


# ---- encoding ------------------------------------------------------------------------------------


def encode(
    task: Any,
    examples: Sequence[Any],
    tokenizer: WordPiece,
    settings: FinetuneConfig,
    *,
    training: bool,
    tables: Sequence[Table],
    say: Callable[[str], None],
) -> Features:
    """Features, from the cache when the same examples were cut the same way before. Says what did
    not fit.
    """
    path = None
    if len(examples) >= CACHED_FROM and (code := source_of(task)):
        path = cache_folder() / (
            fingerprint(
                {
                    "version": __version__,
                    "code": code,
                    "task": task.settings(),
                    "words": tokenizer.fingerprint,
                    "length": settings.length,
                    "training": training,
                    "most": settings.max_train_examples,
                    "files": [each.fingerprint() for each in tables],
                }
            )
            + ".safetensors"
        )
    features = cached(path) if path else None
    if features is None:
        features = task.features(examples, tokenizer, length=settings.length, training=training)
        if path:
            keep(features, path)
    cut = np.unique(features.examples[features.truncated])
    if len(cut):
        first = getattr(examples[cut[0]], "where", "")
        if settings.too_long == "refuse":
            more = f", as {len(cut) - 1:,} more are" if len(cut) > 1 else ""
            raise UserError(
                f"{first}: longer than {settings.length} tokens{more}; raise --length, shorten the "
                "text, or "
                "let it be cut with --too-long cut"
            )
        say(
            f"{names(tables)}: {len(cut):,} of {len(examples):,} texts are longer than "
            f"{settings.length} tokens and were "
            f"cut, {first} for one"
        )
    return features
