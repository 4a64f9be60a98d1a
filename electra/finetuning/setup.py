"""Prepare a fine-tuning: read, check and encode its model, task, data and settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from electra.config import UserError
from electra.console import redirect_warnings
from electra.data.shuffle import random_key, shuffle_indices
from electra.data.sources import warn
from electra.data.tables import Table, find_table
from electra.data.wordpiece import WordPiece
from electra.finetuning.dev_data import (
    refuse_same_data,
    split_off_dev,
    warn_of_few,
    warn_of_shared,
)
from electra.finetuning.feature_cache import FeatureEncoder
from electra.finetuning.options import FinetuneOptions
from electra.finetuning.recipe import FinetuneConfig, given_settings, load_finetune_config
from electra.finetuning.results import SeedResult
from electra.finetuning.search_plan import SearchPlan, plan_search
from electra.model.card_content import NOTHING_RECORDED, CardContent
from electra.model.huggingface import LoadReport
from electra.model.layers import layer_width
from electra.model.shape import EncoderShape
from electra.settings import as_dict
from electra.tasks.classification_heads import max_labels
from electra.tasks.classify import Classify
from electra.tasks.features import Features
from electra.tasks.models import load_pretrained, weights_hash
from electra.tasks.task import AnyTask, Example, Files

Tables = Mapping[str, Sequence[Table]]  # rows in memory instead of files: "train", "dev"
NO_TABLES: Tables = {}


@dataclass(frozen=True)
class DevSplit:
    """One part of the dev data: its examples and their features."""

    examples: Sequence[Example]
    features: Features


@dataclass(frozen=True)
class FinetuneSetup:
    """Everything about a fine-tuning except its seed."""

    model: Path
    loaded: LoadReport | None  # which tensors the folder filled; None: random weights
    shape: EncoderShape
    tokenizer: WordPiece
    task: AnyTask
    config: FinetuneConfig
    recipe: str
    train: Features
    dev: Mapping[str, DevSplit]  # the score of the first one counts
    data: Mapping[str, Any]  # files and numbers of examples
    card: CardContent = NOTHING_RECORDED
    train_examples: Sequence[Example] = ()
    tables: Sequence[Table] = ()  # the training data
    cross_validated: SeedResult | None = None  # what its folds scored, where there is no dev data
    stop_ratio: float = 1.0  # of the steps that are taken before training stops
    report: bool = True  # whether the analysis for the report is written, with texts of dev data
    search: SearchPlan | None = None
    found: Mapping[str, Any] | None = None  # by the search: all trials, and the best settings

    @property
    def weights(self) -> str:
        if self.loaded is None:
            return "random"
        return weights_hash(self.model)

    def identity(self) -> dict[str, Any]:
        """Return what two fine-tunings must share to be the same. Paths are no part of it."""
        model = {
            "weights": self.weights,
            "shape": as_dict(self.shape),
            "tokenizer": self.tokenizer.fingerprint,
        }
        identity = {
            "model": model,
            "task": self.task.settings(),
            "data": self.data,
            "config": as_dict(self.config),
        }
        if self.search is not None:
            identity["search"] = self.search.identity()
        return identity


def prepare_finetuning(
    model: str | Path,
    task: AnyTask,
    options: FinetuneOptions,
    *,
    tables: Tables = NO_TABLES,
    say: Callable[[str], None],
) -> FinetuneSetup:
    """Read, check and encode everything that a fine-tuning needs."""
    source = load_pretrained(model, random_weights=options.random_weights)
    config = resolve_config(task, options, source.encoder.shape)
    task = configure_task(task, config)
    with redirect_warnings(say):
        files = find_files(task, options, tables, config)
    task, examples, dev = read_data(task, files, config, options, say)
    task = weigh_classes(task, examples, say)
    warn_of_many_labels(task, source.encoder.shape, say)
    config = resolve_epochs(config, len(examples), say)
    encoder = FeatureEncoder(task, source.tokenizer, config, say)
    with redirect_warnings(say):
        splits = encode_dev(encoder, files, dev)
        train = encoder.encode(examples, files.train, training=True)
    check_learnable(train, files, config, examples=len(examples))
    return FinetuneSetup(
        model=source.folder,
        loaded=source.loaded,
        shape=source.encoder.shape,
        tokenizer=source.tokenizer,
        task=task,
        config=config,
        recipe=options.recipe,
        train=train,
        dev=splits,
        data=describe_data(files, examples, dev),
        train_examples=examples,
        tables=files.train,
        card=options.card,
        report=options.report,
        search=resolve_search(config, options),
    )


def resolve_epochs(
    config: FinetuneConfig, examples: int, say: Callable[[str], None]
) -> FinetuneConfig:
    """Return the settings with the number of epochs for so many examples; say where it is more."""
    resolved = config.for_examples(examples)
    if resolved.epochs > config.epochs and config.max_steps is None:
        say(
            f"{examples:,} training examples are few: {resolved.epochs:g} epochs instead of "
            f"{config.epochs:g}; --epochs sets another number"
        )
    return resolved


def weigh_classes(
    task: AnyTask, examples: Sequence[Example], say: Callable[[str], None]
) -> AnyTask:
    """Return the task with the weights of its classes; print what was found in the data."""
    task = task.fit_weights(examples)
    for note in (task.description, task.weights_note):
        if note:
            say(f"{task.name}: {note}")
    return task


def warn_of_many_labels(task: AnyTask, shape: EncoderShape, say: Callable[[str], None]) -> None:
    """Warn, before training, of more labels than transformers' class can hold."""
    if not isinstance(task, Classify) or task.frozen or shape.causal:
        return
    limit = max_labels(shape.family, shape.width)
    if task.num_outputs <= limit:
        return
    with redirect_warnings(say):
        warn(
            f"{task.num_outputs:,} labels are more than the {limit:,} that transformers' class "
            f"holds at width {shape.width}: `electra predict` will run this model, but neither "
            "transformers nor ONNX; a ModernBERT has no such limit"
        )


