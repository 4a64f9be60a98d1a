"""Inference: the answers of one model, or the mean of several, to examples in batches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from electra import tasks
from electra.config import UserError
from electra.console import count_items
from electra.data.sources import warn
from electra.data.tables import Table, find_table
from electra.settings import as_flag
from electra.tasks.analysis import Analysis
from electra.tasks.class_scores import ClassScores
from electra.tasks.features import Array, Features, group_by_length, split_into_chunks
from electra.tasks.labels import list_labels
from electra.tasks.mistakes import analyse
from electra.tasks.models import FinetunedModel, load_tuned
from electra.tasks.task import Answer, AnyTask, Example, Network, Outputs
from electra.tasks.vocabulary_fit import VocabularyFit

BATCH_TOKENS = {"cpu": 4_096, "cuda": 65_536}
PAD_TO_MULTIPLE_OF = {"cuda": 8}
CHUNK_EXAMPLES, CHUNK_CHARACTERS = 4_096, 2_000_000  # held in memory at a time


class PartScores(NamedTuple):
    """The scores of one part of labelled data."""

    scores: dict[str, float]  # by metric
    classes: list[ClassScores]  # empty where the task has no classes
    analysis: Analysis | None = None  # where it was asked for


def default_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def compute_outputs(
    network: Network,
    features: Features,
    *,
    device: torch.device,
    batches: Iterable[Array] | None = None,
    autocast: AbstractContextManager[Any] | None = None,
) -> dict[int, Outputs]:
    """Compute the network's outputs for each unit, or for those in `batches`."""
    if batches is None:
        batches = inference_batches(features, device)
    outputs: dict[int, Outputs] = {}
    was_training = network.training
    network.eval()
    with torch.inference_mode(), autocast or nullcontext():
        for units in batches:
            batch = features.collate(
                units,
                pad_to_multiple_of=PAD_TO_MULTIPLE_OF.get(device.type, 1),
                max_length=network.encoder.shape.positions,
            )
            arrays = {
                name: to_array(tensor) for name, tensor in network.outputs(batch.to(device)).items()
            }
            for index, unit in enumerate(units):
                outputs[int(unit)] = {name: array[index] for name, array in arrays.items()}
    network.train(was_training)
    return outputs


def to_array(tensor: Tensor) -> Array:
    """Copy a tensor to NumPy, which has no bfloat16."""
    if tensor.is_floating_point():
        tensor = tensor.float()
    array: Array = tensor.cpu().numpy()
    return array


def inference_batches(features: Features, device: torch.device) -> list[Array]:
    """Return batches of units of about equal length, as large as the device takes easily."""
    tokens = BATCH_TOKENS.get(device.type, BATCH_TOKENS["cpu"]) // features.num_choices
    return group_by_length(features.lengths, tokens=tokens)


@dataclass
class TextCounts:
    """Counts the texts that a model cannot read in full, over all chunks of the data."""

    fit: VocabularyFit
    examples: int = 0
    truncated: int = 0
    first: str = ""  # the place of the first text that was cut

    def add(self, features: Features, examples: Sequence[Example]) -> None:
        """Count the texts of a chunk."""
        truncated = np.unique(features.examples[features.truncated])
        if len(truncated) and not self.truncated:
            self.first = examples[truncated[0]].where
        self.examples += len(examples)
        self.truncated += len(truncated)
        self.fit.add(features)

    def warn(self, *, length: int) -> None:
        """Warn, once, of the texts that were cut and of those that are mostly [UNK]."""
        if self.truncated:
            warn(
                f"{self.truncated:,} of {self.examples:,} texts are longer than the {length:,} "
                f"tokens that the model reads and were cut, for example {self.first}"
            )
        self.fit.warn()


def answer_examples(
    models: Sequence[FinetunedModel],
    examples: Sequence[Example],
    *,
    device: torch.device | None = None,
) -> list[Answer]:
    """Return one answer for each example: the model's, or several models' combined."""
    counts = TextCounts(VocabularyFit(models[0].tokenizer))
    answers = answer_chunk(models, examples, counts.add, device or default_device(), count_batches)
    counts.warn(length=models[0].length)
    return answers


def count_batches(batches: Sequence[Array]) -> Iterator[Array]:
    """Yield batches, and print from time to time how many are done."""
    return count_items(batches, "batches", of=len(batches))


def answer_chunk(
    models: Sequence[FinetunedModel],
    examples: Sequence[Example],
    inspect: Callable[[Features, Sequence[Example]], None],
    device: torch.device,
    track: Callable[[Sequence[Array]], Iterable[Array]] = iter,
) -> list[Answer]:
    """Return one answer for each example, and show what the first model reads to `inspect`."""
    bf16 = torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")
    answers = []
    for model in models:
        features = model.task.features(
            examples, model.tokenizer, length=model.length, training=False
        )
        if model is models[0]:
            inspect(features, examples)
        network, batches = model.network.to(device), inference_batches(features, device)
        outputs = compute_outputs(
            network, features, device=device, autocast=bf16, batches=track(batches)
        )
        in_order = [outputs[unit] for unit in range(len(features))]
        answers.append(model.task.decode(examples, features, in_order))
    if len(models) == 1:
        return answers[0]
    return [models[0].task.combine(several) for several in zip(*answers, strict=True)]


