"""Class labels in a transformers config.json, and in messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from electra.config import UserError

MAX_LISTED = 20


def label_config(labels: Sequence[str]) -> dict[str, Any]:
    """Return the keys of config.json that name the classes."""
    return {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }


def labels_from_config(
    config: Mapping[str, Any], *, default: tuple[str, ...], source: str
) -> tuple[str, ...]:
    """Return the labels that a config.json names.

    LABEL_0 and LABEL_1 are what transformers writes when nobody named the classes: then they are
    `default` if that has as many labels, and numbers otherwise.
    """
    names = config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    if not isinstance(names, dict) or names.keys() != {str(number) for number in range(len(names))}:
        raise UserError(
            f"{source}: id2label must name the classes '0', '1' and so on, found "
            f"{str(names)[:60]!r}"
        )
    numbers = range(len(names))
    labels = tuple(str(names[str(number)]) for number in numbers)
    if labels != tuple(f"LABEL_{number}" for number in numbers):
        return labels
    if len(default) == len(labels):
        return default
    return tuple(map(str, numbers))


def list_labels(labels: Sequence[str]) -> str:
    """Format the first labels, and the number of the others, for a message."""
    listed = ", ".join(labels[:MAX_LISTED])
    if len(labels) <= MAX_LISTED:
        return listed
    return f"{listed} and {len(labels) - MAX_LISTED} more"
