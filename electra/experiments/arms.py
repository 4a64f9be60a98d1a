"""A trial's arms at a scale: labelled by the widths they have there, and the same run only once. No
torch.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from electra.config import UserError
from electra.experiments.budget import stage_at_scale
from electra.experiments.plan import Arm, Scale, Stage, Trial
from electra.settings import fingerprint

# In a label or series: the network's width as a share of its size's width at the scale.
WIDTH = "{width}"


def at_scale(trial: Trial, scale: Scale) -> Trial:
    """Return the trial with its arms relabelled, and those that are the same run merged.

    Widths are rounded to a multiple, so that two of the paper's may become one of ours.
    """
    groups: dict[str, list[Arm]] = {}
    for arm in trial.arms:
        groups.setdefault(fingerprint(identity(arm, trial, scale)), []).append(arm)
    merged_name: dict[str, str] = {}
    for group in groups.values():
        merged_name |= {arm.name: group[0].name for arm in group}
    arms = [merge_arms(group, trial, scale) for group in groups.values()]
    return replace(
        trial,
        reference=merged_name[trial.reference],
        expected=tuple(dict.fromkeys(merged_name[name] for name in trial.expected)),
        arms=tuple(replace(arm, reference=merged_name.get(arm.reference, "")) for arm in arms),
    )


def identity(arm: Arm, trial: Trial, scale: Scale) -> list[Any]:
    """Return everything that decides an arm's runs, beside budget and seed."""
    if not arm.stages:
        return [arm.name]
    source = trial.source_of(arm)
    stages = [
        [stage_at_scale(stage, scale, source, {}).identity(), stage.share] for stage in arm.stages
    ]
    reference = None
    if arm.compute == "reference":
        reference = identity(trial.arm(arm.reference or trial.reference), trial, scale)
    return [stages, arm.share, reference]


def merge_arms(group: list[Arm], trial: Trial, scale: Scale) -> Arm:
    """Return the first of arms that are the same run, with the names of the others."""
    first, *others = (relabel(arm, trial, scale) for arm in group)
    for other in others:
        if is_shown_differently(first, other):
            raise UserError(
                f"trial {trial.name}: {first.name} and {other.name} are the same run at scale "
                f"{scale.name} but stand for different ones; change the settings of one, or give "
                "the scale sizes that tell them apart"
            )
    if not others:
        return first
    names = tuple(other.name for other in others)
    note = f"One run for {', '.join((first.name, *names))}: at this scale they have the same width."
    return replace(first, also=names, note=f"{first.note} {note}".strip())


def is_shown_differently(arm: Arm, other: Arm) -> bool:
    shown, other_shown = ((a.label, a.series, a.published) for a in (arm, other))
    return shown != other_shown


def relabel(arm: Arm, trial: Trial, scale: Scale) -> Arm:
    """Put the share of the size's width that an arm has at a scale into its label."""
    if not arm.stages:
        return arm
    last = arm.stages[-1]
    source = trial.source_of(arm)
    full_width = width(replace(last, width=1.0), scale, source)
    share = Fraction(width(last, scale, source), full_width)
    arm = replace(
        arm,
        label=arm.label.replace(WIDTH, str(share)),
        series=arm.series.replace(WIDTH, str(share)),
    )
    if trial.x_is_width:
        return replace(arm, x=float(share))
    return arm


def width(stage: Stage, scale: Scale, source: str) -> int:
    return stage_at_scale(stage, scale, source, {}).recipe.encoder.width
