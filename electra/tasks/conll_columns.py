"""Detect what the columns of a CoNLL file hold, and which of its lines are comments.

CoNLL-U has ten columns: ID FORM LEMMA UPOS XPOS FEATS HEAD DEPREL DEPS MISC. Of other files the
first column holds the word and the last one the tag, where nothing else was asked for.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from electra.config import UserError
from electra.data.sources import warn
from electra.data.tables import Table, read_lines
from electra.tasks.entities import split_tag

DOCUMENT_START = "-DOCSTART-"
CONLLU_SUFFIX, CONLLU_COLUMNS, FORM, UPOS = ".conllu", 10, 1, 3
# Of a blank line, and of what CoNLL-2003 and CoNLL-2012 write between documents.
SENTENCE_END = re.compile(rf"[ \t]*(({DOCUMENT_START}|#begin document|#end document)([ \t]|$)|$)")
NO_WORD_ID = re.compile(r"\d+[-.]\d+")  # a multi-word range (1-2) or an empty node (1.1)
COLUMN_NUMBER = re.compile(r"-?[0-9]{1,6}")

LAST = -1  # the column of the tags, unless another is named

Line = tuple[str, str]  # where it is, and its text


@dataclass(frozen=True, slots=True)
class ColumnChoice:
    """The columns that were asked for, by their numbers: from 0, or from -1 backwards."""

    words: int | None = None  # None: the first, or FORM
    tags: int = LAST  # of CoNLL-U, LAST stands for UPOS


def column_number(name: str) -> int | None:
    """Return the number of a column that is named by it."""
    if COLUMN_NUMBER.fullmatch(name):
        return int(name)
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnLayout:
    """What the columns of a file hold."""

    words: int
    tags: int
    count: int
    is_conllu: bool
    has_ids: bool  # the first column counts the words of each sentence
    has_tabs: bool

    def split(self, line: str) -> list[str]:
        if self.is_conllu:
            return split_conllu(line)
        return split_columns(line)


def split_columns(line: str) -> list[str]:
    """Split a line at blanks and tabs alone: a no-break space may be a word of its own."""
    trimmed = line.strip(" \t")
    if not trimmed:
        return []
    return re.split(r"[ \t]+", trimmed)


def split_conllu(line: str) -> list[str]:
    """Split a line of CoNLL-U at its tabs: a form may have blanks in it, as in `10 000`."""
    if "\t" not in line.strip(" \t"):
        return split_columns(line)
    return [field.strip(" ") for field in line.split("\t")]


def ends_sentence(line: str) -> bool:
    """Return whether a line is blank, or the mark of a document."""
    return SENTENCE_END.match(line) is not None


# ---- layout --------------------------------------------------------------------------------------


def detect_columns(
    table: Table, opening: Sequence[Line], choice: ColumnChoice
) -> ColumnLayout | None:
    """Return the layout of a file; None for one without words. `opening` is its first lines."""
    numbered = is_numbered(opening)
    first = next(word_lines(read_lines(table), has_ids=numbered), None)
    if first is None:
        first = next((line for line in read_lines(table) if not ends_sentence(line[1])), None)
    if first is None:
        return None
    where, line = first
    fields = split_conllu(line)
    named = numbered or CONLLU_SUFFIX in table.source.path.suffixes
    is_conllu = named and len(fields) == CONLLU_COLUMNS
    words, tags = FORM, UPOS if choice.tags == LAST else choice.tags
    if not is_conllu:
        fields, words, tags = split_columns(line), 0, choice.tags
        if numbered and choice.words is None and len(fields) > 1:
            refuse_numbers(where, line)
    if choice.words is not None:
        words = choice.words
    return ColumnLayout(
        words=words,
        tags=tags,
        count=len(fields),
        is_conllu=is_conllu,
        has_ids=is_conllu or (numbered and words != 0),
        has_tabs="\t" in line,
    )


def is_numbered(lines: Iterable[Line]) -> bool:
    """Return whether the first column counts 1, 2, 3 … in each sentence."""
    expected, longest = 1, 0
    for _, line in lines:
        if line.startswith("#"):
            continue
        if ends_sentence(line):
            expected = 1
            continue
        number = split_columns(line)[0]
        if NO_WORD_ID.fullmatch(number):
            continue
        if number != str(expected):
            return False
        longest, expected = max(longest, expected), expected + 1
    return longest > 1


def refuse_numbers(where: str, line: str) -> None:
    raise UserError(
        f"{where}: the first column counts the words of each sentence: {line.strip()[:80]!r}; "
        "name the column that holds the words, counted from 0: --words 1 (--words 0 if these "
        "numbers are the words)"
    )


def check_columns(layout: ColumnLayout, fields: Sequence[str], where: str, labelled: bool) -> None:
    """Raise UserError unless a line has the column of the words, and another one with tags."""
    count, shown = len(fields), " ".join(fields)[:80]
    if not -count <= layout.words < count:
        raise UserError(
            f"{where}: {count} columns ({shown}), so --words {layout.words} is none of them; "
            "the first is 0, and -1 means the last"
        )
    exists = -count <= layout.tags < count
    if labelled and not (exists and layout.tags % count != layout.words % count):
        place = "the first (0)" if layout.words == 0 else f"--words {layout.words}"
        raise UserError(
            f"{where}: {count} columns ({shown}), so --column {layout.tags} is not one with a "
            f"tag; {place} holds the word, and -1 means the last"
        )


def are_columns(opening: Sequence[Line], choice: ColumnChoice, *, known: Collection[str]) -> bool:
    """Say whether no line has a second word, the first sentence has tags, or this is CoNLL-U."""
    split = [split_columns(line) for _, line in opening]
    if all(len(fields) <= 1 for fields in split if fields[:1] != [DOCUMENT_START]):
        return True
    words = [line for _, line in word_lines(opening, has_ids=True)]
    if is_numbered(opening) and all(len(split_conllu(line)) == CONLLU_COLUMNS for line in words):
        return True
    sentence = first_sentence(opening)
    needed = max(2, choice.tags + 1, -choice.tags)
    return bool(sentence) and all(
        len(fields) >= needed
        and (fields[choice.tags] in known or split_tag(fields[choice.tags])[1])
        for fields in sentence
    )


def first_sentence(opening: Iterable[Line]) -> list[list[str]]:
    """Return the columns of the first sentence, without comments before its words."""
    lines = [line for _, line in opening if not may_be_comment(line)]
    begun = itertools.dropwhile(ends_sentence, lines)
    return [split_columns(line) for line in itertools.takewhile(split_columns, begun)]


# ---- comments ------------------------------------------------------------------------------------


def may_be_comment(line: str) -> bool:
    """Return whether a line at the beginning of a sentence may be a comment: `# text = …`."""
    return line.startswith("# ") or line.rstrip(" \t") == "#"


def word_lines(source: Iterable[Line], *, has_ids: bool) -> Iterator[Line]:
    """Yield the lines that are words for certain."""
    at_start = True
    for where, line in source:
        if ends_sentence(line):
            at_start = True
        elif has_ids and line.startswith("#"):
            continue
        elif not (at_start and may_be_comment(line)):
            at_start = False
            yield where, line


def drop_comments(
    source: Iterable[Line], table: Table, layout: ColumnLayout, *, known: Collection[str]
) -> Iterator[Line]:
    """Yield the lines without comments.

    A line such as `# newpar` in a file of two columns may be a comment or the word `#` with its
    tag. It is a word if others have this tag, or if it has no letter, and otherwise a comment, of
    which a warning tells.
    """
    tags: set[str] = set()
    at_start, is_warned = True, False
    for where, line in source:
        if layout.has_ids and line.startswith("#"):
            continue
        if at_start and may_be_comment(line):
            if is_other_than_words(line, layout):
                continue
            tag = tag_in(line, layout)
            tags = tags or {*known, *tags_of_words(table, layout)}
            if tag is not None and tag not in tags and is_prose(tag):
                if not is_warned:
                    warn_of_comment(where, line, tag)
                is_warned = True
                continue
        at_start = ends_sentence(line)
        yield where, line


def is_prose(tag: str) -> bool:
    """Return whether a tag that no word has may be a word of a comment. Of `#` it may be `#`."""
    return any(map(str.isalpha, tag)) and not split_tag(tag)[1]


def is_other_than_words(line: str, layout: ColumnLayout) -> bool:
    """Return whether a line differs from the lines of words in its columns or what parts them."""
    if len(layout.split(line)) != layout.count:
        return True
    return layout.has_tabs and layout.count > 1 and "\t" not in line


def tag_in(line: str, layout: ColumnLayout) -> str | None:
    """Return the tag in a line, if it has a column for it."""
    fields = layout.split(line)
    if len(fields) < 2 or not -len(fields) <= layout.tags < len(fields):
        return None
    return fields[layout.tags]


def tags_of_words(table: Table, layout: ColumnLayout) -> set[str]:
    """Return the tags of all lines that are words for certain; this reads the file once more."""
    lines = word_lines(read_lines(table), has_ids=layout.has_ids)
    return {tag for _, line in lines if (tag := tag_in(line, layout)) is not None}


def warn_of_comment(where: str, line: str, tag: str) -> None:
    warn(
        f"{where}: {line.strip()[:80]!r} is read as a comment, and so are other lines like it, "
        f"because no other word has the tag {tag!r}; if # is a word there, put a tab after it"
    )
