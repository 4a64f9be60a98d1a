"""Warnings about recipes and plateaus, and the first tensor that is not finite."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from electra.data.shards import Shards
from electra.model.shape import EncoderShape
from electra.objectives.rtd import ReplacedTokenDetection
from electra.objectives.settings import ReplacedTokenDetectionConfig
from electra.pretraining.diagnosis import first_non_finite_output, plateau_warnings, recipe_warnings
from electra.pretraining.recipe import load_recipe
from tests.conftest import ToyVocabulary, toy_batch

RECIPE = load_recipe("small")  # 16,384 tokens a step
LATE = 20_000
HEALTHY = {"rtd_loss": 0.2, "baseline_rtd_loss": 0.35, "mlm_loss": 3.0, "baseline_mlm_loss": 6.0}


# ---- plateaus ------------------------------------------------------------------------------------


def test_a_run_that_learns_gives_no_warning() -> None:
    assert plateau_warnings(HEALTHY, RECIPE, step=LATE) == []


def test_a_discriminator_that_calls_everything_original_gives_a_warning() -> None:
    (warning,) = plateau_warnings({**HEALTHY, "rtd_loss": 0.3499}, RECIPE, step=LATE)
    assert warning.startswith("step 20000: the discriminator only knows how many tokens are")
    assert "(loss 0.3499; 0.3500 without looking at the context)" in warning


def test_a_generator_that_knows_only_frequencies_gives_a_warning() -> None:
    (warning,) = plateau_warnings({**HEALTHY, "mlm_loss": 5.99}, RECIPE, step=LATE)
    assert warning.startswith("step 20000: the masked LM only copies, and knows how frequent words")
    assert "(loss 5.9900; 6.0000 without looking at the context)" in warning


RESTORING = {
    "restore_loss": 0.3,
    "baseline_restore_loss": 0.5,
    "mlm_loss": 3.0,
    "baseline_mlm_loss": 6.0,
}


@pytest.mark.parametrize("name", ["replace-mlm-base", "all-tokens-mlm-base"])
def test_an_encoder_that_only_copies_gives_a_warning(name: str) -> None:
    recipe = load_recipe(name)
    assert plateau_warnings(RESTORING, recipe, step=LATE) == []
    (warning,) = plateau_warnings({**RESTORING, "restore_loss": 0.4999}, recipe, step=LATE)
    assert warning.startswith("step 20000: the encoder only copies the tokens it reads")
    assert "(loss 0.4999; 0.5000 without looking at the context)" in warning


@pytest.mark.parametrize("name", ["adversarial-base", "two-stage-base"])
def test_a_generator_that_does_not_learn_to_be_likely_gives_no_warning(name: str) -> None:
    recipe, unlikely = load_recipe(name), {**HEALTHY, "mlm_loss": 9.0}
    assert plateau_warnings(unlikely, recipe, step=LATE) == []
    assert len(plateau_warnings({**unlikely, "rtd_loss": 0.35}, recipe, step=LATE)) == 1


def test_there_is_no_warning_during_warm_up_or_before_a_network_can_have_learnt() -> None:
    ignorant = {**HEALTHY, "rtd_loss": 1.0, "mlm_loss": 9.0}
    assert plateau_warnings(ignorant, RECIPE, step=14_999) == []
    assert len(plateau_warnings(ignorant, RECIPE, step=15_000)) == 2
    quick = load_recipe("small", flags=["--warmup-steps", "100"])
    assert plateau_warnings(ignorant, quick, step=3_051) == [], "fewer than 50 million tokens"
    assert len(plateau_warnings(ignorant, quick, step=3_052)) == 2


def test_a_masked_lm_gives_no_warning_about_a_discriminator() -> None:
    assert plateau_warnings({"mlm_loss": 3.0, "baseline_mlm_loss": 6.0}, RECIPE, step=LATE) == []


# ---- recipes -------------------------------------------------------------------------------------


def warnings_for(shards: Path, *flags: str) -> list[str]:
    return recipe_warnings(load_recipe("tiny", flags=flags), Shards.open(shards))


def test_too_many_epochs_are_warned_of_with_their_number(toy_shards: Path) -> None:
    rows = len(Shards.open(toy_shards).train)
    warnings = warnings_for(
        toy_shards, "--max-steps", str(50 * rows), "--batch-size", "16", "--micro-batch-size", "16"
    )
    assert any(
        "each row will be seen 800 times; add text, or lower --max-steps" in text
        for text in warnings
    )
    assert not any("will be seen" in text for text in warnings_for(toy_shards, "--max-steps", "10"))


def test_a_generator_wider_than_half_the_discriminator_is_warned_of(toy_shards: Path) -> None:
    warnings = warnings_for(toy_shards, "--objective.generator.fraction", "0.75")
    assert any("the generator is 48 wide beside a discriminator of 64" in text for text in warnings)
    assert not any(
        "wide beside" in text
        for text in warnings_for(toy_shards, "--objective.generator.fraction", "0.5")
    )


def test_a_frozen_generator_is_as_wide_as_its_first_stage_and_not_warned_of(
    toy_shards: Path,
) -> None:
    warnings = warnings_for(
        toy_shards,
        "--objective.generator.fraction",
        "1.0",
        "--objective.generator.tie",
        "none",
        "--objective.generator-training",
        "frozen",
    )
    assert not any("wide beside" in text for text in warnings)


def test_a_recipe_without_a_generator_network_is_checked_too(toy_shards: Path) -> None:
    assert not any(
        "wide" in text for text in warnings_for(toy_shards, "--objective.generator.kind", "unigram")
    )


# ---- numbers that are not finite -----------------------------------------------------------------


@pytest.fixture
def objective() -> ReplacedTokenDetection:
    vocabulary = ToyVocabulary()
    torch.manual_seed(0)
    shape = EncoderShape(layers=2, width=16, heads=2, feedforward=32, embedding=8, positions=16)
    return ReplacedTokenDetection(
        ReplacedTokenDetectionConfig(),
        encoder=shape,
        vocabulary=vocabulary,
        unigrams=torch.full((vocabulary.size,), 1 / vocabulary.size),
    )


def test_healthy_networks_have_no_non_finite_output(objective: ReplacedTokenDetection) -> None:
    assert first_non_finite_output(objective, toy_batch([16, 9])) is None


@pytest.mark.parametrize(
    "module",
    [
        "generator.encoder.blocks.1.expand",
        "generator.encoder.embeddings.word_embeddings",
        "discriminator.encoder.blocks.0.attention.output",
        "discriminator.encoder.blocks.1.feedforward_norm",
    ],
)
def test_the_first_non_finite_output_is_that_of_the_module_whose_weight_is_nan(
    objective: ReplacedTokenDetection, module: str
) -> None:
    with torch.no_grad():
        objective.get_submodule(module).weight.fill_(math.nan)  # type: ignore[operator, union-attr]
    assert first_non_finite_output(objective, toy_batch([16, 9])) == f"the output of {module}"


def test_no_forward_hooks_are_left_behind(objective: ReplacedTokenDetection) -> None:
    first_non_finite_output(objective, toy_batch([16]))
    assert not any(module._forward_hooks for module in objective.modules())
