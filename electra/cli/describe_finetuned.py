"""Describe a fine-tuned model: its task, its scores beside the baseline, its network."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from electra.cli.describe import shape_table
from electra.config import convert
from electra.finetuning.results import SeedResult, format_score
from electra.model.model_config import architecture_of
from electra.model.shape import EncoderShape
from electra.model.weight_files import CONFIG, read_json
from electra.tasks import SIMILAR
from electra.tasks.model_task import TASK
from electra.tasks.models import (
    RESULTS,
    best_model,
    check_is_finished,
    load_pretrained,
    load_tuned,
)
from electra.tasks.sentence_transformer import Pooling, read_pooling


@dataclass(frozen=True)
class FinetunedDescription:
    """Everything `electra describe` prints of a fine-tuned model; `--json` prints it unchanged."""

    folder: str
    task: str
    learnt: str  # classes, types of entities, options
    metric: str
    results: list[SeedResult]
    length: int
    architecture: str | None  # the transformers class that holds it
    encoder: EncoderShape
    vocabulary: int
    encoder_parameters: int
    head_parameters: int


def find_finetuned(folder: Path) -> Path | None:
    """Return the model folder of a fine-tuning of ours, of one of its seeds, or of its model.

    Return None for any other folder; raise UserError where a fine-tuning has no model yet.
    """
    if (folder / RESULTS).is_file():
        return best_model(folder)
    models = [path.parent for path in sorted(folder.glob(f"seed-*/model/{CONFIG}"))]
    if (folder / "model" / CONFIG).is_file():
        models.insert(0, folder / "model")
    if models:
        return models[0]
    check_is_finished(folder)
    if (folder / CONFIG).is_file() and {TASK, "electra_result"} & read_json(folder, CONFIG).keys():
        return folder
    return None


def describe_finetuned(folder: Path, model: Path) -> FinetunedDescription:
    """Return the description of a model folder, and of the seeds in the folder that was named."""
    if (pooling := read_pooling(model)) is not None:
        return describe_embedder(folder, model, pooling)
    tuned = load_tuned(model)
    encoder = sum(parameter.numel() for parameter in tuned.network.encoder.parameters())
    everything = sum(parameter.numel() for parameter in tuned.network.parameters())
    return FinetunedDescription(
        folder=str(model),
        task=tuned.task.name,
        learnt=tuned.task.description,
        metric=tuned.task.metric,
        results=read_results(folder, model),
        length=tuned.length,
        architecture=tuned.network.architecture,
        encoder=tuned.network.encoder.shape,
        vocabulary=tuned.network.encoder.vocabulary,
        encoder_parameters=encoder,
        head_parameters=everything - encoder,
    )


def describe_embedder(folder: Path, model: Path, pooling: Pooling) -> FinetunedDescription:
    """Return the description of a model that `finetune --task similar` made."""
    encoder = load_pretrained(model).encoder
    learnt = f"vectors of texts, {pooling.pool} pooling"
    if pooling.normalize:
        learnt += ", of length 1"
    results = read_results(folder, model)
    return FinetunedDescription(
        folder=str(model),
        task=SIMILAR,
        learnt=learnt,
        metric=next(iter(results[0].scores["dev"])),
        results=results,
        length=pooling.length or encoder.shape.positions,
        architecture=architecture_of(read_json(model, CONFIG)),
        encoder=encoder.shape,
        vocabulary=encoder.vocabulary,
        encoder_parameters=sum(parameter.numel() for parameter in encoder.parameters()),
        head_parameters=0,
    )


def read_results(folder: Path, model: Path) -> list[SeedResult]:
    """Return the results of all seeds of a fine-tuning, or that of the model alone."""
    results = []
    for seed in sorted(folder.glob("seed-*"), key=lambda path: (len(path.name), path.name)):
        result = SeedResult.load(seed)
        if result is not None:
            results.append(result)
    stored = read_json(model, CONFIG).get("electra_result")
    if results or stored is None:
        return results
    source = str(model / CONFIG)
    return [convert(stored, SeedResult, source=source, key="electra_result")]


def print_finetuned(description: FinetunedDescription, console: Console) -> None:
    """Print the facts of a fine-tuned model and the shape of its encoder."""
    table = Table(
        show_header=False, title=f"{description.folder}: fine-tuned", title_justify="left"
    )
    for key, value in facts(description).items():
        table.add_row(key, value)
    console.print(table)
    console.print(shape_table("network", {"encoder": description.encoder}))


def facts(description: FinetunedDescription) -> dict[str, str]:
    """Return what to know about a model before it is used."""
    metric = description.metric
    held = description.architecture or "none: run it with `electra predict`"
    found = {"task": f"{description.task}: {description.learnt}".removesuffix(": ")}
    for result in description.results:
        score, baseline = (format_score(x, metric) for x in (result.score, result.baseline))
        note = ", degenerate" * result.degenerate + ", diverged" * result.diverged
        found[f"seed {result.seed}, {result.steps:,} steps"] = (
            f"{metric} {score} (an answer that ignores the text: {baseline}){note}"
        )
    return found | {
        "texts": f"at most {description.length} tokens in a row",
        "vocabulary": f"{description.vocabulary:,}",
        "parameters: encoder + head": (
            f"{description.encoder_parameters:,} + {description.head_parameters:,}"
        ),
        "class in transformers": held,
    }


def as_json(description: FinetunedDescription) -> str:
    """Return a description as JSON."""
    values: dict[str, Any] = asdict(description)
    return json.dumps(values, indent=1, ensure_ascii=False)
