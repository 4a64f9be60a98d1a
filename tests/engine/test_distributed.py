"""One process, several, or accumulation: the same global batch gives the same losses and the same
weights.
"""

from __future__ import annotations

import pytest
from safetensors.torch import load_file

from electra.runs.journal import read_metrics
from tests.test_resume import finish


def outcome(run):
    entries = read_metrics(run / "metrics.jsonl")
    losses = [entry["loss"] for entry in entries if "loss" in entry]
    scores = [
        {k: v for k, v in entry.items() if k.startswith("eval_")}
        for entry in entries
        if "eval_auc" in entry
    ]
    weights = {
        f"{path.parent.name} {name}": tensor
        for path in sorted(run.glob("*/model.safetensors"))
        for name, tensor in load_file(path).items()
    }
    return losses, scores, weights


slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("parallel", "processes"),
    [
        ("ddp", 2),
        pytest.param("ddp", 3, marks=slow),
        pytest.param("fsdp", 2, marks=slow),
        pytest.param("fsdp", 3, marks=slow),
    ],
)
def test_several_processes_train_like_one_dropout_included_and_unpickle_nothing(
    toy_shards, tmp_path, parallel, processes
):
    """Three micro-batches of a step are dealt to one process, to two (unevenly) or to three."""
    finish(toy_shards, tmp_path / "one", "--encoder.dropout", "0.1")
    finish(
        toy_shards,
        tmp_path / "many",
        "--encoder.dropout",
        "0.1",
        "--parallel",
        parallel,
        processes=processes,
        module="tests.without_pickle",
    )
    losses, scores, weights = outcome(tmp_path / "one")
    their_losses, their_scores, their_weights = outcome(tmp_path / "many")
    assert len(losses) == 20
    assert their_losses == pytest.approx(losses, rel=1e-5)
    for ours, theirs in zip(scores, their_scores, strict=True):
        assert theirs == pytest.approx(ours, rel=1e-4, abs=1e-5)
    for name, tensor in weights.items():
        assert their_weights[name].allclose(tensor, rtol=1e-3, atol=1e-5), name


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_processes_and_another_parallelism(
    toy_shards, tmp_path
):
    constant = (
        "--optimizer.schedule",
        "constant",
    )  # the schedule would feel another number of steps
    finish(toy_shards, tmp_path / "one", *constant)
    for steps, processes, parallel in (
        (6, 3, "fsdp"),
        (10, 1, "ddp"),
        (14, 2, "fsdp"),
        (17, 3, "ddp"),
        (20, 2, "ddp"),
    ):
        finish(
            toy_shards,
            tmp_path / "moved",
            *constant,
            "--max-steps",
            str(steps),
            "--parallel",
            parallel,
            processes=processes,
        )
    (losses, _, weights), (their_losses, _, their_weights) = (
        outcome(tmp_path / "one"),
        outcome(tmp_path / "moved"),
    )
    assert their_losses == pytest.approx(losses, rel=1e-5)
    for name, tensor in weights.items():
        assert their_weights[name].allclose(tensor, rtol=1e-3, atol=1e-5), name
