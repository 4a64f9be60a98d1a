"""Which arm is better, and how sure that is: our order of the arms against the paper's.

Two samples differ when their means are further apart than two standard errors of the difference.
With few seeds that is a low bar, so the report says how low.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Literal

from electra.experiments.findings import Findings
from electra.experiments.plan import Arm, Trial
from electra.reports.samples import Sample, arms_at_baseline, averages, ranking_column

Outcome = Literal[
    "as published", "contradicts the paper", "not decided", "no spread known", "says nothing"
]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two arms in the order in which the paper has them."""

    better: Arm
    worse: Arm
    ours: tuple[Sample, Sample]
    is_tie: bool = False  # published with the same value
    at_baseline: tuple[str, ...] = ()  # labels of arms no better than an answer without the text

    @property
    def difference(self) -> float:
        return self.ours[0].mean - self.ours[1].mean

    @property
    def error(self) -> float | None:
        """Standard error of the difference."""
        if any(sample.sd is None for sample in self.ours):
            return None
        return math.sqrt(sum(sample.variance_of_mean for sample in self.ours))

    @property
    def false_positive_rate(self) -> float:
        """How often equal arms with such spreads come out further apart than 2 standard errors.

        By Student's t, with Welch's degrees of freedom.
        """
        from scipy.stats import t

        variances = [sample.variance_of_mean for sample in self.ours]
        freedoms = [sample.seeds - 1 for sample in self.ours]
        freedom: float = sum(freedoms)
        if sum(variances):
            pairs = zip(variances, freedoms, strict=True)
            freedom = sum(variances) ** 2 / sum(variance**2 / own for variance, own in pairs)
        return float(2 * t.sf(2, freedom))

    @property
    def outcome(self) -> Outcome:
        if self.at_baseline:
            return "says nothing"
        if self.error is None:
            return "no spread known"
        if abs(self.difference) <= 2 * self.error:
            return "not decided"  # nor does that confirm a tie
        if self.difference > 0 and not self.is_tie:
            return "as published"
        return "contradicts the paper"

    def __str__(self) -> str:
        """The finding in words. That something is not decided is a finding, too."""
        difference = describe_difference(self)
        published = f"the paper has {self.better.label} above"
        if self.is_tie:
            published = "the paper has them equal"
        if self.at_baseline:
            verb = "are"
            if len(self.at_baseline) == 1:
                verb = "is"
            labels = " and ".join(self.at_baseline)
            return f"{difference}, but {labels} {verb} at the baseline; {published}"
        if self.error is None:
            labels = " and ".join(single_seed_labels(self))
            return (
                f"{difference}; {labels} ran with one seed, so no spread is known and nothing "
                f"follows; {published}"
            )
        size = "within"
        if abs(self.difference) > 2 * self.error:
            size = "more than"
        seeds = f"n={self.ours[0].seeds} and {self.ours[1].seeds}"
        return (
            f"{difference}, {size} 2 standard errors of the difference "
            f"({2 * self.error:.1f}; {seeds}); {published}"
        )


def describe_difference(pair: Pair) -> str:
    better, worse = pair.better.label, pair.worse.label
    points = f"{abs(pair.difference):.1f}"
    if points == "0.0":
        return f"{better} is level with {worse}"
    if pair.difference < 0:
        return f"{better} is {points} points below {worse}"
    return f"{better} is {points} points above {worse}"


def single_seed_labels(pair: Pair) -> list[str]:
    arms = zip((pair.better, pair.worse), pair.ours, strict=True)
    return [arm.label for arm, sample in arms if sample.sd is None]


# ---- the order of a table's arms -----------------------------------------------------------------


def compare_arms(findings: Findings, *, only_neighbours: bool = True) -> list[Pair]:
    """Return the pairs of arms that the paper orders and that were scored here."""
    samples, low = averages(findings), arms_at_baseline(findings)
    ranked = [arm for arm in expected_arms(findings.trial) if arm.name in samples]
    compared = list(combinations(ranked, 2))
    if only_neighbours:
        compared = list(pairwise(ranked))
    pairs = []
    for better, worse in compared:
        pair = Pair(
            better=better,
            worse=worse,
            ours=(samples[better.name], samples[worse.name]),
            is_tie=is_published_tie(findings.trial, better, worse),
            at_baseline=tuple(arm.label for arm in (better, worse) if arm in low),
        )
        pairs.append(pair)
    return pairs


