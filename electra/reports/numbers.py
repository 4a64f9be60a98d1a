"""How numbers are written in a report."""

from __future__ import annotations

import re

NOTHING = "–"  # in a table cell without a value


def as_power(number: float) -> str:
    """Return a number as 1.23e15: of FLOPs, readers compare the power of ten."""
    return re.sub(r"e\+?0*(?=\d)", "e", f"{number:.2e}")


def as_count(number: float) -> str:
    """Return a count in full, or in millions."""
    if number >= 1e6:
        return f"{number / 1e6:,.1f}M"
    return f"{number:,.0f}"


def as_range(first: str, last: str) -> str:
    """Return "first to last", or one of them where they are equal."""
    if first == last:
        return first
    return f"{first} to {last}"
