"""The tables of docs/reliability.md, from benchmarks/results/reliability."""

from __future__ import annotations

import re

from benchmarks.harness import Result
from benchmarks.markdown import (
    RESULTS,
    read_result,
    result_or_file,
    short_commit,
    table_header,
    table_row,
)

# The name of a result file → its columns: the key of a row and the title.
COLUMNS = {
    "crash": {
        "what": "command",
        "operations": "file operations",
        "killed": "killed",
        "torn": "torn",
        "failed": "failed",
        "identical": "same bytes in the end",
        "refused_with_remedy": "refused with a remedy",
        "lost": "lost",
    },
    "power_loss": {
        "what": "command",
        "operations": "file operations",
        "killed": "cuts",
        "torn": "cuts with torn files",
        "identical": "same bytes in the end",
        "refused_with_remedy": "refused with a remedy",
        "lost": "lost",
    },
    "bit_flips": {
        "what": "flipped in",
        "tried": "tried",
        "detected": "detected",
        "without_effect": "without effect",
        "lost": "lost",
    },
    "hostile_folders": {
        "what": "changed",
        "tried": "tried",
        "refused": "refused",
        "accepted": "accepted",
        "traceback": "tracebacks",
        "hang": "hangs",
        "over_memory": "over memory",
        "written_outside": "written outside",
    },
}


def crash() -> str:
    """Return what came of kills and errors at file operations."""
    return record_table("crash")


def power_loss() -> str:
    """Return what came of power cuts at file operations."""
    return record_table("power_loss")


def bit_flips() -> str:
    """Return what came of flipped bits."""
    return record_table("bit_flips")


def hostile_folders() -> str:
    """Return what came of folders that somebody changed on purpose."""
    return record_table("hostile_folders")


def record_table(name: str) -> str:
    """Return the rows of a record with their sum and its provenance; a note where there is none."""
    if not (RESULTS / "reliability" / f"{name}.json").is_file():
        return f"Not recorded yet; `python -m benchmarks.{name}` does it."
    result, columns = read_result(f"reliability/{name}"), COLUMNS[name]
    lines = table_header(*columns.values())
    rows = result["rows"]
    for row in rows:
        lines.append(table_row(*(format_count(row[key]) for key in columns)))
    _, *counts = columns
    sums = [format_count(sum(row[key] for row in rows)) for key in counts]
    lines.append(table_row("together", *sums))
    return "\n".join([*lines, "", provenance_note(result)])


def format_count(value: int | str) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return value


def provenance_note(result: Result) -> str:
    command = re.sub(r" --(folder|output) [^\s;]+", "", result["command"]).replace("; ", "`, `")
    return (
        f"`{command}`, {result['date']} (torch {result['versions']['torch']}, "
        f"{short_commit(result['commit'])})."
    )


def reliability(result: Result | None = None) -> str:
    """Return the faults that `benchmarks.soak` caused, and how many runs survived them."""
    result = result_or_file(result, "reliability/soak")
    lines = table_header("injected fault", "tries", "handled as documented", "data lost")
    for entry in result["faults"].values():
        lost = "none"
        if entry["survived"] != entry["tried"]:
            lost = "see the log"
        lines.append(table_row(entry["fault"], str(entry["tried"]), str(entry["survived"]), lost))
    made = result["made"]
    note = (
        f"{result['minutes']:g} minutes, seed {result['seed']} ({made['processor']}, torch "
        f"{made['packages']['torch']}, {short_commit(made['commit'])})."
    )
    return "\n".join([*lines, "", note])


TABLES = (crash, power_loss, bit_flips, hostile_folders, reliability)