def stream_answers(
    models: Sequence[FinetunedModel],
    examples: Iterable[Example],
    *,
    device: torch.device | None = None,
) -> Iterator[tuple[Example, Answer]]:
    """Yield each example with its answer, in order; no more than a chunk of them is held."""
    check_same_task(models)
    counts, device = TextCounts(VocabularyFit(models[0].tokenizer)), device or default_device()
    chunks = split_into_chunks(
        examples, count_characters, most=CHUNK_EXAMPLES, most_characters=CHUNK_CHARACTERS
    )
    for chunk in chunks:
        yield from zip(chunk, answer_chunk(models, chunk, counts.add, device), strict=True)
    counts.warn(length=models[0].length)


def count_characters(example: Example) -> int:
    """Return about how much text an example holds: that of its row, where this is kept."""
    row = getattr(example, "row", None)
    if row is None:
        return len(repr(example))
    return sum(len(str(value)) for value in row.values())


def ensemble_task(models: Sequence[FinetunedModel]) -> AnyTask:
    """Return the task that scores the averaged answers of several models."""
    check_same_task(models)
    return models[0].task.ensemble([model.task for model in models])


def predict(
    models: Sequence[FinetunedModel], inputs: Sequence[str | Path]
) -> Iterator[dict[str, Any]]:
    """Yield a prediction for each example in the files: a label, an answer, tags or a choice.

    The columns of the row that an example was read from come before it.
    """
    task = ensemble_task(models)
    examples = task.read([find_table(path) for path in inputs], labelled=False)
    for example, answer in stream_answers(models, examples):
        yield add_input_columns(task.record(example, answer), getattr(example, "row", None))


def add_input_columns(
    prediction: Mapping[str, Any], row: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return a prediction after the columns of its row.

    A column that has the name of a field of the prediction is called input_NAME, or
    input_input_NAME where there is such a column, unless the prediction holds the same value, as
    its id or as the gold label.
    """
    row, columns = row or {}, {}
    for name, value in row.items():
        if name not in prediction:
            columns[name] = value
        elif name != "id" and str(value).strip() not in ("", "None", str(prediction.get("gold"))):
            columns[free_name(name, (*row, *prediction))] = value
    columns.update(prediction)
    return columns


def free_name(name: str, taken: Collection[str]) -> str:
    """Return the name that a column of the input has where `name` is a field of the prediction."""
    while name in taken:
        name = f"input_{name}"
    return name


def evaluate(
    models: Sequence[FinetunedModel],
    parts: Mapping[str, Sequence[Table]],
    *,
    with_analysis: bool = False,
) -> dict[str, PartScores]:
    """Compute the scores on each part of labelled data, over all and of each class.

    The analysis for a report quotes the examples.
    """
    task, scores = ensemble_task(models), {}
    for part, tables in parts.items():
        examples = list(task.read(tables, labelled=True))
        if not examples:
            raise UserError(f"{', '.join(map(str, tables))}: no examples")
        task.check(examples)
        answers = answer_examples(models, examples)
        analysis = None
        if with_analysis:
            analysis = analyse(task, examples, answers)
        scores[part] = PartScores(
            task.score(examples, answers), task.class_scores(examples, answers), analysis
        )
    return scores


def check_same_task(models: Sequence[FinetunedModel]) -> None:
    """Raise UserError unless the models share their task, labels and kind of head."""
    first = models[0]
    for model in models[1:]:
        if model.task.ensemble_key() != first.task.ensemble_key():
            raise UserError(
                f"{describe_labels(first)}, and {describe_labels(model)}; only models of one task, "
                "with the same labels in the same order and the same kind of head, can be averaged"
            )


def describe_labels(model: FinetunedModel) -> str:
    labels = list_labels(getattr(model.task, "labels", ()))
    return f"{model.folder} is of task {model.task.name}{labels and f' ({labels})'}"


# ---- loading -------------------------------------------------------------------------------------


def load_for_task(folders: Sequence[str], task: str | None) -> list[FinetunedModel]:
    """Load fine-tuned models. A named task decides how data is read, not what was learnt."""
    if not folders:
        raise UserError("name at least one model")
    named = None
    if task is not None:
        named = tasks.find_task(task)
    models = [load_tuned(folder, task=named) for folder in folders]
    check_same_task(models)
    first = models[0]
    if named is None or named.name == first.task.name:
        return models
    check_span_tasks(first, named)
    # A model that finds answers finds them in any data set of questions.
    return [replace(model, task=replace(model.task, name=named.name)) for model in models]


def check_span_tasks(model: FinetunedModel, named: AnyTask) -> None:
    """Raise UserError unless the model can answer the questions of another task."""
    from electra.tasks.span import Span

    learnt = model.task
    if not isinstance(learnt, Span) or not isinstance(named, Span):
        raise UserError(
            f"{model.folder} was fine-tuned for {learnt.name}, not for {named.name}; leave out "
            "--task, or fine-tune a model for it"
        )
    if named.unanswerable and not learnt.unanswerable:
        raise UserError(
            f"{model.folder} was fine-tuned for {learnt.name}, where every question has an answer; "
            f"it cannot say that {named.name} has none"
        )


def set_columns(
    models: Sequence[FinetunedModel], options: Mapping[str, Any]
) -> list[FinetunedModel]:
    """Return models that read other columns; raise UserError for what was decided in training."""
    first = models[0]
    for name in options:
        if name not in first.task.inference_options:
            allowed = ", ".join(as_flag(option) for option in first.task.inference_options)
            raise UserError(
                f"{as_flag(name)} was decided when {first.folder} was fine-tuned; what may follow "
                f"is {allowed}"
            )
    return [replace(model, task=replace(model.task, **options)) for model in models]
