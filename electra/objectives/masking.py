"""Settings of masking. No torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from electra.config import SettingError


@dataclass(frozen=True, kw_only=True, slots=True)
class Masking:
    """Which positions are predicted, and what the network reads there.

    Defaults follow the official code.
    """

    rate: float = 0.15  # share of the tokens that are predicted
    # the rate of the last step, reached in equal steps (Ankner et al. 2023: from 0.3 to 0.15);
    # held-out rows are always masked at it
    final_rate: float | None = None
    # share of the predicted positions that keep their token; most others become [MASK]
    keep: float = 0.15
    # share of the predicted positions that get a random token (BERT: keep = random = 0.1)
    random: float = 0.0
    # distinct: without replacement; official: with replacement, as published numbers were made
    draws: Literal["distinct", "official"] = "distinct"
    # rare: mask rarer words more often (a negative result of the paper)
    prefer: Literal["uniform", "rare"] = "uniform"

    def __post_init__(self) -> None:
        for name in ("rate", "final_rate"):
            if (value := getattr(self, name)) is not None and not 0 < value < 1:
                raise SettingError(name, "must be between 0 and 1", self)
        if self.keep < 0 or self.random < 0 or self.keep + self.random > 1:
            raise SettingError(
                "keep",
                "and {random} are shares of the chosen positions; they must add up to at most 1",
                self,
            )

    @property
    def max_rate(self) -> float:
        """The largest rate of a run. Its positions are computed in every step, scored or not."""
        return max(self.rate, self.final_rate or 0.0)

    def max_predictions(self, length: int) -> int:
        """Return the most positions predicted in a row (reference code: 19 of 128, 79 of 512)."""
        return max(1, int((self.max_rate + 0.005) * length))

    def rate_at(self, step: int, *, max_steps: int) -> float:
        """Return the rate of a step, counted from 1; the last one has `final_rate`."""
        if self.final_rate is None or max_steps == 1:
            return self.rate
        return self.rate + (self.final_rate - self.rate) * (step - 1) / (max_steps - 1)

    @property
    def schedule(self) -> str | None:
        """How the rate changes, in words; None where it does not."""
        if self.final_rate is None:
            return None
        return (
            f"from {self.rate:g} to {self.final_rate:g}; held-out rows are always masked at "
            f"{self.final_rate:g}"
        )

    def for_evaluation(self) -> Masking:
        """Return the masking of held-out rows, whose rate never changes."""
        if self.final_rate is None:
            return self
        return replace(self, rate=self.final_rate, final_rate=None)