def encode_dev(
    encoder: FeatureEncoder, files: Files, dev: Mapping[str, Sequence[Example]]
) -> dict[str, DevSplit]:
    """Return the parts of the dev data with their features."""
    splits = {}
    for name, part in files.dev.items():
        splits[name] = DevSplit(dev[name], encoder.encode(dev[name], part, training=False))
    return splits


def check_learnable(
    features: Features, files: Files, config: FinetuneConfig, *, examples: int
) -> None:
    """Raise UserError where no training example leaves anything to learn from."""
    if not len(features):
        raise UserError(
            f"{join_names(files.train)}: none of its {examples:,} examples can be learnt from in "
            f"rows of {config.length} tokens; raise --length"
        )


def configure_task(task: AnyTask, config: FinetuneConfig) -> AnyTask:
    """Return the task with the settings that its model has to remember."""
    if config.too_long == "window":
        task = task.with_windows()
    assert config.pooling != "auto"  # `resolve_config` has decided
    return replace(task, pooling=config.pooling, conventions=config.conventions)


def resolve_config(task: AnyTask, options: FinetuneOptions, shape: EncoderShape) -> FinetuneConfig:
    """Load the settings for this task and a model of this shape, and check them against it."""
    config = load_finetune_config(
        options.recipe,
        shape=shape,
        kind=task.kind,
        task=task.name,
        frozen=bool(task.frozen),
        files=options.config,
        flags=options.flags,
    )
    if config.length > shape.positions:
        raise UserError(
            f"--length {config.length}: the model has only {shape.positions} positions; use that "
            "or less"
        )
    resolve_search(config, options)  # refuses a search with nothing to try before data are read
    # Refuses layers that the model does not have.
    layer_width(task.frozen or "last", shape.width, layers=shape.layers)
    return replace(config, pooling=resolve_pooling(task, config, shape))


def resolve_pooling(
    task: AnyTask, config: FinetuneConfig, shape: EncoderShape
) -> Literal["cls", "mean"]:
    """Return what stands for a row; refuse a mean where the task has no use for it, or transformers
    no place.
    """
    has_mean = task.pools and shape.family == "modernbert"
    if config.pooling == "auto":
        return "mean" if has_mean else "cls"
    if config.pooling == "cls" or has_mean:
        return config.pooling
    if not task.pools:
        raise UserError(
            f"--pooling {config.pooling}: {task.name} reads the vector of every token, and none "
            "for a whole row; leave it out"
        )
    raise UserError(
        "--pooling mean: transformers' ELECTRA classes read the vector of [CLS]; use cls, or a "
        "model of the modernbert family"
    )


def resolve_search(config: FinetuneConfig, options: FinetuneOptions) -> SearchPlan | None:
    """Return the plan of the search that was asked for, if any."""
    if options.search is None and options.search_minutes is None:
        return None
    given: dict[str, object] = {}
    for layer in given_settings(options.config, options.flags).values():
        given |= layer
    return plan_search(config, given, trainings=options.search, minutes=options.search_minutes)


