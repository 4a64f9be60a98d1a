"""Warnings about recipes, and the first tensor that is not finite."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from electra.data.shards import Shards
from electra.model.shape import EncoderShape
from electra.objectives.rtd import ReplacedTokenDetection
from electra.objectives.settings import ReplacedTokenDetectionConfig
from electra.pretraining.diagnosis import first_non_finite_output, recipe_warnings
from electra.pretraining.recipe import load_recipe
from tests.conftest import ToyVocabulary, toy_batch

# ---- recipes -------------------------------------------------------------------------------------


def warnings_for(shards: Path, *flags: str) -> list[str]:
    return recipe_warnings(load_recipe("tiny", flags=flags), Shards.open(shards))


@pytest.mark.parametrize(
    ("dropout", "remedy"),
    [
        ("0.1", "add text, or lower --max-steps"),
        (
            "0",
            "add text, or lower --max-steps, or set --encoder.dropout 0.1 "
            "--encoder.attention-dropout 0.1",
        ),
    ],
)
def test_too_many_epochs_are_warned_of_with_their_number(
    toy_shards: Path, dropout: str, remedy: str
) -> None:
    rows = len(Shards.open(toy_shards).train)
    flags = ["--max-steps", str(50 * rows), "--batch-size", "16", "--micro-batch-size", "16"]
    flags += ["--encoder.dropout", dropout, "--encoder.attention-dropout", dropout]
    warnings = warnings_for(toy_shards, *flags)
    assert any(text.endswith(f"each row will be seen 800 times; {remedy}") for text in warnings)
    assert not any("will be seen" in text for text in warnings_for(toy_shards, "--max-steps", "10"))


def test_a_warm_up_as_long_as_the_run_is_warned_of_with_the_remedy(toy_shards: Path) -> None:
    (warning,) = (
        text
        for text in warnings_for(toy_shards, "--max-steps", "140")
        if "warmup_steps=140 is not less than training.max_steps=140" in text
    )
    assert "--warmup-steps" in warning
    assert "--budget" in warning
    assert not any("warmup_steps" in text for text in warnings_for(toy_shards))


def test_a_short_warm_up_without_bias_correction_is_warned_of_with_both_remedies(
    toy_shards: Path,
) -> None:
    def texts(warmup_steps: int, *flags: str, name: str = "small", steps: int = 2000) -> list[str]:
        schedule = ["--warmup-steps", str(warmup_steps), "--max-steps", str(steps)]
        recipe = load_recipe(name, flags=[*schedule, *flags])
        warnings = recipe_warnings(recipe, Shards.open(toy_shards))
        return [text for text in warnings if "bias_correction" in text]

    (warning,) = texts(12)
    assert warning.startswith("optimizer.warmup_steps=12 is short for optimizer.bias_correction=")
    assert "up to 6.6 times as large" in warning
    assert "raise --warmup-steps, or set --optimizer.bias-correction true" in warning
    assert texts(1000) == texts(12, "--optimizer.bias-correction", "true") == []
    assert texts(12, steps=20) == [], "a trial of the command"
    resumed = load_recipe("small", flags=["--warmup-steps", "12"])
    assert not any(
        "bias_correction" in text
        for text in recipe_warnings(resumed, Shards.open(toy_shards), step=1000)
    ), "it is past its first updates"
    assert texts(12, name="bert-small") == [], "it has no discriminator"
    (sixth,) = texts(333)
    assert "may collapse; set --optimizer.bias-correction true" in sixth, "no longer warm-up"


def test_a_rate_of_muon_without_muon_is_warned_of(toy_shards: Path) -> None:
    rate = ("--optimizer.muon-learning-rate", "1e-3")
    without, beside = (
        " ".join(warnings_for(toy_shards, *rate, "--optimizer.name", name))
        for name in ("adamw", "muon")
    )
    assert "optimizer.muon_learning_rate=0.001 has no effect with optimizer.name='adamw'" in without
    assert "has no effect" not in beside


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
