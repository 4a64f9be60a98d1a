"""Sentences word by word: CoNLL's columns, rows with lists of words and tags, or plain text to be
tagged.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from electra.config import UserError
from electra.data.corpus import check_encodable
from electra.data.tables import Table, read_lines, read_rows, require_column
from electra.tasks.entities import parts

DOCUMENT = "-DOCSTART-"
LOOKED_AT = 1000  # lines, to tell what kind of text a file holds

Line = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Sentence:
    """Words and, where they are known, their tags, one each, as the file spells them."""

    where: str
    words: tuple[str, ...]
    tags: tuple[str, ...] | None


# ---- columns -------------------------------------------------------------------------------------


def from_text(
    table: Table, *, column: int, labelled: bool, known: Collection[str]
) -> Iterator[Sentence]:
    """Columns, or text to be tagged: then a .txt file may also have one sentence a line, its words
    apart.

    One that has a word a line, or a tag the task knows (`known`) in its column, is read as columns
    all the same.
    """
    source = iter(read_lines(table))
    opening = list(itertools.islice(source, LOOKED_AT))
    found = itertools.chain(opening, source)
    if (
        not labelled
        and ".txt" in table.source.path.suffixes
        and not are_columns(opening, column=column, known=known)
    ):
        return (Sentence(where, tuple(line.split()), None) for where, line in found if line.strip())
    return from_columns(found, column=column, labelled=labelled)


def are_columns(opening: Sequence[Line], *, column: int, known: Collection[str]) -> bool:
    """Whether no line has a second word, or those of the first sentence have tags in their place."""
    written = [fields for _, line in opening if (fields := cells(line))[:1] != [DOCUMENT]]
    if all(len(fields) <= 1 for fields in written):
        return True
    sentence = itertools.takewhile(bool, itertools.dropwhile(lambda fields: not fields, written))
    reach = column + 1 if column >= 0 else -column
    return all(
        len(fields) >= max(2, reach) and (fields[column] in known or parts(fields[column])[1])
        for fields in sentence
    )


def from_columns(found: Iterator[Line], *, column: int, labelled: bool) -> Iterator[Sentence]:
    """One word a line, first its own column and somewhere its tag; a blank line ends a sentence."""
    width, place = 0, ""
    words: list[str] = []
    tags: list[str] = []
    for where, line in itertools.chain(found, [("", "")]):
        fields = cells(line)
        if not fields or fields[0] == DOCUMENT:
            if words:
                yield Sentence(place, tuple(words), tuple(tags) if labelled else None)
            words, tags = [], []
            continue
        if not width:
            width = len(fields)
            check_column(column, fields, where=where, labelled=labelled)
        if len(fields) != width:
            raise UserError(
                f"{where}: {len(fields)} columns where the lines before have {width}: "
                f"{line.strip()[:80]!r}; every word needs all of them, and a blank line ends a "
                "sentence"
            )
        place = place if words else where
        words.append(fields[0])
        if labelled:
            tags.append(fields[column])


def cells(line: str) -> list[str]:
    """Apart by blanks and tabs alone: a no-break space may be a word of its own."""
    trimmed = line.strip(" \t")
    return re.split(r"[ \t]+", trimmed) if trimmed else []


def check_column(column: int, fields: Sequence[str], *, where: str, labelled: bool) -> None:
    is_there = -len(fields) <= column < len(fields)
    if labelled and not (is_there and column % len(fields)):
        raise UserError(
            f"{where}: {len(fields)} columns ({' '.join(fields)[:80]}), so --column {column} is "
            "not one "
            "with a tag; the first (0) holds the word, and -1 means the last"
        )


# ---- rows ----------------------------------------------------------------------------------------


def from_rows(
    table: Table, *, words: str, tags: Sequence[str], labelled: bool
) -> Iterator[Sentence]:
    """A sentence a row: lists, or text with blanks between, in the column `words` and the first of
    `tags` there is.
    """
    for where, row in read_rows(table):
        found = listed(require_column(row, words, where), words, where)
        name = next((name for name in tags if name in row), tags[0])
        if not labelled and row.get(name) is None:
            yield Sentence(where, found, None)
            continue
        given = listed(require_column(row, name, where), name, where)
        if len(given) != len(found):
            raise UserError(
                f"{where}: {len(found)} words in {words!r}, but {len(given)} tags in {name!r}; "
                "each word "
                "needs one"
            )
        yield Sentence(where, found, given)


def listed(value: Any, name: str, where: str) -> tuple[str, ...]:
    items: Sequence[Any] | None = value.split() if isinstance(value, str) else value
    if isinstance(items, Mapping) or not isinstance(items, Sequence):
        raise UserError(
            f"{where}: {name!r} is {type(value).__name__}; a list of texts is expected, or one "
            "text with "
            "blanks between"
        )
    for item in items:
        if not isinstance(item, str):
            raise UserError(
                f"{where}: {name!r} holds {item!r}, which is {type(item).__name__}, not text; "
                "write tags "
                "by their names (B-PER, not 1)"
            )
        check_encodable(item, where)
    return tuple(items)
