"""Which settings a search tries, and what it refuses."""

from __future__ import annotations

import pytest

from electra.config import UserError
from electra.finetuning.options import FinetuneOptions
from electra.finetuning.recipe import FinetuneConfig
from electra.finetuning.search_plan import SearchPlan, as_flags, plan_search

CONFIG = FinetuneConfig()


def plan(trainings: int | None = 12, minutes: float | None = None, **given: object) -> SearchPlan:
    return plan_search(CONFIG, given, trainings=trainings, minutes=minutes)


def test_the_recipes_own_settings_are_tried_first_and_all_others_once() -> None:
    candidates = plan().candidates
    assert candidates[0] == {"learning_rate": 3e-4, "epochs": 3.0, "batch_size": 32}
    assert len({tuple(settings.items()) for settings in candidates}) == len(candidates) == 45
    assert {settings["learning_rate"] for settings in candidates} == {
        1e-4, 1.5e-4, 3e-4, 6e-4, 9e-4,
    }  # fmt: skip
    assert {settings["batch_size"] for settings in candidates} == {16, 32, 64}
    assert plan().candidates == candidates


def test_what_is_set_is_not_searched() -> None:
    assert set(plan(5, learning_rate="1e-4").candidates[0]) == {"epochs", "batch_size"}
    steps = FinetuneConfig(max_steps=10)
    searched = plan_search(steps, {}, trainings=4, minutes=None).candidates[0]
    assert set(searched) == {"learning_rate", "batch_size"}


@pytest.mark.parametrize(
    ("trainings", "first", "second"), [(2, 2, 0), (5, 5, 0), (6, 4, 2), (12, 8, 4), (13, 9, 4)]
)
def test_a_third_of_the_budget_is_for_a_second_seed(
    trainings: int, first: int, second: int
) -> None:
    assert (plan(trainings).first_round, plan(trainings).second_round) == (first, second)


def test_the_plan_is_said_in_words() -> None:
    assert plan(12).describe() == (
        "search: 12 trainings: 8 settings of --learning-rate, --epochs, --batch-size, and the best "
        "4 again with another seed"
    )
    assert "30 minutes of training for up to 45 settings" in plan(None, 30.0).describe()


def test_settings_are_flags_to_copy() -> None:
    assert as_flags({"learning_rate": 6e-4, "epochs": 6.0, "batch_size": 16}) == (
        "--learning-rate 0.0006 --epochs 6 --batch-size 16"
    )


def test_a_search_that_cannot_choose_is_refused() -> None:
    with pytest.raises(UserError, match="nothing is left to search"):
        plan(4, learning_rate=1, epochs=1, batch_size=1)
    with pytest.raises(UserError, match="--search 99: there are only 45 settings"):
        plan(99)
    for options, message in (
        ({"search": 1}, "at least 2 trainings"),
        ({"search": 4, "search_minutes": 3.0}, "two budgets"),
        ({"search_minutes": 0.0}, "must be above 0"),
        ({"search_minutes": float("nan")}, "must be above 0"),
        ({"search": 4, "dev_on_train": True}, "--dev-on-train"),
    ):
        with pytest.raises(UserError, match=message):
            FinetuneOptions(**options)  # type: ignore[arg-type]


def test_a_batch_of_one_has_no_half() -> None:
    small = FinetuneConfig(batch_size=1)
    found = plan_search(small, {"learning_rate": 1, "epochs": 1}, trainings=2, minutes=None)
    assert [settings["batch_size"] for settings in found.candidates] == [1, 2]