def find_files(
    task: AnyTask,
    options: FinetuneOptions,
    tables: Tables = NO_TABLES,
    config: FinetuneConfig | None = None,
) -> Files:
    """Return the files of --data, except where --train, --dev or tables in memory replace them.

    With `dev_share` the files of the dev data are those of the training data; with `folds` there
    are none.
    """
    config = config or FinetuneConfig()
    dev_share = config.dev_share
    files = Files(train=(), dev={}, test={})
    if options.data:
        files = task.locate(options.data)
    if train := tables.get("train") or [find_table(path) for path in options.train]:
        files = replace(files, train=tuple(train))
    dev = tables.get("dev") or [find_table(path) for path in options.dev]
    if dev and dev_share:
        raise UserError(
            f"--dev-share {dev_share:g} takes the dev data from the training data; leave out --dev"
        )
    if dev:
        files = replace(files, dev={"dev": tuple(dev)})
    if dev_share:
        files = replace(files, dev={"dev": files.train})
    check_files(task, files, options, folds=config.folds)
    if not dev_share and not options.dev_on_train:
        refuse_same_data(files)
    return files


def check_files(
    task: AnyTask, files: Files, options: FinetuneOptions, *, folds: int | None
) -> None:
    """Raise UserError where there is nothing to train on or to score on."""
    if not files.train and options.data:
        raise UserError(f"{options.data}: no training data; name files with --train")
    if not files.train:
        raise UserError(
            f"{task.name}: no training data; name files with --train, or a folder that holds them "
            "with --data"
        )
    if folds and files.dev:
        names = join_names(next(iter(files.dev.values())))
        raise UserError(
            f"--folds {folds} takes the dev data from the training data; leave out {names}, and "
            "name files only with --train"
        )
    if not folds and not files.dev:
        raise UserError(
            f"{options.data or task.name}: no dev data to score on; name a file with --dev, set a "
            "part of the training data aside with --dev-share 0.1, or use all of it with --folds 5"
        )


def read_data(
    task: AnyTask,
    files: Files,
    config: FinetuneConfig,
    options: FinetuneOptions,
    say: Callable[[str], None],
) -> tuple[AnyTask, list[Example], dict[str, list[Example]]]:
    """Return what `read_examples` does, no more of it than is asked for; warn of poor dev data."""
    task, examples, dev = read_examples(task, files, say, dev_share=config.dev_share)
    examples = select_examples(examples, config.max_train_examples)
    dev = {name: select_examples(split, config.max_dev_examples) for name, split in dev.items()}
    if not options.dev_on_train:
        with redirect_warnings(say):
            warn_of_few(dev)
            warn_of_shared(examples, dev)
    return task, examples, dev


def read_examples(
    task: AnyTask, files: Files, say: Callable[[str], None], *, dev_share: float | None = None
) -> tuple[AnyTask, list[Example], dict[str, list[Example]]]:
    """Return the task with what it learnt from training data, the training and the dev examples."""
    with redirect_warnings(say):
        examples = list(task.read(files.train, labelled=True))
        if not examples:
            raise UserError(f"{join_names(files.train)}: no examples to train on")
        task = task.fit_labels(examples)
        if dev_share:
            examples, held_out = split_off_dev(task, examples, dev_share)
            return task, examples, {"dev": held_out}
        dev = {name: list(task.read(tables, labelled=True)) for name, tables in files.dev.items()}
        for name, split in dev.items():
            if not split:
                names = join_names(files.dev[name])
                raise UserError(f"{names}: no examples; the {name} set is empty")
            task.check(split)
    return task, examples, dev


def select_examples(examples: list[Example], count: int | None) -> list[Example]:
    """Return a random part of the examples, the same for every seed, in the order of the file."""
    if count is None or count >= len(examples):
        return examples
    positions, key = np.arange(count), random_key("examples")
    selected = shuffle_indices(positions, size=len(examples), key=key)
    return [examples[index] for index in sorted(selected)]


def describe_data(
    files: Files, train: Sequence[Example], dev: Mapping[str, Sequence[Example]]
) -> dict[str, Any]:
    """Return the fingerprints of the files and the numbers of examples."""
    return {
        "train": describe_tables(files.train, len(train)),
        "dev": {name: describe_tables(files.dev[name], len(dev[name])) for name in dev},
    }


def describe_tables(tables: Sequence[Table], examples: int) -> dict[str, Any]:
    return {"examples": examples, "files": [table.fingerprint() for table in tables]}


def join_names(tables: Sequence[Table]) -> str:
    return ", ".join(map(str, tables))
