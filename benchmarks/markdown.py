"""Read kept results and format them as cells and rows of Markdown tables."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
NO_MACHINE = "no machine yet"
Result = dict[str, Any]


def read_result(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf8"))
    return found


def results_of(kept: Result | None, name: str) -> Result:
    """What a benchmark hands over at its end, or what was kept of it."""
    return read_result(name) if kept is None else kept


def hardware(entries: Iterable[Result]) -> str:
    """Where figures come from; from several places when parts were measured on several."""
    commits: dict[str, set[str]] = {}
    for made in (entry["made"] for entry in entries if "made" in entry):
        commits.setdefault(machine(made), set()).add(short_commit(made["commit"]))
    return (
        " and ".join(
            f"{where}, {' / '.join(sorted(found))}" for where, found in sorted(commits.items())
        )
        or NO_MACHINE
    )


def machines(entries: Iterable[Result]) -> str:
    """The same without commits, for tables that say them with each name."""
    return (
        " and ".join(sorted({machine(entry["made"]) for entry in entries if "made" in entry}))
        or NO_MACHINE
    )


def machine(made: Result) -> str:
    return f"{made['hardware']}, torch {made['torch']}"


def at_commit(name: str, entry: Result) -> str:
    """A name with the commit that its figures were measured at."""
    return f"{name} ({short_commit(entry['made']['commit'])})"


def short_commit(commit: str | None) -> str:
    """Seven letters, and `-dirty` where files had been changed since."""
    return re.sub(r"^(\w{7})\w*", r"\1", commit) if commit else "no commit"


def format_entry(values: Result, name: str, form: Callable[[float], str]) -> str:
    if "failed" in values:
        return f"failed ({values['failed']})"
    return form(values[name]) if name in values else "not measured"


def thousands(rate: float) -> str:
    return f"{rate / 1000:,.0f}k"


def gigabytes(size: float) -> str:
    return f"{size / 1e9:.2f}"


def table_header(*cells: str) -> list[str]:
    return [table_row(*cells), "|" + "---|" * len(cells)]


def table_row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
