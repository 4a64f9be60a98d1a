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

    arm: str
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


@dataclass(frozen=True)
class Effects:
    """What each factor of a factorial experiment changes, in points, averaged over the others.

    They are a least-squares fit of their sum. What that leaves over is the spread: chance, and
    what factors do together.
    """

    points: dict[str, float]
    by_chance: float | None  # an effect is at most so much; None where nothing is left over
    runs: int

    def is_clear(self, factor: str) -> bool:
        return self.by_chance is not None and abs(self.points[factor]) > self.by_chance


def estimate_effects(scores: Mapping[str, Sequence[float]], factorial: Factorial) -> Effects | None:
    """Return the effects; None where the runs do not tell all factors apart."""
    rows, values = [], []
    for arm, factors in factorial.combinations().items():
        for score in scores.get(arm, ()):
            rows.append([1.0, *(float(factor in factors) for factor in factorial.factors)])
            values.append(score)
    matrix, fitted = np.array(rows), 1 + len(factorial.factors)
    if len(rows) < fitted or np.linalg.matrix_rank(matrix) < fitted:
        return None
    estimates = np.linalg.lstsq(matrix, np.array(values), rcond=None)[0]
    by_chance = None
    if degrees := len(rows) - fitted:
        left_over = values - matrix @ estimates
        # Where a run is missing the factors are not equally certain; the least certain counts.
        uncertainty = np.linalg.inv(matrix.T @ matrix).diagonal()[1:].max()
        error = sqrt(uncertainty * (left_over @ left_over) / degrees)
        by_chance = student_quantile(degrees) * error
    points = dict(zip(factorial.factors, estimates[1:].tolist(), strict=True))
    return Effects(points, by_chance, runs=len(rows))
