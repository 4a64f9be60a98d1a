"""Has a network learned anything? Its loss on held-out rows, as a share of the baseline's.

The baseline is an answer that ignores the text. Every network begins near 1, and many stay there
for long: that is the plateau.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from electra.experiments.findings import Finding, Findings
from electra.experiments.plan import Arm
from electra.objectives.metrics import Metric
from electra.objectives.settings import ObjectiveConfig
from electra.reports.samples import findings_of

HEAD = (
    "arm",
    "task",
    "loss",
    "of an answer that ignores the text",
    "share of that, %",
    "left the plateau at step",
    "AUC",
)


def plateau_losses() -> dict[str, Metric]:
    """Return the declared losses by name; a network's own loss before its generator's.

    Objectives list their own loss first. A loss that some objective lists later is a generator's.
    """
    ranks: dict[str, int] = {}
    losses: dict[str, Metric] = {}
    for settings in ObjectiveConfig.variants():
        for rank, metric in enumerate(settings().metrics()):
            if metric.plateau_ratio is not None:
                ranks[metric.name] = max(rank, ranks.get(metric.name, 0))
                losses[metric.name] = metric
    return {name: losses[name] for name in sorted(ranks, key=lambda name: ranks[name])}


def own_loss(finding: Finding) -> str | None:
    """Return the loss that trains the network to be fine-tuned; None before its stage."""
    entries = last_stage(finding)
    for name in plateau_losses():
        if any(entry.get(f"eval_baseline_{name}") for entry in entries):
            return name
    return None


def last_stage(finding: Finding) -> list[dict[str, Any]]:
    """Return the entries of the last stage's journal."""
    return [entry for entry in finding.journal if entry["step"] > finding.earlier_steps]


def own_losses(finding: Finding) -> list[tuple[int, float, float]]:
    """Return step, loss and baseline loss, wherever both are known."""
    name = own_loss(finding)
    loss, baseline = f"eval_{name}", f"eval_baseline_{name}"
    return [
        (entry["step"], entry[loss], entry[baseline])
        for entry in last_stage(finding)
        if entry.get(loss) is not None and entry.get(baseline)
    ]


def loss_shares(finding: Finding) -> dict[int, float]:
    """Return the loss as a share of the baseline's, by step."""
    return {step: loss / baseline for step, loss, baseline in own_losses(finding)}


def step_left(finding: Finding) -> int | None:
    """Return the step of its stage from which a network is always below the plateau."""
    shares, name = loss_shares(finding), own_loss(finding)
    if name is None:
        return None
    ratio = plateau_losses()[name].plateau_ratio
    assert ratio is not None
    on_plateau = [step for step, share in shares.items() if share >= ratio]
    last_on_plateau = max(on_plateau, default=-1)
    after = [step - finding.earlier_steps for step in shares if step > last_on_plateau]
    return min(after, default=None)


def plateau_rows(findings: Findings) -> list[list[str]]:
    """Return a table row for each arm with runs that have ended."""
    rows = []
    for arm in findings.trial.arms:
        own = findings_of(findings, arm)
        ended = [finding for finding in own if finding.steps == finding.max_steps]
        ended = [finding for finding in ended if loss_shares(finding)]
        if ended:
            rows.append(plateau_row(arm, ended))
    return rows


def plateau_row(arm: Arm, ended: Sequence[Finding]) -> list[str]:
    last = [own_losses(finding)[-1] for finding in ended]
    auc = "–"
    if known := [value for finding in ended if (value := last_auc(finding)) is not None]:
        auc = mean_and_sd(known)
    return [
        arm.label,
        plateau_losses()[own_loss(ended[0]) or ""].predicts,
        mean_and_sd([loss for _, loss, _ in last]),
        mean_and_sd([baseline for *_, baseline in last]),
        mean_and_sd([100 * loss / baseline for _, loss, baseline in last], digits=1),
        describe_steps_left(ended),
        auc,
    ]


def last_auc(finding: Finding) -> float | None:
    values = [entry.get("eval_auc") for entry in finding.journal]
    return next((value for value in reversed(values) if value is not None), None)


def describe_steps_left(ended: Sequence[Finding]) -> str:
    """Return the steps at which an arm's seeds left the plateau, or how many did not."""
    steps = [step for finding in ended if (step := step_left(finding)) is not None]
    if len(steps) < len(ended):
        return f"not by {len(ended) - len(steps)} of {len(ended)} seeds"
    text = " to ".join(dict.fromkeys(f"{step:,}" for step in (min(steps), max(steps))))
    if ended[0].earlier_steps:
        return f"{text} of the last stage"
    return text


def mean_and_sd(values: Sequence[float], *, digits: int = 3) -> str:
    mean = f"{fmean(values):.{digits}f}"
    if len(values) < 2:
        return mean
    return f"{mean} ± {stdev(values):.{digits}f}"
