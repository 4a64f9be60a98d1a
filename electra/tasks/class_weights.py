"""Weights of the classes in the loss: balanced, or as the user gives them."""

from __future__ import annotations

from collections.abc import Sequence

from electra.config import UserError
from electra.data.tables import parse_number
from electra.files import parse_json
from electra.tasks.labels import list_labels

BALANCED = "balanced"


def parse_weights(given: str, labels: Sequence[str]) -> tuple[float, ...] | None:
    """Return the weight of each label, 1 where none is given; None for balanced ones.

    They are given as LABEL=WEIGHT,LABEL=WEIGHT or as a JSON object, which takes any label.
    """
    if given == BALANCED:
        return None
    by_label: dict[str, float] = {}
    for label, value in split_weights(given).items():
        if label not in labels:
            raise UserError(
                f"--class-weights {given}: {label!r} is none of the labels, which are "
                f"{list_labels(labels)}"
            )
        weight = parse_number(value)
        if weight is None or weight <= 0:
            raise UserError(
                f"--class-weights {given}: the weight of {label!r} is {value!r}; give a number "
                "above 0"
            )
        by_label[label] = weight
    return tuple(by_label.get(label, 1.0) for label in labels)


def split_weights(given: str) -> dict[str, object]:
    """Return the weights that an option spells, as they stand there."""
    if given.lstrip().startswith("{"):
        try:
            return dict(parse_json(given))
        except ValueError as error:
            raise UserError(f"--class-weights {given}: not valid JSON: {error}") from None
    weights: dict[str, object] = {}
    for part in given.split(","):
        label, equals, value = part.rpartition("=")
        if not equals:
            raise UserError(
                f"--class-weights {given}: balanced, none, or LABEL=WEIGHT,LABEL=WEIGHT is "
                f"expected, found {part!r}"
            )
        weights[label.strip()] = value
    return weights


def balanced_weights(counts: Sequence[int]) -> tuple[float, ...]:
    """Return n / (k · count), as scikit-learn's "balanced"; 1 for a class without examples."""
    total = sum(counts)
    return tuple(total / (len(counts) * count) if count else 1.0 for count in counts)


def positive_weights(counts: Sequence[int], total: int) -> tuple[float, ...]:
    """Return (n − count) / count, with which a label's presence weighs as much as its absence.

    This is torch's `pos_weight`. It is 1 for a label that no example or every example has.
    """
    weights = []
    for count in counts:
        weight = 1.0
        if 0 < count < total:
            weight = (total - count) / count
        weights.append(weight)
    return tuple(weights)
