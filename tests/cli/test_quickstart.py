"""The quickstart's fine-tunings: which weights they begin with, and on which data."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import tables
from electra import shipped
from electra.cli import quickstart
from electra.cli.quickstart import SHIPPED, finetune_all, list_starts, print_next_commands
from electra.console import Terminal
from tests.cli.test_comparison import summary
from tests.data.test_missing_articles import write_corpus


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of shipped models."""
    monkeypatch.setattr(shipped, "MODELS", tmp_path / "models")
    return tmp_path / "models"


def ship(models: Path) -> None:
    (models / SHIPPED).mkdir(parents=True)
    (models / SHIPPED / "config.json").write_text("{}", encoding="utf8")


def test_the_shipped_model_is_compared_only_where_one_is_shipped(
    models: Path, tmp_path: Path
) -> None:
    assert [start.name for start in list_starts(tmp_path)] == ["random", "pretrained"]
    ship(models)
    random, pretrained, third = list_starts(tmp_path)
    assert (third.name, third.model) == (SHIPPED, models / SHIPPED)
    assert random.flags == pretrained.flags != third.flags


def test_all_weights_are_fine_tuned_on_the_same_files_and_scored_on_all_of_dev(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship(models)
    calls: list[dict[str, Any]] = []

    def finetune(model: Path, task: str, **options: Any) -> Any:
        calls.append({"model": model, "task": task} | options)
        return summary(0.4)

    class Shape:
        layers, width = 2, 64

    monkeypatch.setattr(quickstart, "finetune", finetune)
    monkeypatch.setattr(quickstart, "model_folder", lambda model: model)
    monkeypatch.setattr(quickstart, "load_shape", lambda folder: (Shape, 0, 0))
    corpus = write_corpus(tmp_path / "corpus.jsonl", 2000)
    starts = list_starts(tmp_path)
    steps = ["--max-steps", "3"]
    compared = finetune_all(starts, tmp_path, corpus, Terminal(file=io.StringIO()), steps)
    assert compared is not None
    assert [one.weights for one in compared] == [start.label for start in starts]
    assert [call["random_weights"] for call in calls] == [True, False, False]
    assert len({json.dumps([*map(str, call["train"] + call["dev"])]) for call in calls}) == 1
    assert all(call["flags"][-2:] == steps for call in calls)
    assert not any("--max-dev-examples" in call["flags"] for call in calls)


def test_a_command_with_the_shipped_model_is_suggested_only_where_one_is_shipped(
    models: Path, tmp_path: Path
) -> None:
    for names in ([], [SHIPPED]):
        console = Terminal(file=io.StringIO(), record=True)
        print_next_commands(tmp_path, console)
        assert [SHIPPED] * (f"electra finetune {SHIPPED} " in console.export_text()) == names
        if not names:
            ship(models)


def test_the_readmes_row_has_the_shipped_models_score_where_it_was_measured() -> None:
    finetuned = {}
    for name, scores in {"pretrained": (0.4, 0.5, 0.6), "random": (0.1, 0.2, 0.3)}.items():
        finetuned[name] = summary(*scores).as_json() | {"examples": 4000}
    assert tables.articles_row(finetuned)[1] == "50.0% (20.0%; 0.0%), median of 3 seeds"
    finetuned[SHIPPED] = summary(0.7, sentences=1600).as_json() | {"examples": 1600}
    title, cell = tables.articles_row(finetuned)
    assert title.endswith("from `small-en`, as shipped")
    assert cell.endswith("; 70.0% after 50 steps on 1,600 of the 4,000 sentences, one seed")
