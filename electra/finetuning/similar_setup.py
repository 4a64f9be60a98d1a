"""What `--task similar` needs: model, settings and pairs, all checked before the work begins."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from electra.config import UserError
from electra.data.shuffle import permutation
from electra.data.tables import find_table
from electra.finetuning.dev_data import refuse_same_data
from electra.finetuning.finetune import reporter, warn_of_vocabulary
from electra.finetuning.options import FinetuneOptions
from electra.finetuning.output_dir import check_output_dir
from electra.finetuning.setup import NO_TABLES, Tables, describe_tables, join_names
from electra.finetuning.similar_data import METRICS, Pairs, read_pairs
from electra.finetuning.similar_settings import SimilarConfig, load_similar_config
from electra.settings import as_dict
from electra.tasks import SIMILAR
from electra.tasks.embed import chunk_texts, encode_texts
from electra.tasks.models import Pretrained, load_pretrained, weights_hash
from electra.tasks.sentence_transformer import Pooling
from electra.tasks.task import Files


@dataclass(frozen=True)
class SimilarSetup:
    """Everything about such a fine-tuning except its seed."""

    source: Pretrained
    config: SimilarConfig
    options: FinetuneOptions
    train: Pairs
    dev: Pairs
    data: dict[str, Any]  # files and numbers of pairs
    say: Callable[[str], None]

    @property
    def metric(self) -> str:
        return METRICS[self.dev.form]

    @property
    def pooling(self) -> Pooling:
        config = self.config
        return Pooling(pool=config.pooling, normalize=config.normalize, length=config.length)

    def identity(self) -> dict[str, Any]:
        """Return what two fine-tunings must share to be the same. Paths are no part of it."""
        weights = "random"
        if self.source.loaded is not None:
            weights = weights_hash(self.source.folder)
        model = {"weights": weights, "tokenizer": self.source.tokenizer.fingerprint}
        identity = {"model": model, "task": {"kind": SIMILAR}, "data": self.data}
        identity["config"] = as_dict(self.config)
        return dict(json.loads(json.dumps(identity)))


def prepare_similar(
    model: str | Path, options: FinetuneOptions, output_dir: Path, tables: Tables = NO_TABLES
) -> SimilarSetup:
    """Read and check everything that the training needs, and say what it will do."""
    config = load_similar_config(options.config, options.flags)
    check_alone(options)
    files = find_pair_files(options, config, tables)
    source = load_pretrained(model, random_weights=options.random_weights)
    positions = source.encoder.shape.positions
    if config.length > positions:
        raise UserError(
            f"--length {config.length}: the model has only {positions} positions; use that or less"
        )
    train, dev = read_splits(files, config)
    data = {
        "train": describe_tables(files.train, len(train)),
        "dev": {"dev": describe_tables(files.dev["dev"], len(dev))},
    }
    setup = SimilarSetup(
        source, config, options, train, dev, data, say=reporter(quiet=options.quiet)
    )
    check_output_dir(output_dir, setup.identity(), options)
    setup.say(
        f"{source.folder}: {len(train):,} {train.form} to train on, {len(dev):,} to score on; "
        f"{config.steps(len(train)):,} steps of {config.batch_size}, learning rate "
        f"{config.learning_rate:g}"
    )
    sample = next(chunk_texts(train.texts))
    features = encode_texts(sample, source.tokenizer, length=config.length)
    warn_of_vocabulary(features, source.tokenizer, setup.say)
    return setup


def read_splits(files: Files, config: SimilarConfig) -> tuple[Pairs, Pairs]:
    """Return the pairs to train on and those to score on."""
    train = read_pairs(files.train, config)
    if config.dev_share:
        train, dev = split_pairs(train, config.dev_share)
    else:
        dev = read_pairs(files.dev["dev"], config, is_dev=True)
    if len(train) < 2 or len(dev) < 2:
        raise UserError(f"{join_names(files.train)}: at least two pairs to train and to score on")
    return train, dev


def check_alone(options: FinetuneOptions) -> None:
    """Raise UserError for what this training does not take."""
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise UserError("--task similar trains in one process; start it without torchrun")
    refused = {
        "--data": options.data,
        "--recipe": options.recipe != "paper",
        "--search": options.search,
        "--search-minutes": options.search_minutes,
        "--report-to": options.report_to != "none",
        "--verbose": options.verbose,  # its layers all learn at one rate
    }
    for flag, is_given in refused.items():
        if is_given:
            raise UserError(f"--task similar takes --train, --dev and settings; no {flag}")


def find_pair_files(options: FinetuneOptions, config: SimilarConfig, tables: Tables) -> Files:
    """Return the files to train and to score on."""
    train = tables.get("train") or [find_table(path) for path in options.train]
    dev = tables.get("dev") or [find_table(path) for path in options.dev]
    if not train:
        raise UserError("similar: no training data; name files with --train")
    if bool(dev) == bool(config.dev_share):
        raise UserError(
            "similar: name dev data to score on with --dev, or set a part of the training data "
            "aside with --dev-share 0.1; one of the two"
        )
    files = Files(train=tuple(train), dev={"dev": tuple(dev or train)}, test={})
    if dev and not options.dev_on_train:
        refuse_same_data(files)
    return files


def split_pairs(pairs: Pairs, share: float) -> tuple[Pairs, Pairs]:
    """Return the pairs to train on and those to score on, the same for every seed."""
    count = len(pairs)
    order = permutation(count, "dev share")
    held_out = set(order[: max(1, round(share * count))].tolist())
    train = [index for index in range(count) if index not in held_out]
    return pairs.select(train), pairs.select(sorted(held_out))
