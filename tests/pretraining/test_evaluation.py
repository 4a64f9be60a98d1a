"""An evaluation is stopped between two micro-batches, and done again when the run continues."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from electra.objectives.rtd import ReplacedTokenDetection
from electra.pretraining.pretrain import pretrain
from electra.pretraining.recipe import load_recipe
from electra.runs.journal import read_metrics
from tests.conftest import TOY_FLAGS

pytestmark = pytest.mark.usefixtures("few_threads")

FLAGS = ["--max-steps", "8", "--eval-steps", "4", "--eval-rows", "12", "--micro-batch-size", "4"]
MODEL = "discriminator/model.safetensors"


@pytest.mark.parametrize(("calls", "step"), [(2, 4), (5, 8)], ids=["amid training", "at the end"])
def test_a_run_told_to_stop_while_it_evaluates_stops_at_once_and_goes_on_to_the_same_result(
    toy_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int, step: int
) -> None:
    recipe = load_recipe("tiny", flags=[*TOY_FLAGS, *FLAGS])
    measure, measured = ReplacedTokenDetection.measure, 0

    def signalling(self: Any, *given: Any) -> Any:
        nonlocal measured
        measured += 1
        if measured == calls:
            os.kill(os.getpid(), signal.SIGTERM)
        return measure(self, *given)

    def run(name: str) -> Any:
        return pretrain(recipe, data=toy_shards, output_dir=tmp_path / name, quiet=True)

    with monkeypatch.context() as patched:
        patched.setattr(ReplacedTokenDetection, "measure", signalling)
        stopped = run("stopped")
    assert (stopped.status, stopped.step, measured) == ("stopped", step, calls)
    resumed, unbroken = run("stopped"), run("unbroken")
    assert resumed.status == "finished"
    assert resumed.scores == unbroken.scores
    ours, theirs = (load_file(tmp_path / name / MODEL) for name in ("stopped", "unbroken"))
    assert all(tensor.equal(theirs[name]) for name, tensor in ours.items())
    evaluated = [
        [
            entry["step"]
            for entry in read_metrics(tmp_path / name / "metrics.jsonl")
            if "eval_auc" in entry
        ]
        for name in ("stopped", "unbroken")
    ]
    assert evaluated == [[4, 8], [4, 8]]
