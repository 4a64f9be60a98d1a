"""Read tagged sentences: CoNLL columns, rows with lists of words and tags, or plain text to tag."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from electra.config import UserError
from electra.data.lines import check_encodable
from electra.data.sources import warn
from electra.data.table_layout import first_lines
from electra.data.tables import Table, read_lines, read_rows, require_column
from electra.files import parse_json
from electra.tasks.conll_columns import (
    NO_WORD_ID,
    ColumnChoice,
    ColumnLayout,
    Line,
    are_columns,
    check_columns,
    detect_columns,
    drop_comments,
    ends_sentence,
)

LONG_SENTENCE = 100  # words of a file to predict, which may well hold one sentence
DETECTION_LINES = 1000  # read to tell what kind of text a file holds
TAGGED_LINE = re.compile(r"\S+[ \t](.*[ \t])?(O|[BIESLU]-\S+)[ \t]*")
# A list of texts as JSON and Python write it; in a sentence, a blank follows the bracket.
LIST_TEXT = re.compile(r"\[(['\"].*['\"])?\]", re.DOTALL)
TAG_NAMES = "write tags by their names (B-PER, not 1)"
SUFFIXES = {".conll", ".conllu", ".bio", ".iob", ".iob2"}


@dataclass(frozen=True, slots=True)
class Sentence:
    """Words and, where they are known, their tags, one each, as the file spells them."""

    where: str
    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    row: Mapping[str, Any] | None = field(default=None, compare=False)  # as read, to predict


# ---- columns -------------------------------------------------------------------------------------


def sentences_from_text(
    table: Table, choice: ColumnChoice, *, labelled: bool, known: Collection[str]
) -> Iterator[Sentence]:
    """Read CoNLL columns or, where tags are not needed, a .txt file with one sentence a line.

    A .txt file is read as columns too if it has one word a line, if the column has tags that the
    task knows (`known`), or if it is CoNLL-U.
    """
    source = iter(read_lines(table))
    opening = list(itertools.islice(source, DETECTION_LINES))
    all_lines = itertools.chain(opening, source)
    may_be_plain = not labelled and ".txt" in table.source.path.suffixes
    if may_be_plain and not are_columns(opening, choice, known=known):
        return sentences_from_lines(all_lines)
    layout = detect_columns(table, opening, choice)
    if layout is None:
        return iter(())
    lines = drop_comments(all_lines, table, layout, known=known)
    sentences = sentences_from_columns(lines, layout, labelled=labelled)
    return warn_of_one_sentence(sentences, least=2 if labelled else LONG_SENTENCE)


def sentences_from_lines(source: Iterable[Line]) -> Iterator[Sentence]:
    for where, line in source:
        if line.strip():
            yield Sentence(where, tuple(line.split()), None)


def sentences_from_columns(
    source: Iterable[Line], layout: ColumnLayout, *, labelled: bool
) -> Iterator[Sentence]:
    """Read one word a line, with its tag in another column; a blank line ends a sentence."""
    start, is_checked = "", False
    words: list[str] = []
    tags: list[str] = []
    for where, line in itertools.chain(source, [("", "")]):
        if ends_sentence(line):
            if words:
                yield Sentence(start, tuple(words), tuple(tags) if labelled else None)
            words, tags = [], []
            continue
        fields = layout.split(line)
        if not is_checked:
            check_columns(layout, fields, where, labelled)
            is_checked = True
        if len(fields) != layout.count:
            refuse_ragged(where, line, len(fields), expected=layout.count)
        if layout.has_ids and NO_WORD_ID.fullmatch(fields[0]):
            continue
        if not words:
            start = where
        words.append(fields[layout.words])
        if labelled:
            tags.append(fields[layout.tags])


def warn_of_one_sentence(sentences: Iterable[Sentence], *, least: int) -> Iterator[Sentence]:
    """Yield the sentences; warn of a file with a single one of at least so many words."""
    only = None
    for count, sentence in enumerate(sentences, start=1):
        only = sentence if count == 1 else None
        yield sentence
    if only is not None and len(only.words) >= least:
        warn(
            f"{only.where}: the file is one sentence of {len(only.words):,} words; a blank line "
            "ends a sentence"
        )


def refuse_ragged(where: str, line: str, count: int, *, expected: int) -> None:
    raise UserError(
        f"{where}: {count} columns where the lines before have {expected}: "
        f"{line.strip()[:80]!r}; every word needs all of them, and a blank line ends a sentence"
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
    table: Table, *, words: Sequence[str], tags: Sequence[str], labelled: bool
) -> Iterator[Sentence]:
    """Read a sentence a row, from the first of the columns `words` and of `tags` that there is.

    A cell is a list, JSON of a list, or a text with blanks between.
    """
    blank = 0
    for where, row in read_rows(table):
        name = next((name for name in words if name in row), words[0])
        value = require_column(row, name, where, flag="--words")
        sentence_words = text_list(value, name, where, remedy="write every word as text")
        blank += sum(not word.strip() for word in sentence_words)
        column = next((name for name in tags if name in row), tags[0])
        if not labelled and row.get(column) is None:
            yield Sentence(where, sentence_words, None, row)
            continue
        value = require_column(row, column, where, flag="--tags")
        sentence_tags = text_list(value, column, where, remedy=TAG_NAMES)
        if len(sentence_tags) != len(sentence_words):
            raise UserError(
                f"{where}: {len(sentence_words)} words in {name!r}, but {len(sentence_tags)} tags "
                f"in {column!r}; each word needs one"
            )
        yield Sentence(where, sentence_words, sentence_tags, None if labelled else row)
    if blank:
        warn(f"{table}: words without text: {blank}; they are kept")


def text_list(value: Any, name: str, where: str, *, remedy: str) -> tuple[str, ...]:
    """Return a cell's texts, which are a list or have blanks between."""
    items: Any = value
    if isinstance(value, str):
        items = split_text(value, name, where)
    if isinstance(items, Mapping) or not isinstance(items, Sequence):
        raise UserError(
            f"{where}: {name!r} is {type(value).__name__}; a list of texts is expected, or one "
            "text with blanks between"
        )
    for item in items:
        if not isinstance(item, str):
            raise UserError(
                f"{where}: {name!r} holds {item!r}, which is {type(item).__name__}, not text; "
                f"{remedy}"
            )
        check_encodable(item, where)
    return tuple(items)


def split_text(text: str, name: str, where: str) -> list[Any]:
    """Split a cell of text: at its blanks, unless it is JSON of a list of texts."""
    if not LIST_TEXT.fullmatch(text.strip()):
        return text.split()
    try:
        items = parse_json(text)
    except ValueError:
        items = None
    if isinstance(items, list):
        return items
    raise UserError(
        f"{where}: {name!r} holds a list as text, {text[:40]!r}, that is not JSON; write it as "
        '["Ada", "lives"] or with blanks between (Ada lives), or rows with lists to a .jsonl file'
    )
