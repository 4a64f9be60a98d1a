"""Which arm is better, and how sure that is: ours against the order that the paper found.

A sample is one arm's scores in points, one for each pre-training seed. Two samples differ when
their means are further apart than two standard errors of the difference. With few seeds that is a
low bar, so how low is said beside it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Literal

from electra.experiments.findings import Finding, Findings
from electra.experiments.plan import Arm, Trial

Verdict = Literal[
    "as published", "contradicts the paper", "not decided", "no spread known", "says nothing"
]
AVERAGES = (
    "average",
    "avg",
    "avg.",
    "glue",
    "score",
)  # what a column with the one number of an arm is called


@dataclass(frozen=True)
class Sample:
    """One score for each pre-training seed, in points."""

    values: tuple[float, ...]

    @property
    def seeds(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def sd(self) -> float | None:
        return statistics.stdev(self.values) if self.seeds > 1 else None

    def __str__(self) -> str:
        spread = "" if self.sd is None else f" ± {self.sd:.1f}"
        return f"{self.mean:.1f}{spread} (n={self.seeds})"


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two arms in the order in which the paper has them."""

    better: Arm
    worse: Arm
    ours: tuple[Sample, Sample]
    is_tie: bool = False  # published with the same value
    at_baseline: tuple[
        str, ...
    ] = ()  # labels of those that are no better than answers that ignore the text

    @property
    def difference(self) -> float:
        return self.ours[0].mean - self.ours[1].mean

    @property
    def error(self) -> float | None:
        """Standard error of the difference."""
        if any(sample.sd is None for sample in self.ours):
            return None
        return math.sqrt(sum((sample.sd or 0.0) ** 2 / sample.seeds for sample in self.ours))

    @property
    def chance(self) -> float:
        """That two arms with such spreads come out further apart than 2 standard errors though they
        do not differ: of Student's t, with Welch's degrees of freedom.
        """
        from scipy.stats import t

        parts = [((sample.sd or 0.0) ** 2 / sample.seeds, sample.seeds - 1) for sample in self.ours]
        whole = sum(part for part, _ in parts)
        freedom = (
            whole**2 / sum(part**2 / more for part, more in parts)
            if whole
            else sum(more for _, more in parts)
        )
        return float(2 * t.sf(2, freedom))

    @property
    def verdict(self) -> Verdict:
        if self.at_baseline:
            return "says nothing"
        if self.error is None:
            return "no spread known"
        if abs(self.difference) <= 2 * self.error:
            return "not decided"  # nor does that confirm a tie
        return (
            "as published" if self.difference > 0 and not self.is_tie else "contradicts the paper"
        )

    def __str__(self) -> str:
        """The finding in words. That something is not decided is a finding, too."""
        here, there = self.better.label, self.worse.label
        side = "below" if self.difference < 0 else "above"
        above = f"{here} is {abs(self.difference):.1f} points {side} {there}"
        if f"{abs(self.difference):.1f}" == "0.0":
            above = f"{here} is level with {there}"
        published = "the paper has them equal" if self.is_tie else f"the paper has {here} above"
        if self.at_baseline:
            verb = "is" if len(self.at_baseline) == 1 else "are"
            return f"{above}, but {' and '.join(self.at_baseline)} {verb} at the trivial level; {published}"
        if self.error is None:
            few = " and ".join(
                arm.label
                for arm, sample in zip((self.better, self.worse), self.ours, strict=True)
                if sample.sd is None
            )
            return f"{above}; {few} ran with one seed, so no spread is known and nothing follows; {published}"
        size = "more than" if abs(self.difference) > 2 * self.error else "within"
        seeds = f"n={self.ours[0].seeds} and {self.ours[1].seeds}"
        return f"{above}, {size} 2 standard errors of the difference ({2 * self.error:.1f}; {seeds}); {published}"


# ---- scores --------------------------------------------------------------------------------------


def points(found: Iterable[Finding], task: str) -> Sample | None:
    """A task's scores, one for each pre-trained network that was scored on it."""
    values = [
        100 * score.value for finding in found for score in finding.scores if score.task == task
    ]
    return Sample(tuple(values)) if values else None


def average(finding: Finding, tasks: Sequence[str]) -> float | None:
    """In points, over all of these tasks or not at all: an average over other tasks is another
    number.
    """
    scored = {score.task: score.value for score in finding.scores}
    if not tasks or not finding.done or any(task not in scored for task in tasks):
        return None
    return 100 * statistics.fmean(scored[task] for task in tasks)


def shared_tasks(findings: Findings) -> list[str]:
    """What every run that is done was scored on: some arms may have been given more tasks than
    others.
    """
    scored = [
        {score.task for score in finding.scores}
        for finding in findings.results
        if finding.done and finding.scores
    ]
    return [task for task in findings.tasks if scored and all(task in tasks for tasks in scored)]


def averages(findings: Findings, tasks: Sequence[str] = ()) -> dict[str, Sample]:
    """By arm, over these tasks or those that arms share; an arm without a seed that has them all
    has no average.
    """
    samples, tasks = dict[str, Sample](), tasks or shared_tasks(findings)
    for arm in findings.trial.arms:
        values = [average(finding, tasks) for finding in of_arm(findings, arm)]
        if whole := tuple(value for value in values if value is not None):
            samples[arm.name] = Sample(whole)
    return samples


