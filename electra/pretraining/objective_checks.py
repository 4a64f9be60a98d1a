"""Checks of what the methods of an objective return, since it may be a user's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

from torch import Tensor

from electra.config import UserError
from electra.model.family import Role
from electra.model.networks import Discriminator, Generator
from electra.objectives.measures import OF_BOTH_CLASSES, Loss
from electra.objectives.metrics import Metric
from electra.objectives.objective import Objective
from electra.runs.journal import NOT_LOSSES


def check_networks(objective: Objective, *, name: str) -> None:
    """Raise UserError where networks() is not what can be exported at the end."""
    networks = objective.networks()
    roles = ", ".join(get_args(Role))
    if not networks:
        raise UserError(
            f"objective {name}: networks() returns none; return what is to be exported, by one of "
            f"the names {roles}"
        )
    for role, network in networks.items():
        if role not in get_args(Role):
            raise UserError(
                f"objective {name}: networks() returns a network {role!r}; its name must be one of "
                f"{roles}"
            )
        if not isinstance(network, (Discriminator, Generator)):
            raise UserError(
                f"objective {name}: the {role} of networks() is a {type(network).__name__}; it "
                "must be a Discriminator or a Generator of electra.model.networks"
            )


def named_losses(loss: Loss, *, name: str) -> dict[str, Tensor]:
    """Return the losses of a micro-batch by name; raise UserError for what is no loss."""
    if not isinstance(loss, Loss):
        raise UserError(
            f"objective {name}: forward() returns a {type(loss).__name__}; return "
            "electra.objectives.measures.Loss(total, parts)"
        )
    for part, value in {"total": loss.total, **loss.parts}.items():
        if part in NOT_LOSSES or part.startswith("eval_"):
            raise UserError(
                f"objective {name}: a part of the loss is named {part!r}, which has another "
                "meaning in metrics.jsonl; rename it"
            )
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise UserError(
                f"objective {name}: {part!r} of the loss is a {type(value).__name__}; it must be a "
                "tensor with one value"
            )
    return {"loss": loss.total, **loss.parts}


def missing_scores(metrics: Sequence[Metric], scores: Mapping[str, float]) -> list[str]:
    """Return the keys that metrics() declares and measure() did not return."""
    missing = []
    for metric in metrics:
        for key in (metric.name, metric.baseline):
            if isinstance(key, str) and key not in scores and key not in OF_BOTH_CLASSES:
                missing.append(key)
    return missing
