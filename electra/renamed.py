"""Former names of settings. A former name is refused with the present one in the message."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Renamed:
    """The present dotted key of a setting, and present names of its values that changed too."""

    key: str
    values: Mapping[str, str] = field(default_factory=dict)

    def value(self, former: Any) -> Any:
        """Return the present name of a value."""
        return self.values.get(str(former), former)


# Former dotted key → present one.
RENAMED = {
    "optimizer.decay_share": Renamed("optimizer.decay_ratio"),
    "objective.generator_learns": Renamed(
        "objective.generator_training",
        {"likelihood": "mlm", "adversarially": "adversarial", "nothing": "frozen"},
    ),
    "warmup_share": Renamed("warmup_ratio"),
}


def find_renamed(key: str, known: Collection[str]) -> Renamed | None:
    """Return the present name of a key, or of the last words of one, if it is among those known."""
    for former, renamed in RENAMED.items():
        if f".{former}".endswith(f".{key}") and renamed.key in known:
            return renamed
    return None
