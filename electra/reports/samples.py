"""The scores of arms as samples: one value for each pre-training seed, in points."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from electra.experiments.findings import Finding, Findings
from electra.experiments.plan import Arm, Trial

# Names of the column that holds the one number of an arm.
AVERAGES = ("average", "avg", "avg.", "glue", "score")


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
        """The standard deviation; None of a single seed."""
        if self.seeds < 2:
            return None
        return statistics.stdev(self.values)

    @property
    def variance_of_mean(self) -> float:
        """The squared standard error of the mean; 0 of a single seed."""
        return (self.sd or 0.0) ** 2 / self.seeds

    def __str__(self) -> str:
        if self.sd is None:
            return f"{self.mean:.1f} (n={self.seeds})"
        return f"{self.mean:.1f} ± {self.sd:.1f} (n={self.seeds})"


def findings_of(findings: Findings, arm: Arm) -> list[Finding]:
    """Return the findings of an arm by seed."""
    own = [finding for finding in findings.results if finding.arm == arm.name]
    return sorted(own, key=lambda finding: finding.seed)


def task_sample(results: Iterable[Finding], task: str) -> Sample | None:
    """Return a task's scores, one for each pre-trained network that was scored on it."""
    scores = [score for finding in results for score in finding.scores if score.task == task]
    if not scores:
        return None
    return Sample(tuple(100 * score.value for score in scores))


def average(finding: Finding, tasks: Sequence[str]) -> float | None:
    """Return the average score over these tasks, in points.

    It is None where a task is missing: an average over other tasks is another number.
    """
    scores = {score.task: score.value for score in finding.scores}
    if not tasks or not finding.done or any(task not in scores for task in tasks):
        return None
    return 100 * statistics.fmean(scores[task] for task in tasks)


def shared_tasks(findings: Findings) -> list[str]:
    """Return the tasks that every scored run has: some arms may have been given more."""
    scored = [finding for finding in findings.results if finding.done and finding.scores]
    if not scored:
        return []
    shared = set.intersection(*({score.task for score in finding.scores} for finding in scored))
    return [task for task in findings.tasks if task in shared]


def averages(findings: Findings, tasks: Sequence[str] = ()) -> dict[str, Sample]:
    """Return the average scores of each arm over these tasks, or over the shared ones.

    An arm without a seed that has all tasks is left out.
    """
    tasks = tasks or shared_tasks(findings)
    samples = {}
    for arm in findings.trial.arms:
        values = [average(finding, tasks) for finding in findings_of(findings, arm)]
        known = tuple(value for value in values if value is not None)
        if known:
            samples[arm.name] = Sample(known)
    return samples


def baseline(findings: Findings, *tasks: str) -> float | None:
    """Return the average score of an answer that ignores the text, in points."""
    baselines: dict[str, float] = {}
    for finding in findings.results:
        baselines |= {score.task: 100 * score.baseline for score in finding.scores}
    if not tasks or any(task not in baselines for task in tasks):
        return None
    return statistics.fmean(baselines[task] for task in tasks)


def arms_at_baseline(findings: Findings) -> list[Arm]:
    """Return the arms less than a point above the baseline, whose order says nothing."""
    level = baseline(findings, *shared_tasks(findings))
    if level is None:
        return []
    samples = averages(findings)
    scored = [arm for arm in findings.trial.arms if arm.name in samples]
    return [arm for arm in scored if samples[arm.name].mean < level + 1]


def ranking_column(trial: Trial) -> str | None:
    """Return the published column that ranks the arms."""
    return next((column for column in trial.columns if column.lower() in AVERAGES), None)
