"""How far the arms of a stage are from their references, and how much of that may be chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, variance

import numpy as np
from scipy.stats import t as student

from benchmarks.harness import Result
from benchmarks.record_plan import Arm, Factorial, Stage

CONFIDENCE = 0.95
CASES = "19 of 20 cases"  # the same in words

Arms = Mapping[str, Sequence[Result]]  # the runs of each arm


def student_quantile(degrees: int) -> float:
    """Return how many standard errors chance reaches at most, in 19 of 20 cases."""
    return float(student.ppf((1 + CONFIDENCE) / 2, degrees))


@dataclass(frozen=True)
class Spread:
    """The standard deviation between seeds, taken to be the same for all arms."""

    deviation: float
    degrees: int  # of freedom

    def largest_by_chance(self, runs: int, other_runs: int) -> float:
        """Return what the means of so many runs differ by at most, in 19 of 20 cases."""
        return student_quantile(self.degrees) * self.deviation * sqrt(1 / runs + 1 / other_runs)


@dataclass(frozen=True)
class Difference:
    """The mean of an arm less that of its reference, in points."""

    arm: str  # or one factor of several arms
    reference: str
    points: float
    by_chance: float | None  # at most so much; None where no arm has two seeds

    @property
    def is_clear(self) -> bool:
        return self.by_chance is not None and abs(self.points) > self.by_chance


def is_scored(run: Result, tasks: Sequence[str]) -> bool:
    return "failed" not in run and set(run.get("tuned", ())) >= set(tasks)


def mean_score(run: Result, tasks: Sequence[str]) -> float:
    """Return the mean over tasks of the median over fine-tuning seeds, in points."""
    return 100 * fmean(run["tuned"][task]["median"] for task in tasks)


def scores_by_arm(arms: Arms, tasks: Sequence[str]) -> dict[str, list[float]]:
    """Return the mean scores of the runs of each arm that has some."""
    scores = {}
    for arm, runs in arms.items():
        if scored := [mean_score(run, tasks) for run in runs if is_scored(run, tasks)]:
            scores[arm] = scored
    return scores


def pool_spread(scores: Mapping[str, Sequence[float]]) -> Spread | None:
    """Return the spread between seeds, pooled over the arms that have several."""
    repeated = [values for values in scores.values() if len(values) > 1]
    degrees = sum(len(values) - 1 for values in repeated)
    if not degrees:
        return None
    squares = sum((len(values) - 1) * variance(values) for values in repeated)
    return Spread(sqrt(squares / degrees), degrees)


def compare_arms(
    scores: Mapping[str, Sequence[float]], arms: Sequence[Arm], stage: Stage
) -> dict[str, Difference]:
    """Return how far each arm is from its reference, or else from that of the stage."""
    spread, differences = pool_spread(scores), {}
    for arm in arms:
        reference = arm.reference if arm.reference in scores else stage.reference
        ours, theirs = scores.get(arm.name), scores.get(reference)
        if arm.name == reference or not ours or not theirs:
            continue
        by_chance = None
        if spread is not None:
            by_chance = spread.largest_by_chance(len(ours), len(theirs))
        points = fmean(ours) - fmean(theirs)
        differences[arm.name] = Difference(arm.name, reference, points, by_chance)
    return differences


def estimate_effects(
    scores: Mapping[str, Sequence[float]], arms: Sequence[Arm], factorial: Factorial
) -> dict[str, Difference]:
    """Return what each factor of a factorial experiment changes, whatever the others are.

    It is the least-squares fit of a sum of effects. What the fit leaves over, which is chance and
    what factors do together, is the spread. Empty where the runs do not tell all factors apart.
    """
    rows, values = [], []
    for arm in arms:
        if arm.factors or arm.name == factorial.reference:
            for score in scores.get(arm.name, ()):
                rows.append([1.0, *(float(name in arm.factors) for name in factorial.factors)])
                values.append(score)
    matrix = np.array(rows)
    count = 1 + len(factorial.factors)
    if len(rows) < count or np.linalg.matrix_rank(matrix) < count:
        return {}
    effects = np.linalg.lstsq(matrix, np.array(values))[0]
    degrees, limits = len(rows) - count, [None] * count
    if degrees:
        residuals = values - matrix @ effects
        variances = np.diagonal(np.linalg.inv(matrix.T @ matrix)) * (
            residuals @ residuals / degrees
        )
        limits = [student_quantile(degrees) * sqrt(each) for each in variances]
    return {
        name: Difference(name, factorial.reference, float(points), limit)
        for name, points, limit in zip(factorial.factors, effects[1:], limits[1:], strict=True)
    }
