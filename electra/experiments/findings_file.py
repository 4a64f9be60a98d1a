"""Findings as one small JSON file: what a project keeps of its runs, and what a report is made
from.

No torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from electra import atomic
from electra.config import SettingError, UserError, convert
from electra.experiments.findings import Finding, Findings, check_corpus
from electra.files import read_json_object

FILE, FORM = "findings.json", 3
MAX_POINTS = 200  # of a curve: more than a figure can show
COUNTERS = ("step", "tokens_seen", "flops", "minutes")
MAX_MESSAGE = 500  # characters, since a value that is refused may be a file long
NAME_ANOTHER = (
    f"name a {FILE} that `electra trials report` wrote, or the folder that `electra trials run` "
    "filled"
)
MAKE_AGAIN = "make the file again with `electra trials report`"


def condense(findings: Findings) -> Findings:
    """Keep what a report needs: held-out metrics, and the names of run folders without the path."""
    results = []
    for finding in findings.results:
        names = tuple(Path(run.name) for run in finding.runs)
        results.append(replace(finding, runs=names, journal=held_out_entries(finding)))
    return replace(findings, results=results)


def held_out_entries(finding: Finding) -> list[dict[str, Any]]:
    """Return the journal's entries with held-out metrics, thinned to `MAX_POINTS`."""
    entries = [entry for entry in finding.journal if any(map(is_held_out, entry))]
    last = len(entries) - 1
    if last >= MAX_POINTS:
        indices = {round(i * last / (MAX_POINTS - 1)) for i in range(MAX_POINTS)}
        entries = [entries[i] for i in sorted(indices)]
    return [shorten_entry(entry) for entry in entries]


def is_held_out(key: str) -> bool:
    return key.startswith("eval_")


def shorten_entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Keep counters and held-out metrics, with six digits: more than a curve shows."""
    shortened = {}
    for key, value in entry.items():
        if key in COUNTERS or is_held_out(key):
            if isinstance(value, float):
                value = float(f"{value:.6g}")
            shortened[key] = value
    return shortened


def save(several: Sequence[Findings], path: Path) -> None:
    """Write the findings of several trials to one file."""
    values = [asdict(condense(findings)) for findings in several]
    text = json.dumps({"form": FORM, "findings": values}, ensure_ascii=False, indent=1, default=str)
    # A point of a curve is a line, so that a diff is readable. JSON has no line breaks inside of
    # strings.
    text = re.sub(r"[\[{][^\[\]{}]*[\]}]", lambda flat: re.sub(r"\n *", " ", flat[0]), text)
    atomic.write(path, text + "\n")


def load(path: Path) -> list[Findings]:
    """Read the findings of several trials; raise UserError with the key of a wrong value."""
    values = read_json_object(path, remedy=NAME_ANOTHER)
    try:
        # Half a character can be read from JSON, but not be written again.
        json.dumps(values, ensure_ascii=False).encode()
    except ValueError as error:
        raise UserError(f"{path}: cannot be read as JSON: {error}; {NAME_ANOTHER}") from None
    if not isinstance(values.get("findings"), list):
        raise UserError(f"{path}: no findings of trials; {NAME_ANOTHER}")
    if values.get("form") != FORM:
        raise UserError(
            f"{path}: findings of form {str(values.get('form'))[:20]}, another version's: this one "
            f"reads form {FORM}; {MAKE_AGAIN} from the folder of the runs"
        )
    try:
        several = convert(values["findings"], list[Findings], source=str(path), key="findings")
        for index, findings in enumerate(several):
            check_plain_data(findings, source=str(path), key=f"findings[{index}]")
    except SettingError as error:
        raise UserError(f"{str(error)[:MAX_MESSAGE]}; {MAKE_AGAIN}") from None
    return list(several)


def check_plain_data(findings: Findings, *, source: str, key: str) -> None:
    """Check the values that the dataclasses declare as Any, since run folders hold more of them."""
    check_corpus(findings.corpus, source=source, key=f"{key}.corpus")
    for index, finding in enumerate(findings.results):
        place = f"{key}.results[{index}]"
        for number, entry in enumerate(finding.journal):
            where = f"{place}.journal[{number}]"
            convert(entry.get("step"), int, source=source, key=f"{where}.step")
            for name, value in entry.items():
                if value is not None:
                    convert(value, int | float, source=source, key=f"{where}.{name}")
        expected_types = {
            "recipe": dict[str, Any] | None,
            "earlier_recipes": list[dict[str, Any]] | None,
            "concurrency": int | None,
        }
        for name, expected in expected_types.items():
            value = finding.provenance.get(name)
            convert(value, expected, source=source, key=f"{place}.provenance.{name}")
