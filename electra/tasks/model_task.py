"""The task of a model folder: what `electra finetune` stored, or what transformers' class says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from electra import tasks
from electra.config import UserError, convert
from electra.data.sources import warn
from electra.model import model_config
from electra.model.families import family_of
from electra.model.layers import layer_width
from electra.model.shape import EncoderShape
from electra.model.weight_files import CONFIG, read_json
from electra.tasks.sentence_transformer import MODULES
from electra.tasks.task import AnyTask, Task

TASK = "electra_task"
HEAD_KEYS = ("id2label", "problem_type", "classifier_pooling")
# What transformers leaves out of a file, because these are its defaults.
STOCK_DEFAULTS: dict[str, Any] = {
    "id2label": {"0": "LABEL_0", "1": "LABEL_1"},
    "classifier_pooling": "cls",
}
# By the transformers class without its prefix; the first is the default.
TASK_KINDS = dict(
    zip(
        model_config.TASK_HEADS,
        (("classify", "glue"), ("tag",), ("span",), ("choose",)),
        strict=True,
    )
)


def has_task(folder: Path) -> bool:
    """Return whether a model folder holds the head of a task."""
    config = read_json(folder, CONFIG)
    if TASK in config:
        return True
    # ModernBERT's discriminator has the class of a tagger, and no task.
    is_task_class = model_config.head_of(config) in TASK_KINDS
    return is_task_class and model_config.role_of(folder) != "discriminator"


def read_task(
    folder: Path, config: Mapping[str, Any], shape: EncoderShape, named: AnyTask | None
) -> tuple[AnyTask, bool]:
    """Return the task of a folder, and whether it is read as transformers reads it.

    That is so where `electra finetune` stored no task, or the folder was changed since.

    Transformers keeps the stored task when it saves a model that it trained further, with other
    labels or another class.
    """
    if TASK not in config:
        return transformers_task(folder, config, named), True
    source = str(folder / CONFIG)
    stored = tasks.restore_task(config[TASK], source=source)
    changed = changed_keys(stored, config, shape, source)
    if not changed:
        return stored, False
    found = f"{source}: {TASK} is of an earlier fine-tuning: it differs in {', '.join(changed)}"
    if not model_config.head_of(config) and "architectures" not in changed:
        raise UserError(f"{found}; correct these keys, or fine-tune it again")
    task = transformers_task(folder, config, named)
    warn(f"{found}; the model is read as transformers reads it")
    return task, True


def changed_keys(
    task: Task[Any, Any], config: Mapping[str, Any], shape: EncoderShape, source: str
) -> list[str]:
    """Return the keys of a config.json that contradict the task stored in it."""
    family = family_of(shape)
    known = {key: value for key, value in config.items() if value is not None}
    stated = STOCK_DEFAULTS | known
    expected = json.loads(json.dumps(task.config()))  # as it is read back
    if task.pools:
        expected |= family.task_config(pooling=task.pooling)
    changed = []
    for key in HEAD_KEYS:
        if key in expected and stated.get(key, expected[key]) != expected[key]:
            changed.append(key)
    head = task.stored_head(
        head_input_width(task, shape, source),
        architecture=model_config.architecture_of(config),
    )
    held_by = head.class_in(family.name)
    if task.frozen or shape.causal:  # no class holds such an encoder
        held_by = None
    if model_config.head_of(config) != (held_by or ""):
        changed.append("architectures")
    return changed


def head_input_width(task: Task[Any, Any], shape: EncoderShape, source: str = "") -> int:
    """Return the width of what a task's head reads of an encoder."""
    try:
        return layer_width(task.frozen or "last", shape.width, layers=shape.layers)
    except UserError as error:
        if not source:
            raise
        raise UserError(f"{source}: {error}") from None


def transformers_task(folder: Path, config: Mapping[str, Any], task: AnyTask | None) -> AnyTask:
    """Return the task of a model that transformers fine-tuned: `task`, or its class's default."""
    kinds = TASK_KINDS.get(model_config.head_of(config))
    if (folder / MODULES).is_file():
        raise UserError(f"{folder}: an embedder, which has vectors alone; use `electra embed`")
    # ModernBERT's discriminator has the class of a tagger, and no task.
    if kinds is None or model_config.role_of(folder) == "discriminator":
        raise UserError(
            f"{folder}: an encoder without a task; fine-tune it first: electra finetune {folder} "
            "--task …"
        )
    if task is None:
        task = tasks.find_task(kinds[0])
    if task.kind not in kinds:
        architecture = model_config.architecture_of(config)
        raise UserError(
            f"{folder} is of class {architecture}, which --task {task.name} does not fit"
        )
    if task.pools:
        pooling = config.get("classifier_pooling", "cls")
        source, key = str(folder / CONFIG), "classifier_pooling"
        task = replace(
            task, pooling=convert(pooling, Literal["cls", "mean"], source=source, key=key)
        )
    return task.with_transformers_config(config, folder=folder)
