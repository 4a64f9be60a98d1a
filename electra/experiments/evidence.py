"""Findings as one small JSON file: what a project keeps of its runs, and what a report can be made
from again.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from electra import atomic
from electra.config import SettingError, UserError
from electra.experiments.findings import Finding, Findings
from electra.files import parse_json, read_bounded_text

FILE, FORM = "findings.json", 3
POINTS = 200  # of a curve, at most: more than a figure can show
COUNTED = ("step", "tokens_seen", "operations", "minutes")


def condense(findings: Findings) -> Findings:
    """What the report needs of a journal: held-out scores. Run folders keep their names, not where
    they lay.
    """
    return replace(
        findings,
        found=[
            replace(
                finding,
                runs=tuple(Path(run.name) for run in finding.runs),
                journal=held_out(finding),
            )
            for finding in findings.found
        ],
    )


def held_out(finding: Finding) -> list[dict[str, Any]]:
    entries = [entry for entry in finding.journal if any(key.startswith("eval_") for key in entry)]
    last = len(entries) - 1
    chosen = (
        range(len(entries))
        if last < POINTS
        else sorted({round(i * last / (POINTS - 1)) for i in range(POINTS)})
    )
    return [
        {
            key: shortened(value)
            for key, value in entries[i].items()
            if key in COUNTED or key.startswith("eval_")
        }
        for i in chosen
    ]


def shortened(value: Any) -> Any:
    """Six digits: more than a curve shows, at a third of the bytes."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def save(several: Sequence[Findings], path: Path) -> None:
    kept = [asdict(condense(findings)) for findings in several]
    text = json.dumps({"form": FORM, "findings": kept}, ensure_ascii=False, indent=1, default=str)
    # A point of a curve is a line, for whoever reads a diff. JSON has no line breaks inside of
    # strings.
    atomic.write(
        path,
        re.sub(r"[\[{][^\[\]{}]*[\]}]", lambda flat: re.sub(r"\n *", " ", flat[0]), text) + "\n",
    )


def load(path: Path) -> list[Findings]:
    try:
        kept = parse_json(read_bounded_text(path))
        json.dumps(
            kept, ensure_ascii=False
        ).encode()  # half a character can be read and not be written
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(kept, dict) or not isinstance(kept.get("findings"), list):
        raise UserError(
            f"{path}: no findings of trials; name a {FILE} that `electra trials report` wrote, or "
            "the "
            "folder that `electra trials run` filled"
        )
    if kept.get("form") != FORM:
        raise UserError(
            f"{path}: findings of form {str(kept.get('form'))[:20]}, another version's: this one "
            "reads "
            f"form {FORM}; make the file again with `electra trials report` from the folder of "
            "the runs"
        )
    found = [
        revived(values, Findings, f"{path}: findings[{index}]")
        for index, values in enumerate(kept["findings"])
    ]
    for index, findings in enumerate(found):
        check_plain_data(findings, f"{path}: findings[{index}]")
    return found


def check_plain_data(findings: Findings, where: str) -> None:
    """What is declared as anything, since a run folder holds more of it than a report needs."""
    for key in ("tokens", "rows", "vocabulary", "length"):
        revived(findings.corpus.get(key), int | None, f"{where}.corpus.{key}")
    for number, finding in enumerate(findings.found):
        place = f"{where}.found[{number}]"
        for i, entry in enumerate(finding.journal):
            revived(entry.get("step"), int, f"{place}.journal[{i}].step")
            for key, value in entry.items():
                if value is not None:
                    revived(
                        value, int if type(value) is int else float, f"{place}.journal[{i}].{key}"
                    )
        earlier = revived(
            finding.made.get("earlier_recipes") or [], list[Any], f"{place}.made.earlier_recipes"
        )
        for recipe in (finding.made.get("recipe") or {}, *earlier):
            revived(recipe, dict[str, Any], f"{place}.made.recipe")
        revived(finding.made.get("concurrency"), int | None, f"{place}.made.concurrency")


def revived(value: Any, hint: Any, where: str) -> Any:
    """Plain data as the type that a field declares."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        rest = [choice for choice in inner if choice is not type(None)]
        return None if value is None else revived(value, rest[0], where)
    if origin is typing.Literal:
        return (
            wanted(value, str, where)
            if value in inner
            else refuse(value, f"one of {', '.join(inner)}", where)
        )
    if dataclasses.is_dataclass(hint):
        return revived_dataclass(wanted(value, dict, where), typing.cast(type, hint), where)
    if origin in (tuple, list):
        parts = [
            revived(part, inner[0], f"{where}[{i}]")
            for i, part in enumerate(wanted(value, list, where))
        ]
        return tuple(parts) if origin is tuple else parts
    if origin is dict:
        return {
            key: revived(part, inner[1], f"{where}.{key}")
            for key, part in wanted(value, dict, where).items()
        }
    if hint is Path:
        return Path(wanted(value, str, where))
    if hint is float and type(value) is int and abs(value) <= sys.float_info.max:
        return float(value)
    return wanted(value, hint, where)


def revived_dataclass(values: Mapping[str, Any], cls: type, where: str) -> Any:
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        is_required = (
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        )
        if is_required and field.name not in values:
            raise UserError(
                f"{where}: {field.name} is missing; make the file again with `electra trials "
                "report`"
            )
    if unknown := [key for key in values if key not in hints]:
        raise UserError(
            f"{where}: unknown key {unknown[0]}; make the file again with `electra trials report`"
        )
    try:
        return cls(
            **{key: revived(value, hints[key], f"{where}.{key}") for key, value in values.items()}
        )
    except SettingError as error:
        raise UserError(f"{where}: {error}") from None


def wanted(value: Any, kind: type, where: str) -> Any:
    if type(value) is int and abs(value) > sys.maxsize:
        refuse(value, "a number of at most 64 bits", where)
    return value if type(value) is kind else refuse(value, kind.__name__, where)


def refuse(value: Any, kind: str, where: str) -> typing.NoReturn:
    raise UserError(
        f"{where} must be {kind}, found {type(value).__name__} {str(value)[:60]!r}; make the "
        "file again with `electra trials report`"
    )
