"""Read rows of JSON: one object per line, or one list of objects, in bounded memory."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import IO, Any

from electra.config import UserError
from electra.data import lines
from electra.data.lines import open_source, read_lines
from electra.data.sources import Source
from electra.files import MAX_DEPTH, check_bounds, parse_json

READ_BYTES = 1 << 20
DECODER = json.JSONDecoder()
SPACE = re.compile(r"[ \t\r\n]*")
MIN_TEXT_WORDS = 3  # of a text; a word to tag may have a blank in it
PANDAS = "; in pandas: df.to_json('rows.jsonl', orient='records', lines=True)"

LocatedRow = tuple[str, dict[str, Any]]  # a row after its place: "file:line" or "file, row n"
ReportPosition = Callable[[int], None]


def ignore_position(position: int) -> None:
    """Do nothing, the default of every `report_position` parameter."""


def read_json_rows(
    source: Source, report_position: ReportPosition = ignore_position
) -> Iterator[LocatedRow]:
    """Return the rows of a .json file: the elements of a list, or one object per line."""
    with open_source(source) as (stream, _):
        start = stream.read(READ_BYTES).removeprefix(codecs.BOM_UTF8).lstrip()
    if start.startswith(b"["):
        return read_json_list(source, report_position)
    return refuse_columns(read_json_lines(source, report_position))


def refuse_columns(rows: Iterator[LocatedRow]) -> Iterator[LocatedRow]:
    """Yield rows; raise UserError where there is only one and it is a whole table."""
    beginning = list(islice(rows, 2))
    if len(beginning) == 1 and is_table(beginning[0][1]):
        where, row = beginning[0]
        raise UserError(
            f"{where}: a whole table in one JSON object ({', '.join(row)}), where a row is "
            f"expected; write its rows as a list of objects, or one object a line{PANDAS}"
        )
    yield from beginning
    yield from rows


def is_table(row: Mapping[str, Any]) -> bool:
    """Return whether an object alone in its file is a table, as pandas writes it by default, as a
    dict of lists or below one key. The lists of a row are words and their tags, or have a text
    beside them.
    """
    values = list(row.values())
    if len(values) == 1 and isinstance(values[0], list):
        return any(isinstance(item, dict) for item in values[0])
    if values and all(isinstance(value, dict) and "0" in value for value in values):
        return True
    if not all(isinstance(value, list) for value in values):
        return False
    items = [item for value in values for item in value if isinstance(item, str)]
    return any(len(item.split()) >= MIN_TEXT_WORDS for item in items)


def read_json_lines(
    source: Source, report_position: ReportPosition = ignore_position
) -> Iterator[LocatedRow]:
    """Yield the rows of a file with one JSON object per line."""
    for where, line in read_lines(source, report_position):
        if line.strip():
            yield where, parse_json_line(line, where)


def parse_json_line(line: str, where: str) -> dict[str, Any]:
    """Return the JSON object on a line."""
    try:
        row = parse_json(line)
    except ValueError as error:
        raise UserError(
            f"{where}: not a JSON object on one line ({error}); a list of objects becomes lines "
            f"with jq -c '.[]'{PANDAS}"
        ) from None
    if not isinstance(row, dict):
        raise UserError(
            f"{where}: expected one JSON object per line, found a {type(row).__name__}; a list of "
            "objects becomes lines with jq -c '.[]'"
        )
    return row


def read_json_list(source: Source, report_position: ReportPosition) -> Iterator[LocatedRow]:
    """Yield the elements of a file that is one list of JSON objects."""
    with open_source(source) as (stream, position):
        buffer = JSONBuffer(stream, source.display_name)
        buffer.skip("[")
        number = 0
        while buffer.peek() != "]":
            number += 1
            where = f"{source.display_name}, row {number}"
            value = buffer.parse_value(where)
            if not isinstance(value, dict):
                raise UserError(
                    f"{where}: expected a list of JSON objects, found a {type(value).__name__}"
                )
            report_position(position())
            yield where, value
            if buffer.peek() != "]":
                buffer.skip(",")
        buffer.skip("]")
        if follows := buffer.peek():
            raise UserError(f"{source.display_name}: {follows!r} follows the end of the list")


class JSONBuffer:
    """The text of a JSON file, read as far as it is needed."""

    def __init__(self, stream: IO[bytes], display_name: str) -> None:
        self.stream = stream
        self.display_name = display_name
        self.decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self.text, self.start = "", 0

    def read_more(self, characters: int) -> bool:
        """Read on, and return whether there was more."""
        raw = self.stream.read(max(READ_BYTES, characters))
        try:
            self.text = self.text[self.start :] + self.decoder.decode(raw, final=not raw)
        except UnicodeDecodeError as error:
            raise UserError(
                f"{self.display_name}: not UTF-8 text ({error}); {lines.CONVERT}"
            ) from None
        self.start = 0
        return bool(raw)

    def peek(self) -> str:
        """Return the next character that is no white space, or an empty string at the end."""
        while True:
            space = SPACE.match(self.text, self.start)
            assert space is not None  # it may be empty
            self.start = space.end()
            if self.start < len(self.text):
                return self.text[self.start]
            if not self.read_more(0):
                return ""

    def skip(self, expected: str) -> None:
        """Skip a character; raise UserError if it is another."""
        if (found := self.peek()) != expected:
            raise UserError(
                f"{self.display_name}: not valid JSON: {found or 'the end'!r} instead of "
                f"{expected!r}"
            )
        self.start += 1

    def parse_value(self, where: str) -> Any:
        """Return the next value. The buffer is doubled until it holds all of it, so that the time
        is proportional to its length.
        """
        self.peek()
        while True:
            try:
                value, self.start = DECODER.raw_decode(self.text, self.start)
                check_bounds(value)
                return value
            except RecursionError:
                raise UserError(f"{where}: nested more than {MAX_DEPTH} deep") from None
            except ValueError as error:
                size = len(self.text) - self.start
                if size > lines.MAX_LINE_BYTES or not self.read_more(size):
                    raise UserError(f"{where}: not valid JSON: {error}") from None
