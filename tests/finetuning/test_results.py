"""The result of a seed, as it is read back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from electra.finetuning.results import RESULT, SeedResult, find_best

GOOD = SeedResult(
    seed=0,
    score=float("nan"),
    scores={"dev": {"accuracy": float("nan")}},
    baseline=0.5,
    degenerate=True,
    diverged=True,
    steps=3,
    micro_batch_size=2,
    seconds=1.5,
)


def test_the_result_of_a_diverged_run_is_read_back(tmp_path: Path) -> None:
    GOOD.save(tmp_path)
    assert str(SeedResult.load(tmp_path)) == str(GOOD)


@pytest.mark.parametrize(
    "change",
    [{"seconds": "x" * 9}, {"scores": {}}, {"scores": {"dev": 1}}, {"steps": None}, {"odd": 1}],
    ids=str,
)
def test_a_damaged_result_counts_as_missing(tmp_path: Path, change: dict[str, object]) -> None:
    GOOD.save(tmp_path)
    values = json.loads((tmp_path / RESULT).read_text(encoding="utf8"))
    (tmp_path / RESULT).write_text(json.dumps(values | change), encoding="utf8")
    assert SeedResult.load(tmp_path) is None


def test_a_score_that_is_no_number_is_not_the_best() -> None:
    lost, learnt = GOOD, replace(GOOD, seed=1, score=0.5)
    assert find_best([lost, learnt], "accuracy") == find_best([learnt, lost], "mse") == learnt
