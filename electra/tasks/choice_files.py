"""Read multiple-choice questions: the files of RACE, rows of tables, and the labels of options."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from electra.config import UserError
from electra.data.tables import LocatedRow, Table, find_table, read_json, read_rows, require_column
from electra.files import parse_json
from electra.tasks.splits import Splits

LEVELS = ("middle", "high")  # of RACE: folders with a file for every passage


def race_splits(folder: Path) -> Splits:
    """Return the files of RACE as released: train/high/1.txt and so on, a JSON object each."""
    splits: Splits = {}
    for split in ("train", "dev", "test"):
        paths: list[Path] = []
        for level in LEVELS:
            paths += sorted((folder / split / level).glob("*.txt"))
        if paths:
            splits[split] = tuple(find_table(path, format="json") for path in paths)
    return splits


def read_choice_rows(source: Table) -> Iterator[LocatedRow]:
    """Yield the rows of a table; a file that is one JSON value is one row, or a list of rows."""
    if source.format not in ("json", "text"):
        yield from read_rows(source)
        return
    value = read_json(source)
    if not isinstance(value, list):
        yield str(source), checked_row(value, source)
        return
    for number, row in enumerate(value, start=1):
        yield f"{source}, row {number}", checked_row(row, source)


def read_questions(tables: Iterable[Table]) -> Iterator[LocatedRow]:
    """Yield a row for each question in these tables."""
    for source in tables:
        for where, row in read_choice_rows(source):
            for question in split_questions(row, where):
                yield where, question


def checked_row(row: Any, source: Table) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise UserError(
            f"{source}: a JSON object, or a list of them, is expected; found {type(row).__name__}"
        )
    return row


def split_questions(row: dict[str, Any], where: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each question about a passage: RACE keeps them together."""
    if not isinstance(row.get("questions"), list):
        yield row
        return
    columns = {"question": row["questions"], "options": require_column(row, "options", where)}
    if row.get("answers") is not None:
        columns["answer"] = row["answers"]
    for name, values in columns.items():
        if not isinstance(values, list) or len(values) != len(row["questions"]):
            raise UserError(
                f"{where}: {len(row['questions'])} questions, but {name!r} is not a list of as many"
            )
    for number, values in enumerate(zip(*columns.values(), strict=True)):
        question = row | dict(zip(columns, values, strict=True))
        if "id" in row:
            question["id"] = f"{row['id']}-{number}"
        yield question


def parse_list(value: Any) -> Any:
    """Return a cell's list of options, which a table holds as JSON; any other value as it is."""
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return value
    try:
        return parse_json(value)
    except ValueError:
        return value


def complete(question: str, option: str) -> str:
    """Fill the question's one blank (`_`) with the option, or append the option."""
    if len(re.findall("_+", question)) == 1:
        return re.sub("_+", lambda _: option, question)
    if not question:
        return option
    return f"{question} {option}"


def first_position(labels: Iterable[Any], *, count: int) -> int | None:
    """Return the number of the first option: 1 if labels are numbers from 1 to the count, else 0.

    WinoGrande numbers its two options 1 and 2. Returns None where labels are numbers among which
    neither 0 nor the count is: they may be counted from either.
    """
    spellings = {str(label).strip() for label in labels if label is not None}
    positions = {str(number) for number in range(1, count + 1)}
    if not spellings or not spellings <= positions:
        return 0
    if str(count) in spellings:
        return 1
    return None


def option_index(
    label: Any, options: Sequence[str], where: str, *, may_be_text: bool, first: int = 0
) -> int:
    """Return the option that a label means: a number from `first`, a letter from A, or its text."""
    spelling = str(label).strip()
    letters = [chr(ord("A") + index) for index in range(len(options))]
    same_text = []
    if may_be_text:
        same_text = [i for i, option in enumerate(options) if option.strip() == spelling]
    position = position_of(spelling, letters, first=first)
    if position is not None:
        if isinstance(label, str) and same_text and position not in same_text:
            raise UserError(
                f"{where}: label {label!r} is a position and also the text of option "
                f"{same_text[0] + first} (from {first}); write {letters[position]!r} or "
                f"{letters[same_text[0]]!r} for the one that is meant"
            )
        return position
    if len(same_text) != 1:
        problem = "the text of several options" if same_text else "none of the options"
        raise UserError(
            f"{where}: label {label!r} is {problem}; write a number from {first} to "
            f"{len(options) - 1 + first}, a letter from A to {letters[-1]}, or the text of one "
            "option"
        )
    return same_text[0]


def position_of(spelling: str, letters: Sequence[str], *, first: int = 0) -> int | None:
    """Return the position that a letter or a number names, if there is such an option."""
    if spelling.upper() in letters:
        return letters.index(spelling.upper())
    if spelling.isdecimal() and first <= int(spelling) < len(letters) + first:
        return int(spelling) - first
    return None