def of_arm(findings: Findings, arm: Arm) -> list[Finding]:
    return sorted(
        (finding for finding in findings.results if finding.arm == arm.name),
        key=lambda finding: finding.seed,
    )


def baseline(findings: Findings, *tasks: str) -> float | None:
    """What an answer that ignores the text gets on average over these tasks, in points."""
    known = {
        score.task: 100 * score.baseline for finding in findings.results for score in finding.scores
    }
    return (
        statistics.fmean(known[task] for task in tasks)
        if tasks and all(task in known for task in tasks)
        else None
    )


def at_baseline(findings: Findings) -> list[Arm]:
    """Arms that are less than a point above an answer that ignores the text: their order says
    nothing.
    """
    samples, level = averages(findings), baseline(findings, *shared_tasks(findings))
    return [
        arm
        for arm in findings.trial.arms
        if arm.name in samples and level is not None and samples[arm.name].mean < level + 1
    ]


def headline(trial: Trial) -> str | None:
    """The published column that ranks the arms."""
    return next((column for column in trial.columns if column.lower() in AVERAGES), None)


# ---- comparing -----------------------------------------------------------------------------------


def pairs(findings: Findings, *, neighbours: bool = True) -> list[Pair]:
    """Arms that the paper orders and that were scored here: neighbours in that order, or every two
    of them.
    """
    samples, column = averages(findings), headline(findings.trial)
    by_name, low = {arm.name: arm for arm in findings.trial.arms}, at_baseline(findings)
    ranked = [
        by_name[name] for name in findings.trial.expected if name in by_name and name in samples
    ]
    made = []
    for better, worse in pairwise(ranked) if neighbours else combinations(ranked, 2):
        values = [arm.published.get(column) if column else None for arm in (better, worse)]
        made.append(
            Pair(
                better=better,
                worse=worse,
                ours=(samples[better.name], samples[worse.name]),
                is_tie=values[0] is not None and values[0] == values[1],
                at_baseline=tuple(arm.label for arm in (better, worse) if arm in low),
            )
        )
    return made


def found_order(findings: Findings) -> str:
    """Our arms from best to worst; ≈ where a neighbour is not surely worse, ? where no spread is
    known.
    """
    samples = averages(findings)
    ranked = sorted(
        (arm for arm in findings.trial.arms if arm.name in samples),
        key=lambda arm: samples[arm.name].mean,
        reverse=True,
    )
    text = ranked[0].label if ranked else ""
    for better, worse in pairwise(ranked):
        pair = Pair(better=better, worse=worse, ours=(samples[better.name], samples[worse.name]))
        sign = {"as published": ">", "not decided": "≈"}.get(pair.verdict, ">?")
        text += f" {sign} {worse.label}"
    return text


def published_order(trial: Trial) -> str:
    by_name, column = {arm.name: arm for arm in trial.arms}, headline(trial)
    ranked = [by_name[name] for name in trial.expected if name in by_name]
    text = ranked[0].label if ranked else ""
    for better, worse in pairwise(ranked):
        values = [arm.published.get(column) if column else None for arm in (better, worse)]
        text += f" {'=' if values[0] is not None and values[0] == values[1] else '>'} {worse.label}"
    return text


def peaks(findings: Findings) -> list[str]:
    """Where each line of a figure is highest, in words."""
    samples, sentences = averages(findings), []
    for series, line in lines(findings).items():
        ranked = sorted(line, key=lambda arm: samples[arm.name].mean, reverse=True)
        if len(ranked) > 1:
            pair = Pair(
                better=ranked[0],
                worse=ranked[1],
                ours=(samples[ranked[0].name], samples[ranked[1].name]),
            )
            sure = {
                "as published": "more than 2 standard errors above",
                "not decided": "within 2 standard errors of",
            }
            sentences.append(
                f"{series or 'All arms'}: highest at {place(ranked[0])} with {pair.ours[0]}, "
                f"{sure.get(pair.verdict, 'with no spread known, above')} the next, "
                f"{place(ranked[1])} "
                f"with {pair.ours[1]}"
            )
    return sentences


def gaps(findings: Findings) -> list[str]:
    """How far a figure's first line is above its second, at every place that both have."""
    samples, two = averages(findings), list(lines(findings).items())
    if len(two) != 2:
        return []
    (name, upper), (other, lower) = two
    sentences = []
    for arm, beside in ((arm, beside) for arm in upper for beside in lower if arm.x == beside.x):
        pair = Pair(better=arm, worse=beside, ours=(samples[arm.name], samples[beside.name]))
        error = (
            "no spread known"
            if pair.error is None
            else f"2 standard errors are {2 * pair.error:.1f}"
        )
        sentences.append(
            f"At {place(arm)}, {name} against {other}: {pair.difference:+.1f} points ({error})"
        )
    return sentences


def lines(findings: Findings) -> dict[str, list[Arm]]:
    """The scored arms of a figure by line, from left to right."""
    samples, found = averages(findings), dict[str, list[Arm]]()
    for arm in sorted(
        (arm for arm in findings.trial.arms if arm.x is not None), key=lambda arm: arm.x or 0.0
    ):
        if arm.name in samples:
            found.setdefault(arm.series, []).append(arm)
    order = list(dict.fromkeys(arm.series for arm in findings.trial.arms))
    return dict(sorted(found.items(), key=lambda entry: order.index(entry[0])))


def place(arm: Arm) -> str:
    return f"{arm.x:.3g}"
