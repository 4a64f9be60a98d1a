"""Scoring is stopped between two batches, and done again when the run continues."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from electra.__main__ import main
from electra.finetuning import loop, scoring
from electra.runs.journal import read_metrics
from electra.tasks.features import Array, Features
from electra.tasks.inference import compute_outputs
from tests.finetuning.test_loop import assert_identical, command_of
from tests.tasks.toys import keyword_rows, written

pytestmark = pytest.mark.usefixtures("few_threads")


def one_by_one(features: Features, *_: Any) -> list[Array]:
    return [features.examples[unit : unit + 1] for unit in range(len(features))]


def signal_in_scoring(number: int, seen: list[int]) -> Callable[..., Any]:
    """Return a `compute_outputs` that sends SIGTERM at the batch of this number, counted over all
    calls.
    """

    def watched(batches: Iterator[Array]) -> Iterator[Array]:
        for units in batches:
            seen.append(int(units[0]))
            if len(seen) == number:
                os.kill(os.getpid(), signal.SIGTERM)
            yield units

    def compute(*rest: Any, batches: Iterator[Array], **more: Any) -> Any:
        return compute_outputs(*rest, batches=watched(batches), **more)

    return compute


@pytest.mark.parametrize(
    ("flags", "number", "step"),
    [((), 2, 12), (("--eval-steps", "6"), 3, 6)],
    ids=["after training", "during training"],
)
def test_a_run_told_to_stop_while_it_scores_stops_at_once_and_goes_on_to_the_same_result(
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: tuple[str, ...],
    number: int,
    step: int,
) -> None:
    data, run, seen = written(tmp_path / "rows.csv", keyword_rows(20)), tmp_path / "run", []
    monkeypatch.setattr(scoring, "inference_batches", one_by_one)
    with monkeypatch.context() as patched:
        patched.setattr(scoring, "compute_outputs", signal_in_scoring(number, seen))
        assert main(command_of(tiny, data, run, *flags)) == 75
    assert len(seen) == number, "no batch after the signal"
    assert "asked to stop while scoring dev" in capsys.readouterr().err
    assert (run / "seed-0" / f"checkpoint-{step}" / "state.json").exists()
    taken: list[int] = []

    def recording(state: Any, units: Any, *, step: int) -> Any:
        taken.append(step)
        return forward_backward(state, units, step=step)

    forward_backward = loop.forward_backward
    with monkeypatch.context() as patched:
        patched.setattr(loop, "forward_backward", recording)
        assert main(command_of(tiny, data, run, *flags)) == 0
    assert taken == list(range(step + 1, 13))
    assert main(command_of(tiny, data, tmp_path / "unbroken", *flags)) == 0
    assert_identical(run, tmp_path / "unbroken")
    for of_run in (scores_by_step, predictions):
        assert of_run(run) == of_run(tmp_path / "unbroken")


def scores_by_step(run: Path) -> list[tuple[int, float]]:
    entries = read_metrics(run / "seed-0" / "metrics.jsonl")
    return [(entry["step"], entry["dev_accuracy"]) for entry in entries if "dev_accuracy" in entry]


def predictions(run: Path) -> str:
    return (run / "seed-0" / "predictions-dev.jsonl").read_text()
