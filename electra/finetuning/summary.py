"""The summary of a task over its seeds, and what it states of how it was made."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from electra import __version__
from electra.finetuning.results import SeedResult, Summary, format_score
from electra.finetuning.setup import FinetuneSetup
from electra.model.card_content import describe_origin
from electra.provenance import commit
from electra.settings import as_dict, fingerprint


def summarize(setup: FinetuneSetup, runs: Sequence[SeedResult]) -> Summary:
    """Summarize the runs of all seeds."""
    return Summary.of_runs(
        runs,
        task=setup.task.name,
        metric=setup.task.metric,
        made=provenance(setup),
        selected_on_dev=setup.config.early_stopping is not None,
    )


def provenance(setup: FinetuneSetup) -> dict[str, Any]:
    """Return what a reader needs to reproduce the score: code, settings, weights, data."""
    settings = as_dict(setup.config)
    selection, split = "none: the last step's weights", next(iter(setup.dev), "each fold")
    if setup.config.early_stopping is not None:
        selection = f"the step with the best {setup.task.metric} on {split}"
    found: dict[str, Any] = {}
    if setup.found is not None:
        selection = f"settings: the best of {len(setup.found['trials'])} on dev; {selection}"
        found = {"search": dict(setup.found)}
    return found | {
        "date": time.strftime("%Y-%m-%d"),
        "electra": __version__,
        "commit": commit(),
        "recipe": setup.recipe,
        "settings": settings,
        "settings_hash": fingerprint(settings),
        "model": setup.model.name,
        "weights": setup.weights,
        "data": dict(setup.data),
        "selection": selection,
        "task": setup.task.settings(),
    }


def model_card_facts(setup: FinetuneSetup, result: SeedResult) -> dict[str, object]:
    """Return the facts that a fine-tuned model's card lists."""
    task = setup.task
    pretrained = describe_origin(setup.model)
    if setup.loaded is None:
        pretrained = "random weights"
    steps = f"{result.steps:,}"
    if result.selected_step is not None:
        steps += f"; step {result.selected_step:,} was chosen on dev, which flatters the score"
    return {
        "Task": task.name,
        f"{task.metric} on {next(iter(result.scores))}": format_score(result.score, task.metric),
        "An answer that ignores the text": format_score(result.baseline, task.metric),
        "Seed": result.seed,
        "Steps": steps,
        "Recipe": setup.recipe,
        "Fine-tuned from": pretrained,
        "Training examples": f"{setup.data['train']['examples']:,}",
        "electra": __version__,
    }
