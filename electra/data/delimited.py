"""Read rows of CSV and TSV, in bounded memory."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from electra.config import UserError, suggest
from electra.data.json_rows import LocatedRow
from electra.data.lines import read_lines
from electra.data.sources import Report, Source
from electra.data.table_layout import Layout, detect_layout, looks_like_data

# Of CSV or TSV; a row that is split into its fields takes some twenty times as much memory.
MAX_ROW_CHARACTERS = 16 * 1024 * 1024
MAX_COLUMNS = 10_000
NEGATIVE = re.compile(r"-\d+")
MAX_NAME_WORDS = 3  # of a column; a name with more may be a row of data
# By a part of what Python's reader says, which does not tell a user what to do.
REMEDIES = {
    "new-line character": r"its lines end with CR alone, so convert it: tr '\r' '\n'",
    "end of data": "close the quote that this row opens",
    "expected after": "write a quote inside a quoted field twice",
}


def read_delimited(
    source: Source,
    *,
    format: str,
    delimiter: str = "",
    header: Sequence[str] | bool | None = None,
    columns: Sequence[str] = (),
    ragged: Report | None = None,
    report_position: Callable[[int], None] = lambda position: None,
) -> Iterator[LocatedRow]:
    """Yield the rows of CSV, of TSV as GLUE has it, where a quote is an ordinary character, or of
    text with another delimiter (see `detect_layout`). Columns without names are numbered from 0.
    """
    csv.field_size_limit(MAX_ROW_CHARACTERS)
    layout = detect_layout(
        source, format=format, delimiter=delimiter, header=header, columns=columns
    )
    lines = RowLines(source, layout, report_position)
    reader = csv.reader(iter(lines), **layout.dialect)
    names = layout.names
    first_line = 1  # of a row: a quoted field may hold line endings
    try:
        for fields in reader:
            where, first_line = f"{source.display_name}:{first_line}", reader.line_num + 1
            lines.characters = 0
            if not fields:
                continue
            if names is None:
                names = check_header(fields, source)
            elif len(fields) == len(names):
                yield where, dict(zip(names, fields, strict=True))
            else:
                refuse_ragged_row(where, fields, names, layout=layout, ragged=ragged)
    except csv.Error as error:
        place = f"{source.display_name}:{first_line}"
        raise UserError(f"{place}: not valid {format.upper()}: {explain(error)}") from None


def explain(error: csv.Error) -> str:
    """Return what is wrong with a row, and the remedy where there is one."""
    return next((remedy for part, remedy in REMEDIES.items() if part in str(error)), str(error))


def refuse_ragged_row(
    where: str,
    fields: Sequence[str],
    names: Sequence[str],
    *,
    layout: Layout,
    ragged: Report | None,
) -> None:
    """Report a row with another number of fields than columns, or raise UserError."""
    problem = (
        f"{where}: {len(fields)} fields where {len(names)} columns are expected "
        f"({', '.join(names)})"
    )
    if ragged is not None:
        ragged(problem)
    elif not layout.quoted:
        raise UserError(f"{problem}; fix this line")
    else:
        what = {",": "a comma", ";": "a semicolon"}.get(layout.delimiter, "the delimiter")
        raise UserError(f"{problem}; fix this line, or quote what holds {what}")


class RowLines:
    """Lines for csv.reader, which reads on as long as a quote is open: up to a whole file, if it is
    not stopped.
    """

    def __init__(
        self, source: Source, layout: Layout, report_position: Callable[[int], None]
    ) -> None:
        self.source, self.layout, self.report_position = source, layout, report_position
        self.characters = 0  # since the last row

    def __iter__(self) -> Iterator[str]:
        is_skipped = self.layout.has_separator_line
        for where, line in read_lines(self.source, self.report_position):
            self.characters += len(line) + 1
            if self.characters > MAX_ROW_CHARACTERS:
                raise UserError(
                    f"{where}: a row of more than {MAX_ROW_CHARACTERS >> 20} million characters; "
                    "split it, or close the quote that was left open"
                )
            if is_skipped and line.strip():
                line, is_skipped = "", False  # a blank line, so that the others keep their numbers
            yield self.layout.prepare_line(line) + "\n"


def check_header(names: Sequence[str], source: Source) -> list[str]:
    """Return the names of a header line, without the blanks around them unless that makes two the
    same; raise UserError if they are too many or not unique.
    """
    if len(names) > MAX_COLUMNS:
        raise UserError(
            f"{source.display_name}:1: {len(names):,} columns, where at most {MAX_COLUMNS:,} are "
            "read; keep those that are needed"
        )
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise UserError(
            f"{source.display_name}:1: column {min(repeated)!r} is named more than once; rename one"
        )
    stripped = [name.strip() for name in names]
    if len(set(stripped)) < len(stripped):
        return list(names)
    return stripped


def find_column(row: Mapping[str, Any], name: str) -> str:
    """Return the column of a row that a name, or else a number counted from 0, means."""
    if name in row or not name.isdecimal() or int(name) >= len(row):
        return name
    if any(column.isdecimal() for column in row):  # then numbers are names
        return name
    return list(row)[int(name)]


def require_column(
    row: Mapping[str, Any],
    name: str,
    where: str,
    *,
    flag: str = "",
    may_be_number: bool = False,
    earlier: Collection[str] = (),
) -> Any:
    """Return a row's value in a column; raise UserError with the columns of the row, and the flag
    that names another, if it has none. For a classifier a column may be named by its number.

    `earlier` are the columns of the row before: one that is among them is missing here alone.
    """
    if name in row:
        return row[name]
    if name in earlier:
        raise UserError(
            f"{where}: this row has no {name!r}, as the rows before have; fill it in, or leave the "
            "row out"
        )
    message = (
        f"{where}: no column {name!r}{suggest(name, row)}; columns here are "
        f"{', '.join(map(str, row)) or 'none'}"
    )
    if flag:
        message += f"; name the right one with {flag}"
    if may_be_number and NEGATIVE.fullmatch(name):
        message += f"; columns are counted from 0, so the last one here is {len(row) - 1}"
    elif may_be_number and any(is_hardly_a_name(str(column)) for column in row):
        message += (
            "; if the file has no header line, say --no-header and name columns by number, "
            "counted from 0: --text 1 --label 0"
        )
    raise UserError(message)


def is_hardly_a_name(column: str) -> bool:
    """Return whether a column seems to be named by a row of data: by a number or a sentence."""
    return looks_like_data(column) or len(column.split()) > MAX_NAME_WORDS
