"""What a trial's arms become at a scale: named by the widths they have there, and the same run only
once. No torch.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from electra.config import UserError
from electra.experiments.budget import sized
from electra.experiments.plan import Arm, Scale, Trial
from electra.settings import fingerprint

# in a label or series: the network's width as a share of what its size has at the scale
WIDTH = "{width}"


def at_scale(trial: Trial, scale: Scale) -> Trial:
    """Widths are multiples of a number, so that two of the paper's may come out as one of ours."""
    groups: dict[str, list[Arm]] = {}
    for arm in trial.arms:
        groups.setdefault(fingerprint(identity(arm, trial, scale)), []).append(arm)
    instead = {arm.name: group[0].name for group in groups.values() for arm in group}
    arms = tuple(merged(group, trial, scale) for group in groups.values())
    return replace(
        trial,
        reference=instead[trial.reference],
        expected=tuple(dict.fromkeys(instead[name] for name in trial.expected)),
        arms=tuple(replace(arm, reference=instead.get(arm.reference, "")) for arm in arms),
    )


def identity(arm: Arm, trial: Trial, scale: Scale) -> list[Any]:
    """Everything that decides its runs, beside budget and seed."""
    if not arm.stages:
        return [arm.name]
    model = trial.arm(arm.reference or trial.reference)
    stages = [
        [sized(stage, scale, trial=trial, vocabularies={}).identity(), stage.share]
        for stage in arm.stages
    ]
    return [
        stages,
        arm.share,
        identity(model, trial, scale) if arm.compute == "reference" else None,
    ]


def merged(group: list[Arm], trial: Trial, scale: Scale) -> Arm:
    """The first of arms that are the same run, with the names of the others."""
    first, *others = (relabelled(arm, trial, scale) for arm in group)
    for other in others:
        if (other.label, other.series, other.published) != (
            first.label,
            first.series,
            first.published,
        ):
            raise UserError(
                f"trial {trial.name}: {first.name} and {other.name} are the same run at scale "
                f"{scale.name} "
                "but stand for different ones; give the scale sizes that tell them apart"
            )
    if not others:
        return first
    names = tuple(other.name for other in others)
    one = f"One run for {', '.join((first.name, *names))}: at this scale they have the same width."
    return replace(first, also=names, note=f"{first.note} {one}".strip())


def relabelled(arm: Arm, trial: Trial, scale: Scale) -> Arm:
    if not arm.stages:
        return arm
    last = arm.stages[-1]
    ours, whole = (
        sized(stage, scale, trial=trial, vocabularies={}).recipe.encoder.width
        for stage in (last, replace(last, width=1.0))
    )
    share = Fraction(ours, whole)
    return replace(
        arm,
        label=arm.label.replace(WIDTH, str(share)),
        series=arm.series.replace(WIDTH, str(share)),
        x=float(share) if trial.x_is_width else arm.x,
    )
