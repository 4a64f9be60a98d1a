"""k-fold cross-validation: every example is scored once, by a model that did not train on it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

import electra
from electra.config import UserError
from electra.finetuning import loop
from electra.finetuning.folds import assign_folds, mean_classes
from electra.finetuning.loop import forward_backward
from electra.finetuning.results import Summary, summary_notes
from electra.finetuning.state import FinetuneState
from electra.tasks import find_task
from electra.tasks.models import load_tuned
from electra.tasks.texts import Text
from tests.finetuning.test_loop import assert_identical
from tests.tasks.toys import BY_HEART, TOYS, keyword_rows, written

pytestmark = pytest.mark.usefixtures("few_threads")

FLAGS = [*BY_HEART, *"--max-steps 3 --folds 3 --save-steps 2".split()]


def learn(tiny: Path, run: Path, *flags: str, **options: Any) -> Summary:
    options = {"dev": [], "dev_on_train": False, "flags": [*FLAGS, *flags]} | options
    return TOYS["classes"].learnt(tiny, run, **options)


def test_every_label_has_the_same_share_in_every_fold() -> None:
    labels = ["a"] * 50 + ["b"] * 11 + ["c"]
    examples = [Text(f"a.csv:{n}", "x", None, label) for n, label in enumerate(labels)]
    task = find_task("classify").fit_labels(examples)
    numbers = assign_folds(task, examples, 5)
    assert sorted(Counter(numbers.tolist()).values()) == [12, 12, 12, 13, 13]
    for label, allowed in (("a", {10}), ("b", {2, 3}), ("c", {0, 1})):
        of_label = numbers[[each == label for each in labels]]
        assert {int(np.sum(of_label == fold)) for fold in range(5)} == allowed
    assert numbers.tolist() == assign_folds(task, examples, 5).tolist()


def test_the_score_is_the_mean_of_the_folds_and_the_model_is_of_all_data(
    tiny: Path, tmp_path: Path
) -> None:
    summary = learn(tiny, tmp_path / "run")
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    (run,) = results["runs"]
    scores = [fold["score"] for fold in run["folds"]]
    assert results["protocol"] == "mean of 3 folds, one seed"
    assert (results["split"], results["median"]) == ("folds", pytest.approx(np.mean(scores)))
    assert results["sd"] == pytest.approx(np.std(scores, ddof=1))
    assert run["scores"]["folds"]["accuracy"] == results["median"]
    assert [(fold["train"], fold["dev"]) for fold in run["folds"]] == [(5, 3), (5, 3), (6, 2)]
    assert sum(label["support"] for label in run["classes"]["folds"]) == 8
    assert "mean of 3 folds" in summary_notes([summary])[-1]
    model = load_tuned(tmp_path / "run").folder
    assert model == tmp_path / "run" / "seed-0" / "model"
    assert "accuracy on folds" in (model / "README.md").read_text()
    assert json.loads((tmp_path / "run" / "run.json").read_text())["config"]["folds"] == 3
    assert len(list((tmp_path / "run").glob("fold-*/seed-0/model"))) == 3


def test_every_row_is_predicted_by_the_fold_that_held_it_out(tiny: Path, tmp_path: Path) -> None:
    learn(tiny, tmp_path / "run", keep="best")
    path = tmp_path / "run" / "seed-0" / "predictions-folds.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [line.split(",") for line in keyword_rows(8).splitlines()[1:]]
    assert [[record["text"], record["gold"]] for record in records] == rows
    assert sorted(Counter(record["fold"] for record in records).values()) == [2, 3, 3]
    assert {"label", "probabilities"} <= set(records[0])
    by_fold = tmp_path / "run" / f"fold-{records[0]['fold']}" / "seed-0" / "predictions-dev.jsonl"
    first = json.loads(by_fold.read_text().splitlines()[0])
    assert first["probabilities"] == records[0]["probabilities"]
    assert not list((tmp_path / "run").glob("fold-*/seed-0/model"))  # --keep best


def test_a_crash_in_a_fold_changes_nothing(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[str] = []

    def crashing(state: FinetuneState, units: Any, *, step: int) -> Tensor:
        if state.output_dir.parent.name == "fold-2" and step == 3:
            raise RuntimeError("the power went out")
        return forward_backward(state, units, step=step)

    def recording(state: FinetuneState, units: Any, *, step: int) -> Tensor:
        trained.append(f"{state.output_dir.parent.name} {step}")
        return forward_backward(state, units, step=step)

    monkeypatch.setattr(loop, "forward_backward", crashing)
    with pytest.raises(RuntimeError):
        learn(tiny, tmp_path / "crashed")
    monkeypatch.setattr(loop, "forward_backward", recording)
    crashed = learn(tiny, tmp_path / "crashed")
    assert trained[0] == "fold-2 3"
    assert len(trained) == 1 + 3 + 3
    unbroken = learn(tiny, tmp_path / "unbroken")
    assert crashed.median == unbroken.median
    assert_identical(tmp_path / "crashed", tmp_path / "unbroken")


@pytest.mark.slow
def test_early_stopping_of_the_folds_decides_how_long_the_last_model_trains(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = "--max-steps 12 --early-stopping 1 --eval-steps 3 --learning-rate 1e-9".split()
    (run,) = learn(tiny, tmp_path / "run", *flags).runs
    # Nothing is learnt, so the first evaluation is the best, and the second one ends a fold.
    assert [(fold["steps"], fold["selected_step"]) for fold in run.folds] == [(6, 3)] * 3
    assert (run.steps, run.selected_step) == (3, None)


@pytest.mark.slow
def test_python_takes_folds(tiny: Path, tmp_path: Path) -> None:
    result = electra.finetune(
        tiny,
        "classify",
        train=str(written(tmp_path / "rows.csv", keyword_rows(8))),
        output_dir=tmp_path / "run",
        settings={"folds": 2, "max_steps": 1, "length": 32},
        quiet=True,
    )
    assert result.summary.protocol == "mean of 2 folds, one seed"


def test_dev_data_and_folds_do_not_go_together(tiny: Path, tmp_path: Path) -> None:
    dev = written(tmp_path / "dev.csv", keyword_rows(4))
    with pytest.raises(UserError, match="--folds 3 takes the dev data from the training data"):
        learn(tiny, tmp_path / "run", dev=[dev])
    with pytest.raises(UserError, match="goes without dev_share"):
        learn(tiny, tmp_path / "run", "--dev-share", "0.1")
    with pytest.raises(UserError, match="--folds 9: more than the 8 training examples"):
        learn(tiny, tmp_path / "run", "--folds", "9")
    assert not (tmp_path / "run" / "run.json").exists()


def test_classes_of_folds_have_the_mean_scores_of_all_examples() -> None:
    one = {"label": "a", "precision": 0.5, "recall": 1.0, "f1": 0.6, "support": 3}
    two = {"label": "a", "precision": 1.0, "recall": 0.0, "f1": 0.0, "support": 2}
    expected = {"label": "a", "precision": 0.75, "recall": 0.5, "f1": 0.3, "support": 5}
    assert mean_classes([[one], [two]]) == [expected]
    assert mean_classes([[], []]) == []
