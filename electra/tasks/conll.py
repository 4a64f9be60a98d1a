"""Read tagged sentences: CoNLL columns, rows with lists of words and tags, or plain text to tag."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from electra.config import UserError
from electra.data.lines import check_encodable
from electra.data.table_layout import first_lines
from electra.data.tables import Table, read_lines, read_rows, require_column
from electra.tasks.entities import split_tag

DOCUMENT_START = "-DOCSTART-"
DETECTION_LINES = 1000  # read to tell what kind of text a file holds
TAGGED_LINE = re.compile(r"\S+[ \t](.*[ \t])?(O|[BIESLU]-\S+)[ \t]*")
SUFFIXES = {".conll", ".conllu", ".bio", ".iob", ".iob2"}

Line = tuple[str, str]  # where it is, and its text


@dataclass(frozen=True, slots=True)
class Sentence:
    """Words and, where they are known, their tags, one each, as the file spells them."""

    where: str
    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    row: Mapping[str, Any] | None = field(default=None, compare=False)  # as read, to predict


# ---- columns -------------------------------------------------------------------------------------


def sentences_from_text(
    table: Table, *, column: int, labelled: bool, known: Collection[str]
) -> Iterator[Sentence]:
    """Read CoNLL columns or, where tags are not needed, a .txt file with one sentence a line.

    A .txt file is read as columns too if it has one word a line, or if the column has tags that
    the task knows (`known`).
    """
    source = iter(read_lines(table))
    opening = list(itertools.islice(source, DETECTION_LINES))
    all_lines = itertools.chain(opening, source)
    may_be_plain = not labelled and ".txt" in table.source.path.suffixes
    if may_be_plain and not are_columns(opening, column=column, known=known):
        return sentences_from_lines(all_lines)
    return sentences_from_columns(all_lines, column=column, labelled=labelled)


def sentences_from_lines(source: Iterable[Line]) -> Iterator[Sentence]:
    for where, line in source:
        if line.strip():
            yield Sentence(where, tuple(line.split()), None)


def are_columns(opening: Sequence[Line], *, column: int, known: Collection[str]) -> bool:
    """Say whether no line has a second word, or the first sentence has tags in the column."""
    split = [split_columns(line) for _, line in opening]
    written = [fields for fields in split if fields[:1] != [DOCUMENT_START]]
    if all(len(fields) <= 1 for fields in written):
        return True
    sentence = itertools.takewhile(bool, itertools.dropwhile(lambda fields: not fields, written))
    needed = max(2, column + 1, -column)
    return all(
        len(fields) >= needed and (fields[column] in known or split_tag(fields[column])[1])
        for fields in sentence
    )


def sentences_from_columns(
    source: Iterable[Line], *, column: int, labelled: bool
) -> Iterator[Sentence]:
    """Read one word a line: its own column first and somewhere its tag; a blank ends a sentence."""
    num_columns, start = 0, ""
    words: list[str] = []
    tags: list[str] = []
    for where, line in itertools.chain(source, [("", "")]):
        fields = split_columns(line)
        if not fields or fields[0] == DOCUMENT_START:
            if words:
                yield Sentence(start, tuple(words), tuple(tags) if labelled else None)
            words, tags = [], []
            continue
        if not num_columns:
            num_columns = len(fields)
            check_column(column, fields, where=where, labelled=labelled)
        if len(fields) != num_columns:
            raise UserError(
                f"{where}: {len(fields)} columns where the lines before have {num_columns}: "
                f"{line.strip()[:80]!r}; every word needs all of them, and a blank line ends a "
                "sentence"
            )
        if not words:
            start = where
        words.append(fields[0])
        if labelled:
            tags.append(fields[column])


def split_columns(line: str) -> list[str]:
    """Split a line at blanks and tabs alone: a no-break space may be a word of its own."""
    trimmed = line.strip(" \t")
    if not trimmed:
        return []
    return re.split(r"[ \t]+", trimmed)


def check_column(column: int, fields: Sequence[str], *, where: str, labelled: bool) -> None:
    exists = -len(fields) <= column < len(fields)
    if labelled and not (exists and column % len(fields)):
        raise UserError(
            f"{where}: {len(fields)} columns ({' '.join(fields)[:80]}), so --column {column} is "
            "not one with a tag; the first (0) holds the word, and -1 means the last"
        )


def refuse_conll(table: Table) -> None:
    """Raise UserError for CoNLL columns where rows of texts are expected."""
    if not table.is_delimited:
        return
    lines = first_lines(table.source)
    tagged = len(lines) > 1 and all(TAGGED_LINE.fullmatch(line) for line in lines)
    if tagged or SUFFIXES & set(table.source.path.suffixes):
        raise UserError(
            f"{table}: looks like CoNLL columns, a word and its tag on each line; a classifier "
            "reads one text a row. Words are tagged with --task tag, ner or chunk"
        )


# ---- rows ----------------------------------------------------------------------------------------


def sentences_from_rows(
    table: Table, *, words: str, tags: Sequence[str], labelled: bool
) -> Iterator[Sentence]:
    """Read a sentence a row, from the column `words` and the first of the columns `tags` there is.

    A cell is a list, or a text with blanks between.
    """
    for where, row in read_rows(table):
        sentence_words = text_list(require_column(row, words, where, flag="--words"), words, where)
        column = next((name for name in tags if name in row), tags[0])
        if not labelled and row.get(column) is None:
            yield Sentence(where, sentence_words, None, row)
            continue
        sentence_tags = text_list(require_column(row, column, where, flag="--tags"), column, where)
        if len(sentence_tags) != len(sentence_words):
            raise UserError(
                f"{where}: {len(sentence_words)} words in {words!r}, but {len(sentence_tags)} tags "
                f"in {column!r}; each word needs one"
            )
        yield Sentence(where, sentence_words, sentence_tags, None if labelled else row)


def text_list(value: Any, name: str, where: str) -> tuple[str, ...]:
    """Return a cell's texts, which are a list or have blanks between."""
    items: Any = value
    if isinstance(value, str):
        items = value.split()
    if isinstance(items, Mapping) or not isinstance(items, Sequence):
        raise UserError(
            f"{where}: {name!r} is {type(value).__name__}; a list of texts is expected, or one "
            "text with blanks between"
        )
    for item in items:
        if not isinstance(item, str):
            raise UserError(
                f"{where}: {name!r} holds {item!r}, which is {type(item).__name__}, not text; "
                "write tags by their names (B-PER, not 1)"
            )
        check_encodable(item, where)
    return tuple(items)
