"""The plan of a search over the learning rate, the epochs and the batch size. No torch.

The grid stands around the settings of the recipe. What the user has set is not searched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from electra.config import UserError
from electra.data.shuffle import permutation
from electra.finetuning.recipe import FinetuneConfig
from electra.settings import as_flag

FACTORS = {
    "learning_rate": (1.0, 0.5, 2.0, 1 / 3, 3.0),
    "epochs": (1.0, 0.5, 2.0),
    "batch_size": (1.0, 0.5, 2.0),
}
FIRST_SEED = 1_000  # of the trials: not one of those that the best settings are trained with
Settings = Mapping[str, Any]  # the searched settings of one trial


@dataclass(frozen=True)
class SearchPlan:
    """Which settings are tried, and how many trainings there may be.

    In a first round every setting is trained with one seed. A third of the budget is for a second
    round, which trains the best of them with another seed: one lucky seed should not decide.
    """

    candidates: Sequence[Settings]  # in the order in which they are tried; the recipe's own first
    trainings: int | None = None
    minutes: float | None = None

    @property
    def first_round(self) -> int:
        """The largest number of settings in the first round."""
        if self.trainings is None:
            return len(self.candidates)
        return self.trainings - self.second_round

    @property
    def second_round(self) -> int:
        """The number of trainings in the second round: none, or at least two to compare."""
        if self.trainings is None:
            return 0
        return self.trainings // 3 * (self.trainings >= 6)

    def identity(self) -> dict[str, Any]:
        """Return what two searches must share to be the same."""
        return {"trainings": self.trainings, "minutes": self.minutes}

    def describe(self) -> str:
        """Return the plan in words."""
        names = ", ".join(as_flag(name) for name in self.candidates[0])
        if self.trainings is None:
            return (
                f"search: {self.minutes:g} minutes of training for up to {len(self.candidates)} "
                f"settings of {names}, the last third of them for the best with another seed"
            )
        text = f"search: {self.trainings} trainings: {self.first_round} settings of {names}"
        if self.second_round:
            text += f", and the best {self.second_round} again with another seed"
        return text


def plan_search(
    config: FinetuneConfig,
    given: Mapping[str, object],
    *,
    trainings: int | None,
    minutes: float | None,
) -> SearchPlan:
    """Return the plan for settings around `config`; those in `given` stay as they are."""
    names = [name for name in FACTORS if name not in given]
    if config.max_steps is not None and "epochs" in names:
        names.remove("epochs")  # it has no effect
    if not names:
        raise UserError(
            "--search: --learning-rate, --epochs and --batch-size are all set, so nothing is left "
            "to search; leave one of them out"
        )
    candidates = list_candidates(config, names)
    plan = SearchPlan(candidates, trainings, minutes)
    if plan.first_round > len(candidates):
        raise UserError(
            f"--search {trainings}: there are only {len(candidates)} settings of "
            f"{', '.join(as_flag(name) for name in names)} to try; lower it"
        )
    return plan


def list_candidates(config: FinetuneConfig, names: Sequence[str]) -> list[Settings]:
    """Return the settings of the grid: the recipe's own, then the others in a fixed order."""
    grid = []
    for factors in product(*(FACTORS[name] for name in names)):
        scaled = {}
        for name, factor in zip(names, factors, strict=True):
            scaled[name] = scale(getattr(config, name), factor)
        if scaled not in grid:
            grid.append(scaled)
    order = permutation(len(grid) - 1, "search")
    return [grid[0], *(grid[1 + int(index)] for index in order)]


def scale(value: float, factor: float) -> float:
    """Return a setting times a factor, with few digits; whole numbers stay whole and above 0."""
    if isinstance(value, int):
        return max(1, round(value * factor))
    return float(f"{value * factor:.2g}")


def apply_settings(config: FinetuneConfig, settings: Settings) -> FinetuneConfig:
    return replace(config, **settings)


def as_flags(settings: Settings) -> str:
    """Return settings as flags to copy: --learning-rate 0.0006 --epochs 6."""
    return " ".join(f"{as_flag(name)} {value:g}" for name, value in settings.items())
