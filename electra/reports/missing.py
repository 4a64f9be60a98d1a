"""The section of a report on what was not run, or only in part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from electra.experiments.findings import Finding, Findings
from electra.experiments.plan import Arm
from electra.reports.blocks import Block, Bullets, Heading, Paragraph
from electra.reports.samples import findings_of


def missing_section(findings: Findings) -> Iterator[Block]:
    """Yield a list of arms, seeds and tasks that were not run, and of rows only published."""
    yield Heading(3, "What was not run")
    items = missing_items(findings)
    if items:
        yield Bullets(items)
    else:
        yield Paragraph("Nothing: every arm ran to its end with every seed, on every task.")


def missing_items(findings: Findings) -> list[tuple[str, str]]:
    seeds = sorted({finding.seed for finding in findings.results})
    items = []
    for arm in findings.trial.runnable_arms():
        own = findings_of(findings, arm)
        if text := missing_seeds(arm, own, seeds):
            items.append(("Not run.", text))
        items += [("In part.", text) for text in partial_runs(arm, own, findings.tasks)]
    if not findings.tasks:
        items.append(
            ("Not run.", "Every task: without data for one, arms are judged on held-out rows only")
        )
    published = [arm.label for arm in findings.trial.arms if not arm.stages]
    if published:
        items.append(("Published only.", f"Not ours to run: {', '.join(published)}"))
    return items


def missing_seeds(arm: Arm, results: Sequence[Finding], seeds: Sequence[int]) -> str:
    """Return which seeds of an arm were not started; empty where all were."""
    started = {finding.seed for finding in results if is_started(finding)}
    if not started:
        return f"{arm.label}: no seed"
    missing = [str(seed) for seed in seeds if seed not in started]
    if not missing:
        return ""
    return f"{arm.label}: seed {', '.join(missing)}"


def partial_runs(arm: Arm, results: Sequence[Finding], tasks: Sequence[str]) -> list[str]:
    """Return what runs of an arm lack; seeds that lack the same are named together."""
    seeds: dict[str, list[str]] = {}
    for finding in results:
        lack = describe_lack(finding, tasks)
        if lack and is_started(finding):
            seeds.setdefault(lack, []).append(str(finding.seed))
    return [f"{arm.label}, seed {', '.join(names)}: {lack}" for lack, names in seeds.items()]


def is_started(finding: Finding) -> bool:
    return finding.steps > 0 or bool(finding.scores)


def describe_lack(finding: Finding, tasks: Sequence[str]) -> str:
    """Return what a run lacks: steps or scores; empty where it is done."""
    scored = {score.task for score in finding.scores}
    parts = []
    if finding.steps < finding.max_steps:
        parts.append(f"{finding.steps:,} of {finding.max_steps:,} steps")
    unscored = [task for task in tasks if task not in scored]
    if unscored:
        parts.append(f"not scored on {', '.join(unscored)}")
    if not parts and not finding.done:
        parts.append("not marked as done")
    return "; ".join(parts)
