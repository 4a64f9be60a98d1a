"""Read rows of CSV and TSV, in bounded memory."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from electra.config import UserError, suggest
from electra.data.json_rows import LocatedRow
from electra.data.lines import read_lines
from electra.data.sources import Report, Source

# Of CSV or TSV; a row that is split into its fields takes some twenty times as much memory.
MAX_ROW_CHARACTERS = 16 * 1024 * 1024
MAX_COLUMNS = 10_000
DIALECTS: dict[str, Any] = {
    "csv": {"strict": True},
    "tsv": {"delimiter": "\t", "quoting": csv.QUOTE_NONE},
}


def read_delimited(
    source: Source,
    *,
    format: str,
    header: Sequence[str] | None = None,
    columns: Sequence[str] = (),
    ragged: Report | None = None,
    report_position: Callable[[int], None] = lambda position: None,
) -> Iterator[LocatedRow]:
    """Yield the rows of CSV, or of TSV as GLUE has it, where a quote is an ordinary character."""
    csv.field_size_limit(MAX_ROW_CHARACTERS)
    lines = RowLines(source, report_position)
    reader = csv.reader(iter(lines), **DIALECTS[format])
    names = header
    first_line = 1  # of a row: a quoted field may hold line endings
    try:
        for fields in reader:
            where, first_line = f"{source.display_name}:{first_line}", reader.line_num + 1
            lines.characters = 0
            if not fields:
                continue
            if names is None:
                names = check_header(fields, source, columns)
            elif len(fields) == len(names):
                yield where, dict(zip(names, fields, strict=True))
            else:
                refuse_ragged_row(where, fields, names, format=format, ragged=ragged)
    except csv.Error as error:
        raise UserError(
            f"{source.display_name}:{first_line}: not valid {format.upper()}: {error}"
        ) from None


def refuse_ragged_row(
    where: str,
    fields: Sequence[str],
    names: Sequence[str],
    *,
    format: str,
    ragged: Report | None,
) -> None:
    """Report a row with another number of fields than columns, or raise UserError."""
    problem = (
        f"{where}: {len(fields)} fields where {len(names)} columns are expected "
        f"({', '.join(names)})"
    )
    if ragged is not None:
        ragged(problem)
    elif format == "tsv":
        raise UserError(f"{problem}; mend this line")
    else:
        raise UserError(f"{problem}; mend this line, or quote what holds a comma")


class RowLines:
    """Lines for csv.reader, which reads on as long as a quote is open: up to a whole file, if it is
    not stopped.
    """

    def __init__(self, source: Source, report_position: Callable[[int], None]) -> None:
        self.source, self.report_position = source, report_position
        self.characters = 0  # since the last row

    def __iter__(self) -> Iterator[str]:
        for where, line in read_lines(self.source, self.report_position):
            self.characters += len(line) + 1
            if self.characters > MAX_ROW_CHARACTERS:
                raise UserError(
                    f"{where}: a row of more than {MAX_ROW_CHARACTERS >> 20} million characters; "
                    "split it, or close the quote that was left open"
                )
            yield line + "\n"


def check_header(names: Sequence[str], source: Source, columns: Sequence[str]) -> list[str]:
    """Return the names of a header line; raise UserError if they are too many, are not unique, or
    lack one of `columns`.
    """
    if len(names) > MAX_COLUMNS:
        raise UserError(
            f"{source.display_name}:1: {len(names):,} columns, where at most {MAX_COLUMNS:,} are "
            "read; keep those that are needed"
        )
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise UserError(
            f"{source.display_name}:1: column {min(repeated)!r} is named more than once"
        )
    for name in columns:
        require_column(dict.fromkeys(names), name, source.display_name)
    return list(names)


def require_column(row: Mapping[str, Any], name: str, where: str, *, flag: str = "") -> Any:
    """Return a row's value in a column; raise UserError with the columns of the row, and the flag
    that names another, if it has none.
    """
    if name in row:
        return row[name]
    message = (
        f"{where}: no column {name!r}{suggest(name, row)}; columns here are "
        f"{', '.join(map(str, row)) or 'none'}"
    )
    if flag:
        message += f"; name the right one with {flag}"
    raise UserError(message)
