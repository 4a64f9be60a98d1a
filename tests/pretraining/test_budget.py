"""A share of a recipe's steps is a schedule of its own, whoever asks for it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from electra.__main__ import main
from electra.config import UserError
from electra.experiments.budget import plan_stages
from electra.experiments.plan import load_scale, load_trial
from electra.pretraining.budget import parse_budget, scale_recipe
from electra.pretraining.recipe import load_recipe

SIXTEENTH = Fraction(1, 16)


@pytest.fixture
def settings_of(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Return the settings that a command would train with."""

    def of(*words: str) -> dict[str, Any]:
        assert main(["pretrain", *words, "--print-config"]) == 0
        return tomllib.loads(capsys.readouterr().out)

    return of


def test_a_sixteenth_means_the_same_to_pretrain_and_to_trials(
    settings_of: Callable[..., dict[str, Any]],
) -> None:
    trial = load_trial("small-models")
    (stage,) = plan_stages(
        trial, trial.arm("electra-small"), load_scale("paper"), budget=SIXTEENTH, seed=0
    )
    printed = settings_of("small", "--budget", "1/16")
    planned = stage.recipe
    assert printed["training"]["max_steps"] == planned.training.max_steps == 62_500
    assert printed["optimizer"]["warmup_steps"] == planned.optimizer.warmup_steps == 10_000
    for name in ("logging_steps", "eval_steps", "save_steps"):
        assert printed["training"][name] == getattr(planned.training, name)


def test_the_whole_budget_is_the_recipe() -> None:
    for name in ("tiny", "small", "large"):
        assert scale_recipe(load_recipe(name), Fraction(1)) == load_recipe(name)


def test_a_small_budget_is_still_evaluated_and_saved() -> None:
    training = scale_recipe(load_recipe("small"), Fraction(1, 10_000)).training
    assert (training.max_steps, training.eval_steps, training.save_steps) == (100, 5, 25)
    assert scale_recipe(load_recipe("small"), Fraction(1, 10**9)).training.max_steps == 1


@pytest.mark.parametrize(
    ("budget", "steps"), [("1/100", 1_667), ("1/20", 8_333), ("1/2", 10_000), ("2", 20_000)]
)
def test_the_warm_up_is_the_recipes_or_a_sixth_of_fewer_steps(budget: str, steps: int) -> None:
    recipe = scale_recipe(load_recipe("small"), Fraction(budget))  # 10,000 of 1,000,000
    assert recipe.optimizer.warmup_steps == steps


def test_a_setting_of_the_command_line_wins_over_the_budget(
    settings_of: Callable[..., dict[str, Any]],
) -> None:
    printed = settings_of("small", "--budget", "1/16", "--warmup-steps", "2000", "--seed", "3")
    assert printed["optimizer"]["warmup_steps"] == 2_000
    assert printed["training"]["seed"] == 3


def test_a_budget_and_a_number_of_steps_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--max-steps", "--training.max-steps"):
        assert main(["pretrain", "small", "--budget", "1/16", flag, "5", "--print-config"]) == 2
        assert "--budget and --max-steps" in capsys.readouterr().err


@pytest.mark.parametrize(
    "budget", ["0", "-1", "1/0", "half", "nan", "1e400", "1e-400", "1E999999999", "1001"]
)
def test_a_budget_that_is_no_share_of_anything_is_refused(budget: str) -> None:
    with pytest.raises(UserError, match=f"--budget {budget}"):
        parse_budget(budget)
