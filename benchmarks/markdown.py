"""Read result files and format their values as cells and rows of Markdown tables."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.harness import Result

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
NO_MACHINE = "no machine yet"


def read_result(name: str) -> Result:
    """Return the content of a file in benchmarks/results."""
    result: Result = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf8"))
    return result


def result_or_file(result: Result | None, name: str) -> Result:
    """Return a benchmark's result as it passes it at its end, or else the file of its last run."""
    if result is None:
        return read_result(name)
    return result


def format_flags(flags: str | None) -> str:
    """Return flags of a command as code; those of a command without any are its defaults."""
    return f"`{flags}`" if flags else "default"


# ---- provenance ----------------------------------------------------------------------------------


def machines_with_commits(entries: Iterable[Result]) -> str:
    """Return the machines, and on each the commits, that measured these entries."""
    commits: dict[str, set[str]] = {}
    for made in (entry["made"] for entry in entries if "made" in entry):
        commits.setdefault(machine(made), set()).add(short_commit(made["commit"]))
    cells = [f"{name}, {' / '.join(sorted(used))}" for name, used in sorted(commits.items())]
    return " and ".join(cells) or NO_MACHINE


def machines(entries: Iterable[Result]) -> str:
    """Return the machines alone, for tables with the commit in each row."""
    names = {machine(entry["made"]) for entry in entries if "made" in entry}
    return " and ".join(sorted(names)) or NO_MACHINE


def machine(made: Result) -> str:
    return f"{made['hardware']}, torch {made['torch']}"


def at_commit(name: str, entry: Result) -> str:
    """Return a name with the commit at which its figures were measured."""
    return f"{name} ({short_commit(entry['made']['commit'])})"


def short_commit(commit: str | None) -> str:
    """Return seven letters of a commit, and `-dirty` where files had been changed since."""
    if not commit:
        return "no commit"
    return re.sub(r"^(\w{7})\w*", r"\1", commit)


# ---- cells and rows ------------------------------------------------------------------------------


def format_entry(values: Result, name: str, form: Callable[[float], str]) -> str:
    """Return a value as text, or why there is none."""
    if "failed" in values:
        return f"failed ({values['failed']})"
    if name not in values:
        return "not measured"
    return form(values[name])


def format_thousands(rate: float) -> str:
    return f"{rate / 1000:,.0f}k"


def format_gigabytes(size: float) -> str:
    return f"{size / 1e9:.2f}"


def format_bytes(count: float) -> str:
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count:.0f} bytes"


def format_bandwidth(bytes_per_second: float) -> str:
    return f"{format_bytes(bytes_per_second)}/s"


def format_duration(seconds: float) -> str:
    for unit, name in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 1.5 * unit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds:.0f} seconds"


def table_header(*cells: str) -> list[str]:
    return [table_row(*cells), "|" + "---|" * len(cells)]


def table_row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def two_column_table(title: str, rows: dict[str, tuple[str, str]]) -> str:
    """Return a table of values, with where each comes from."""
    lines = [table_row(name, *cells) for name, cells in rows.items()]
    return "\n".join([*table_header(title, "", "from"), *lines])
