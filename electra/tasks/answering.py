"""Asking a network: examples in, answers out, in batches of equal length; one model, or the mean of
several.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from electra.config import UserError
from electra.data.sources import warn
from electra.data.tables import Table, find_table
from electra.tasks.features import Array, Features, by_length
from electra.tasks.models import Tuned
from electra.tasks.task import Answer, AnyTask, Example, Network, Outputs

BATCH_TOKENS = {"cpu": 4_096, "cuda": 65_536}
CHUNK_EXAMPLES, CHUNK_CHARACTERS = 4_096, 4_000_000  # held at once


def device_here() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def outputs(
    network: Network,
    features: Features,
    *,
    device: torch.device,
    batches: Sequence[Array] | None = None,
    autocast: AbstractContextManager[Any] | None = None,
) -> dict[int, Outputs]:
    """What the network says of each unit, or of those in `batches`."""
    chosen = unit_batches(features, device) if batches is None else batches
    found: dict[int, Outputs] = {}
    was_training = network.training
    network.eval()
    with torch.inference_mode(), autocast or nullcontext():
        for units in chosen:
            batch = features.take(
                units,
                multiple=8 if device.type == "cuda" else 1,
                most=network.encoder.shape.positions,
            )
            answered = {
                name: tensor.float().cpu().numpy()
                if tensor.is_floating_point()
                else tensor.cpu().numpy()
                for name, tensor in network.outputs(batch.to(device)).items()
            }
            for place, unit in enumerate(units):
                found[int(unit)] = {name: values[place] for name, values in answered.items()}
    network.train(was_training)
    return found


def unit_batches(features: Features, device: torch.device) -> list[Array]:
    tokens = BATCH_TOKENS.get(device.type, BATCH_TOKENS["cpu"]) // features.together
    return by_length(features.lengths, tokens=tokens)


def answer(
    models: Sequence[Tuned],
    examples: Sequence[Example],
    *,
    device: torch.device | None = None,
    features: Features | None = None,
) -> list[Answer]:
    """One answer for each example: the model's, or several models' combined."""
    device = device or device_here()
    low = torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")
    said = []
    for model in models:
        rows = features or model.task.features(
            examples, model.tokenizer, length=model.length, training=False
        )
        if model is models[0]:
            warn_of_cuts(rows, examples, length=model.length)
        found = outputs(model.network.to(device), rows, device=device, autocast=low)
        said.append(model.task.decode(examples, rows, [found[unit] for unit in range(len(rows))]))
    if len(models) == 1:
        return list(said[0])
    return [models[0].task.combine(answers) for answers in zip(*said, strict=True)]


def warn_of_cuts(rows: Features, examples: Sequence[Example], *, length: int) -> None:
    cut = np.unique(rows.examples[rows.cut])
    if len(cut):
        warn(
            f"{len(cut):,} of {len(examples):,} texts are longer than the {length} tokens that "
            "the model was "
            f"fine-tuned with and were cut, {examples[cut[0]].where} for "
            "one"
        )


def stream(
    models: Sequence[Tuned], examples: Iterable[Example], *, device: torch.device | None = None
) -> Iterator[tuple[Example, Answer]]:
    """Each example with its answer, in order; no more than a chunk of them is held."""
    check_alike(models)
    for chunk in chunks(examples):
        yield from zip(chunk, answer(models, chunk, device=device), strict=True)


def chunks(examples: Iterable[Example]) -> Iterator[list[Example]]:
    """As many examples as may be held, be they many or long."""
    chunk: list[Example] = []
    size = 0
    for example in examples:
        chunk.append(example)
        size += len(repr(example))
        if len(chunk) == CHUNK_EXAMPLES or size >= CHUNK_CHARACTERS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def task_of(models: Sequence[Tuned]) -> AnyTask:
    """Return the task that scores the averaged answers of several models."""
    return models[0].task.ensemble([model.task for model in models])


def predict(models: Sequence[Tuned], inputs: Sequence[str | Path]) -> Iterator[dict[str, Any]]:
    """What the models say of each example in files of any form: a label, an answer, tags, a choice."""
    task = task_of(models)
    for example, found in stream(
        models, task.read([find_table(path) for path in inputs], labelled=False)
    ):
        yield task.record(example, found)


def evaluate(
    models: Sequence[Tuned], parts: Mapping[str, Sequence[Table]]
) -> dict[str, dict[str, float]]:
    """Scores on each part of some labelled data."""
    check_alike(models)
    task, scores = task_of(models), {}
    for part, tables in parts.items():
        examples = list(task.read(tables, labelled=True))
        if not examples:
            raise UserError(f"{', '.join(map(str, tables))}: no examples")
        task.check(examples)
        scores[part] = task.score(examples, answer(models, examples))
    return scores


def check_alike(models: Sequence[Tuned]) -> None:
    """Only models of one task, with the same labels and the same kind of head, can be averaged."""
    first = models[0]
    for model in models[1:]:
        if model.task.ensemble_key() != first.task.ensemble_key():
            raise UserError(
                f"{model.folder} is of task {model.task.name} and {first.folder} of "
                f"{first.task.name}, or their labels or heads differ; only models of one task can "
                "be averaged"
            )
