"""The mask rate may change during a run: its arithmetic, its shapes, and the fixed evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from electra.config import SettingError
from electra.model.shape import EncoderShape
from electra.objectives.masking import Masking
from electra.objectives.masking_objective import MaskingObjective
from electra.objectives.settings import (
    MaskedLMConfig,
    ReplacedTokenDetectionConfig,
    ReplaceMLMConfig,
)
from electra.pretraining.pretrain import pretrain
from electra.pretraining.recipe import load_recipe
from electra.runs import checkpoint
from tests.conftest import TOY_FLAGS, toy_batch, toy_objective

FALLING = Masking(rate=0.3, final_rate=0.15)
SHAPE = EncoderShape(
    layers=1, width=16, heads=2, feedforward=32, embedding=8, positions=64, dropout=0.0
)


def build(
    masking: Masking, config: type = ReplacedTokenDetectionConfig, **settings: object
) -> MaskingObjective:
    return toy_objective(config(masking=masking, **settings), SHAPE)


def test_the_rate_falls_in_equal_steps_from_the_first_to_the_last() -> None:
    rates = [FALLING.rate_at(step, max_steps=4) for step in range(1, 5)]
    assert rates == pytest.approx([0.3, 0.25, 0.2, 0.15])
    assert FALLING.rate_at(1, max_steps=1) == 0.3
    assert Masking(rate=0.2).rate_at(7, max_steps=9) == 0.2
    rising = Masking(rate=0.1, final_rate=0.2)
    assert rising.rate_at(9, max_steps=9) == pytest.approx(0.2)


def test_shapes_are_those_of_the_largest_rate_whichever_end_it_is_at() -> None:
    assert FALLING.max_predictions(128) == Masking(rate=0.3).max_predictions(128) == 39
    assert Masking(rate=0.15, final_rate=0.3).max_predictions(128) == 39
    work = ReplacedTokenDetectionConfig(masking=FALLING).workload(SHAPE, vocabulary=50, length=64)
    assert work.mask_rate == 0.3


@pytest.mark.parametrize(("step", "expected"), [(1, [19, 10]), (6, [14, 7]), (11, [10, 5])])
def test_a_step_masks_at_its_rate_in_shapes_that_do_not_change(
    step: int, expected: list[int]
) -> None:
    objective, batch = build(FALLING), toy_batch([64, 32], length=64)
    objective.begin_step(step, max_steps=11)
    masked = objective.mask(batch, torch.Generator().manual_seed(1))
    assert masked.scored.shape == (2, FALLING.max_predictions(64))
    assert masked.scored.sum(1).tolist() == expected
    assert objective.masked_in_step(batch) == sum(expected)
    is_changed = (masked.input_ids != batch.input_ids).sum(1)
    assert (is_changed <= torch.tensor(expected)).all()


def test_the_first_positions_are_those_of_a_fixed_rate() -> None:
    objective, batch = build(FALLING), toy_batch([64, 32], length=64)
    objective.begin_step(9, max_steps=9)
    positions = objective.mask(batch, torch.Generator().manual_seed(1)).positions
    fixed = build(Masking(rate=0.15)).mask(batch, torch.Generator().manual_seed(1)).positions
    assert positions[:, : fixed.shape[1]].equal(fixed)


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        (ReplacedTokenDetectionConfig, {}),
        (ReplacedTokenDetectionConfig, {"scored": "masked"}),
        (MaskedLMConfig, {}),
        (MaskedLMConfig, {"next_sentence": True}),
        (ReplaceMLMConfig, {}),
    ],
)
def test_held_out_scores_are_those_of_the_final_rate_at_every_step(
    config: type, settings: dict[str, object]
) -> None:
    falling, fixed = (
        build(masking, config, **settings) for masking in (FALLING, Masking(rate=0.15))
    )
    batch = toy_batch([64, 32], length=64)
    falling.begin_step(1, max_steps=9)
    scores = [
        objective.eval().measure(batch, torch.Generator().manual_seed(1)).scores()
        for objective in (falling, fixed)
    ]
    assert scores[0] == pytest.approx(scores[1], rel=0, abs=0, nan_ok=True)


def test_without_a_final_rate_there_is_nothing_to_set() -> None:
    objective = build(Masking())
    objective.begin_step(1, max_steps=9)
    assert objective.mask_rate is None


@pytest.mark.parametrize("final_rate", [0.0, 1.0])
def test_a_final_rate_that_masks_nothing_or_everything_is_refused(final_rate: float) -> None:
    with pytest.raises(SettingError, match=r"^final_rate=\d\.0 must be between 0 and 1"):
        Masking(final_rate=final_rate)


def test_a_run_with_a_falling_rate_resumes_bit_for_bit(toy_shards: Path, tmp_path: Path) -> None:
    flags = ["--max-steps", "4", "--save-steps", "2", "--warmup-steps", "1", "--eval-rows", "4"]
    flags += ["--objective.masking.rate", "0.4", "--objective.masking.final-rate", "0.1"]
    recipe = load_recipe("tiny", flags=[*TOY_FLAGS, *flags])
    for name in ("unbroken", "resumed"):
        pretrain(recipe, data=toy_shards, output_dir=tmp_path / name, quiet=True)
    checkpoint.remove(tmp_path / "resumed" / "checkpoint-4")
    pretrain(recipe, data=toy_shards, output_dir=tmp_path / "resumed", quiet=True)
    weights, again = (
        checkpoint.latest(tmp_path / name).tensors()[0] for name in ("unbroken", "resumed")
    )
    assert all(weights[key].equal(again[key]) for key in weights)