def expected_arms(trial: Trial) -> list[Arm]:
    """Return the arms that the paper orders, from best to worst."""
    by_name = {arm.name: arm for arm in trial.arms}
    return [by_name[name] for name in trial.expected if name in by_name]


def is_published_tie(trial: Trial, arm: Arm, other: Arm) -> bool:
    """Return whether the paper has the same value for both arms."""
    column = ranking_column(trial)
    if column is None or arm.published.get(column) is None:
        return False
    return bool(arm.published[column] == other.published.get(column))


def found_order(findings: Findings) -> str:
    """Return our arms from best to worst.

    The sign is ≈ where a neighbour is not surely worse, >? where no spread is known.
    """
    samples = averages(findings)
    scored = [arm for arm in findings.trial.arms if arm.name in samples]
    ranked = sorted(scored, key=lambda arm: samples[arm.name].mean, reverse=True)
    if not ranked:
        return ""
    text = ranked[0].label
    for better, worse in pairwise(ranked):
        pair = Pair(better=better, worse=worse, ours=(samples[better.name], samples[worse.name]))
        sign = {"as published": ">", "not decided": "≈"}.get(pair.outcome, ">?")
        text += f" {sign} {worse.label}"
    return text


def published_order(trial: Trial) -> str:
    """Return the paper's arms from best to worst; empty where it does not order them."""
    ranked = expected_arms(trial)
    if not ranked:
        return ""
    text = ranked[0].label
    for better, worse in pairwise(ranked):
        sign = ">"
        if is_published_tie(trial, better, worse):
            sign = "="
        text += f" {sign} {worse.label}"
    return text


# ---- the lines of a figure -----------------------------------------------------------------------


def describe_peaks(findings: Findings) -> list[str]:
    """Return a sentence for each line of a figure: where it is highest."""
    samples = averages(findings)
    certainty = {
        "as published": "more than 2 standard errors above",
        "not decided": "within 2 standard errors of",
    }
    sentences = []
    for series, line in figure_lines(findings).items():
        ranked = sorted(line, key=lambda arm: samples[arm.name].mean, reverse=True)
        if len(ranked) < 2:
            continue
        best, second = ranked[:2]
        pair = Pair(better=best, worse=second, ours=(samples[best.name], samples[second.name]))
        sure = certainty.get(pair.outcome, "with no spread known, above")
        sentences.append(
            f"{series or 'All arms'}: highest at {best.x:.3g} with {pair.ours[0]}, {sure} the "
            f"next, {second.x:.3g} with {pair.ours[1]}"
        )
    return sentences


def describe_gaps(findings: Findings) -> list[str]:
    """Return how far a figure's first line is above its second, wherever both have a point."""
    samples, series = averages(findings), list(figure_lines(findings).items())
    if len(series) != 2:
        return []
    (upper_name, upper), (lower_name, lower) = series
    sentences = []
    for arm, other in ((arm, other) for arm in upper for other in lower if arm.x == other.x):
        pair = Pair(better=arm, worse=other, ours=(samples[arm.name], samples[other.name]))
        error = "no spread known"
        if pair.error is not None:
            error = f"2 standard errors are {2 * pair.error:.1f}"
        sentences.append(
            f"At {arm.x:.3g}, {upper_name} against {lower_name}: {pair.difference:+.1f} points "
            f"({error})"
        )
    return sentences


def figure_lines(findings: Findings) -> dict[str, list[Arm]]:
    """Return the scored arms of each line of a figure, from left to right."""
    samples = averages(findings)
    drawn = [arm for arm in findings.trial.arms if arm.x is not None and arm.name in samples]
    series = dict.fromkeys(arm.series for arm in findings.trial.arms)
    lines: dict[str, list[Arm]] = {name: [] for name in series}
    for arm in sorted(drawn, key=lambda arm: arm.x or 0.0):
        lines[arm.series].append(arm)
    return {name: line for name, line in lines.items() if line}
