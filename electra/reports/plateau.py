"""Has a network learned anything? Told by its own loss on held-out rows, as a share of that of an
answer that ignores the text. Every network begins near 1, and many stay there for long: that is the
plateau.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from electra.experiments.findings import Finding, Findings
from electra.reports.ordering import of_arm

OWN = {
    "rtd_loss": "replaced or original",
    "restore_loss": "words read from a splice",
    "mlm_loss": "masked words",
    "lm_loss": "next words",
}  # a network's own before its generator's
LEFT = 0.97  # below this for good, a network has left the plateau


def own_loss(finding: Finding) -> str | None:
    """The measure by which the network that is fine-tuned is trained; None before its stage."""
    return next(
        (
            name
            for name in OWN
            if any(entry.get(f"eval_baseline_{name}") for entry in last_stage(finding))
        ),
        None,
    )


def last_stage(finding: Finding) -> list[dict[str, Any]]:
    return [entry for entry in finding.journal if entry["step"] > finding.earlier_steps]


def measured(finding: Finding) -> list[tuple[int, float, float]]:
    """Step, loss, and that of an answer that ignores the text, wherever both are known."""
    ours, baseline = (f"eval_{prefix}{own_loss(finding)}" for prefix in ("", "baseline_"))
    return [
        (entry["step"], entry[ours], entry[baseline])
        for entry in last_stage(finding)
        if entry.get(ours) is not None and entry.get(baseline)
    ]


def shares(finding: Finding) -> dict[int, float]:
    """By step."""
    return {step: loss / baseline for step, loss, baseline in measured(finding)}


def left_at(finding: Finding) -> int | None:
    """The first step of its stage after which held-out rows were always predicted better than on
    the plateau.
    """
    points = shares(finding)
    late = max((step for step, share in points.items() if share >= LEFT), default=-1)
    return min((step - finding.earlier_steps for step in points if step > late), default=None)


def rows(findings: Findings) -> list[list[str]]:
    """For each arm what its runs that are done have come to."""
    table = []
    for arm in findings.trial.arms:
        ended = [
            finding
            for finding in of_arm(findings, arm)
            if finding.steps == finding.max_steps and shares(finding)
        ]
        if not ended:
            continue
        name, last = own_loss(ended[0]), [measured(finding)[-1] for finding in ended]
        judged = [
            entries[-1]
            for finding in ended
            if (
                entries := [
                    entry["eval_auc"]
                    for entry in finding.journal
                    if entry.get("eval_auc") is not None
                ]
            )
        ]
        table.append(
            [
                arm.label,
                OWN[name or ""],
                spread([loss for _, loss, _ in last]),
                spread([baseline for *_, baseline in last]),
                spread([100 * loss / baseline for _, loss, baseline in last], digits=1),
                left(ended),
                spread(judged) if judged else "–",
            ]
        )
    return table


def left(ended: Sequence[Finding]) -> str:
    steps = [step for finding in ended if (step := left_at(finding)) is not None]
    if len(steps) < len(ended):
        return f"not by {len(ended) - len(steps)} of {len(ended)} seeds"
    shown = " to ".join(dict.fromkeys(f"{step:,}" for step in (min(steps), max(steps))))
    return f"{shown} of the last stage" if ended[0].earlier_steps else shown


def spread(values: Sequence[float], *, digits: int = 3) -> str:
    middle = f"{fmean(values):.{digits}f}"
    return f"{middle} ± {stdev(values):.{digits}f}" if len(values) > 1 else middle
