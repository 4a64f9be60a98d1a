"""Early stopping keeps the best weights, says so, and continues bit for bit after a crash."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from electra.config import UserError
from electra.finetuning import loop, scoring
from electra.finetuning.early_stopping import EarlyStopping
from electra.finetuning.loop import forward_backward
from electra.finetuning.results import Summary, summary_notes
from electra.finetuning.state import FinetuneState
from electra.runs.journal import read_metrics
from tests.finetuning.test_loop import assert_identical
from tests.tasks.toys import BY_HEART, TOYS

pytestmark = pytest.mark.usefixtures("few_threads")

FLAGS = "--max-steps 20 --eval-steps 2 --early-stopping 2 --save-steps 5 --logging-steps 1".split()
SCORES = {2: 0.25, 4: 0.75, 6: 0.5, 8: 0.75}  # by step; the first of two equal ones is the best


@pytest.fixture
def by_step(monkeypatch: pytest.MonkeyPatch) -> dict[int, Tensor]:
    """Score each evaluation as SCORES says, and keep a weight of the network that was scored."""
    weights: dict[int, Tensor] = {}

    def score(state: FinetuneState, task: Any, answers: Any) -> Any:
        weights.setdefault(state.step, next(state.network.parameters()).detach().clone())
        return {"dev": {"accuracy": SCORES[state.step]}}

    monkeypatch.setattr(scoring, "score_splits", score)
    return weights


def learn(tiny: Path, run: Path, *flags: str) -> Summary:
    return TOYS["classes"].learnt(tiny, run, flags=[*BY_HEART, *FLAGS, *flags])


def test_the_best_weights_are_kept_once_two_evaluations_are_no_better(
    tiny: Path, tmp_path: Path, by_step: dict[int, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[Tensor] = []
    save = scoring.save_model

    def recording(state: FinetuneState, *rest: Any) -> None:
        saved.append(next(state.network.parameters()).detach().clone())
        save(state, *rest)

    monkeypatch.setattr(scoring, "save_model", recording)
    summary = learn(tiny, tmp_path / "run")
    (result,) = summary.runs
    assert (result.steps, result.selected_step) == (8, 4)
    assert saved[0].equal(by_step[4])
    assert not saved[0].equal(by_step[8])
    entries = read_metrics(tmp_path / "run" / "seed-0" / "metrics.jsonl")
    scores = {entry["step"]: entry["dev_accuracy"] for entry in entries if "dev_accuracy" in entry}
    assert scores == SCORES
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["selected_on_dev"] is True
    assert results["made"]["selection"] == "the step with the best accuracy on dev"
    assert "early stopping chose the step on dev" in " ".join(summary_notes([summary]))
    card = (tmp_path / "run" / "seed-0" / "model" / "README.md").read_text()
    assert "step 4 was chosen on dev" in card


def test_a_crash_changes_nothing(
    tiny: Path, tmp_path: Path, by_step: dict[int, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def crashing(state: FinetuneState, units: Any, *, step: int) -> Tensor:
        if step == 7:  # after the best evaluation, and a checkpoint of step 5
            raise RuntimeError("the power went out")
        return forward_backward(state, units, step=step)

    monkeypatch.setattr(loop, "forward_backward", crashing)
    with pytest.raises(RuntimeError):
        learn(tiny, tmp_path / "crashed")
    monkeypatch.setattr(loop, "forward_backward", forward_backward)
    crashed, unbroken = (learn(tiny, tmp_path / run).runs[0] for run in ("crashed", "unbroken"))
    assert (crashed.steps, crashed.selected_step) == (unbroken.steps, unbroken.selected_step)
    assert_identical(tmp_path / "crashed", tmp_path / "unbroken")


@pytest.mark.slow
def test_a_run_that_was_stopped_while_it_scored_does_not_train_on(
    tiny: Path, tmp_path: Path, by_step: dict[int, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    predict, calls = scoring.predict_dev, []

    def stopped(state: FinetuneState, *rest: Any) -> Any:
        calls.append(state.step)
        if len(calls) == 5:  # the scoring at the end
            return None
        return predict(state, *rest)

    monkeypatch.setattr(scoring, "predict_dev", stopped)
    with pytest.raises(AssertionError):  # it has no summary yet
        learn(tiny, tmp_path / "stopped")
    learn(tiny, tmp_path / "stopped")
    learn(tiny, tmp_path / "unbroken")
    assert calls == [2, 4, 6, 8, 8, 8, 2, 4, 6, 8, 8]
    assert_identical(tmp_path / "stopped", tmp_path / "unbroken")


def test_evaluations_decide_which_steps_are_candidates_and_must_stay(
    tiny: Path, tmp_path: Path, by_step: dict[int, Tensor]
) -> None:
    learn(tiny, tmp_path / "run")
    with pytest.raises(UserError, match=r"config\.eval_steps: here 2, asked 4"):
        learn(tiny, tmp_path / "run", "--eval-steps", "4")


def test_less_is_better_of_an_error() -> None:
    network, stopping = nn.Linear(1, 1), EarlyStopping(patience=2, direction=-1)
    for step, score in enumerate([3.0, 2.0, 2.5], start=1):
        stopping.add(score, step, network)
    assert (stopping.best_step, stopping.is_over) == (2, False)
    stopping.add(2.0, 4, network)
    assert (stopping.best_step, stopping.is_over) == (2, True)


def test_a_network_gets_its_best_weights_back() -> None:
    network, stopping = nn.Linear(2, 1), EarlyStopping(patience=1, direction=1)
    stopping.add(0.5, 1, network)
    before = network.weight.detach().clone()
    nn.init.zeros_(network.weight)
    stopping.add(0.25, 2, network)
    stopping.load_best(network, torch.optim.SGD(network.parameters()))
    assert network.weight.equal(before)
