"""Read labelled data: rows of CSV, TSV, JSONL, Parquet or a data set on the hub, one by one."""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from electra.config import UserError, suggest
from electra.data import parquet
from electra.data.corpus import (
    MAX_JSON_LINE_BYTES,
    check_encodable,
    line_encoding,
    open_source,
    parse_json_line,
)
from electra.data.sources import (
    HUB_NAME,
    Report,
    Source,
    check_regular_file,
    compression_suffix,
    find_on_hub,
    printable_path,
)
from electra.files import parse_json

FORMATS = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".json": "json", ".parquet": "parquet"}
MAX_JSON_BYTES = 256 * 1024 * 1024  # of a file that is one JSON value, decompressed
# Of CSV or TSV; a row that is split into its fields takes some twenty times as much memory.
MAX_ROW_CHARACTERS = 16 * 1024 * 1024
MAX_COLUMNS = 10_000
DIALECTS: dict[str, Any] = {
    "csv": {"strict": True},
    "tsv": {"delimiter": "\t", "quoting": csv.QUOTE_NONE},
}
# One way to match any digits: `\d+\.?\d*` would try all ways to split a long run of them in two.
NUMBER = re.compile(r"\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*")

LocatedRow = tuple[str, dict[str, Any]]  # a row after its place: "file:line" or "file, row n"


@dataclass(frozen=True)
class Table:
    """One file of labelled data, or one split of a data set on the hub."""

    source: Source
    format: str  # csv, tsv, jsonl, json, parquet, hub, or text for anything else
    split: str | None = None

    def __str__(self) -> str:
        if self.split:
            return f"{self.source.display_name}/{self.split}"
        return self.source.display_name

    def fingerprint(self) -> dict[str, Any]:
        """Return what identifies the content of the table."""
        return {**self.source.fingerprint(), "split": self.split}


def find_table(given: str | Path, *, split: str | None = None, format: str | None = None) -> Table:
    """Return the table of a file or a data set on the hub; raise UserError if it does not exist."""
    path = Path(given).expanduser()
    if path.is_dir():
        raise UserError(
            f"{path}: a folder where a file is expected; it holds "
            f"{', '.join(sorted(p.name for p in path.iterdir())[:8]) or 'nothing'}"
        )
    if path.exists():
        compression = compression_suffix(path)
        suffix = path.suffix.lower()
        if compression:
            suffix = Path(path.stem).suffix.lower()
        source = Source(
            display_name=printable_path(path),
            name=path.name,
            kind="text",
            path=check_regular_file(path),
            compression=compression,
            size=path.stat().st_size,
        )
        return Table(source, format or FORMATS.get(suffix, "text"))
    if match := HUB_NAME.fullmatch(str(given)):
        return Table(
            find_on_hub(match["dataset"], match["config"], match["revision"]), "hub", split
        )
    raise UserError(f"{given}: no such file")


def is_hub_name(given: str | Path) -> bool:
    """Return whether a name could be a data set on the hub: it is no path on this disk."""
    return not Path(given).expanduser().exists() and HUB_NAME.fullmatch(str(given)) is not None


def read_rows(
    table: Table,
    *,
    header: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    ragged: Report | None = None,
) -> Iterator[LocatedRow]:
    """Return the rows of a table with their places.

    `header` names the columns of a file without a header line; `columns` must exist. Lines with too
    many or too few fields are reported to `ragged`; without it, the first one is an error.
    """
    if table.format in ("csv", "tsv"):
        return read_delimited(table, header=header, columns=columns or (), ragged=ragged)
    if table.format == "jsonl":
        return read_json_lines(table)
    if table.format == "parquet":
        return read_parquet_rows(table, columns=columns or ())
    if table.format == "hub":
        return read_hub_rows(table)
    raise UserError(
        f"{table}: rows are read from .csv, .tsv, .jsonl and .parquet (not .parquet also as .gz, "
        f".xz, .bz2, .zst), or from the hub; found {table.source.path.suffix or 'no suffix'}"
    )


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


def require_text(row: Mapping[str, Any], name: str, where: str) -> str:
    """Return a row's text in a column."""
    value = require_column(row, name, where)
    if not isinstance(value, str):
        raise UserError(f"{where}: {name!r} is {type(value).__name__}, not text")
    check_encodable(value, where)
    return value


def read_lines(table: Table) -> Iterator[tuple[str, str]]:
    """Yield each line with its place, without the line ending."""
    with open_source(table.source) as (stream, _):
        number = 0
        while raw := stream.readline(MAX_JSON_LINE_BYTES + 1):
            number += 1
            where = f"{table}:{number}"
            if len(raw) > MAX_JSON_LINE_BYTES:
                raise UserError(f"{where}: a line of more than {MAX_JSON_LINE_BYTES >> 20} MB")
            if b"\0" in raw:
                raise UserError(f"{where}: a NUL byte; this is not UTF-8 text")
            try:
                yield where, raw.decode(line_encoding(number)).rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{where}: byte 0x{raw[error.start]:02x} is not UTF-8; convert the file, from "
                    "Latin-1 for example: iconv -f LATIN1 -t UTF-8"
                ) from None


def read_json(table: Table) -> Any:
    """Return the value of a file that is one JSON value, as SQuAD's are."""
    with open_source(table.source) as (stream, _):
        content = stream.read(MAX_JSON_BYTES + 1)
    if len(content) > MAX_JSON_BYTES:
        raise UserError(
            f"{table}: more than {MAX_JSON_BYTES >> 20} MB in one JSON value; split it into "
            "several files"
        )
    try:
        return parse_json(content.decode("utf-8-sig"))
    except ValueError as error:
        raise UserError(f"{table}: not valid JSON: {error}") from None


# ---- formats -------------------------------------------------------------------------------------


def read_delimited(
    table: Table, *, header: Sequence[str] | None, columns: Sequence[str], ragged: Report | None
) -> Iterator[LocatedRow]:
    """Yield the rows of CSV, or of TSV as GLUE has it, where a quote is an ordinary character."""
    csv.field_size_limit(MAX_ROW_CHARACTERS)
    lines = RowLines(table)
    reader = csv.reader(iter(lines), **DIALECTS[table.format])
    names = header
    first_line = 1  # of a row: a quoted field may hold line endings
    try:
        for fields in reader:
            where, first_line = f"{table}:{first_line}", reader.line_num + 1
            lines.characters = 0
            if not fields:
                continue
            if names is None:
                names = check_header(fields, table, columns)
            elif len(fields) == len(names):
                yield where, dict(zip(names, fields, strict=True))
            else:
                refuse_ragged_row(where, fields, names, table=table, ragged=ragged)
    except csv.Error as error:
        raise UserError(
            f"{table}:{first_line}: not valid {table.format.upper()}: {error}"
        ) from None


def refuse_ragged_row(
    where: str,
    fields: Sequence[str],
    names: Sequence[str],
    *,
    table: Table,
    ragged: Report | None,
) -> None:
    """Report a row with another number of fields than columns, or raise UserError."""
    problem = (
        f"{where}: {len(fields)} fields where {len(names)} columns are expected "
        f"({', '.join(names)})"
    )
    if ragged is not None:
        ragged(problem)
    elif table.format == "tsv":
        raise UserError(f"{problem}; mend this line")
    else:
        raise UserError(f"{problem}; mend this line, or quote what holds a comma")


class RowLines:
    """Lines for csv.reader, which reads on as long as a quote is open: up to a whole file, if it is
    not stopped.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self.characters = 0  # since the last row

    def __iter__(self) -> Iterator[str]:
        for where, line in read_lines(self.table):
            self.characters += len(line) + 1
            if self.characters > MAX_ROW_CHARACTERS:
                raise UserError(
                    f"{where}: a row of more than {MAX_ROW_CHARACTERS >> 20} million characters; "
                    "split it, or close the quote that was left open"
                )
            yield line + "\n"


def check_header(names: Sequence[str], table: Table, columns: Sequence[str]) -> list[str]:
    """Return the names of a header line; raise UserError if they are too many, are not unique, or
    lack one of `columns`.
    """
    if len(names) > MAX_COLUMNS:
        raise UserError(
            f"{table}:1: {len(names):,} columns, where at most {MAX_COLUMNS:,} are read; keep "
            "those that are needed"
        )
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise UserError(f"{table}:1: column {min(repeated)!r} is named more than once")
    for name in columns:
        require_column(dict.fromkeys(names), name, str(table))
    return list(names)


def read_json_lines(table: Table) -> Iterator[LocatedRow]:
    """Yield the rows of a file with one JSON object per line."""
    for where, line in read_lines(table):
        if line.strip():
            yield where, parse_json_line(line, where)


def read_parquet_rows(table: Table, *, columns: Sequence[str]) -> Iterator[LocatedRow]:
    """Yield the rows of a Parquet file."""
    with open_source(table.source) as (stream, _):
        names = dict.fromkeys(parquet.column_names(stream))
        for name in columns:
            require_column(names, name, str(table))
        number = 0
        for batch in parquet.read_batches(stream, str(table)):
            for index in range(batch.num_rows):
                number += 1
                where, row = f"{table}, row {number}", {}
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    row[name] = parquet.to_python(column[index], where, name)
                yield where, row


def read_hub_rows(table: Table) -> Iterator[LocatedRow]:
    """Yield the rows of one split, streamed; class labels come as names, not as numbers."""
    import datasets

    source = table.source
    try:
        dataset = datasets.load_dataset(
            source.name, source.config, split=table.split, revision=source.revision, streaming=True
        )
        features = dataset.features or {}
        for number, row in enumerate(dataset, start=1):
            decoded = {}
            for column, value in row.items():
                decoded[column] = decode_class_label(value, features.get(column))
            yield f"{table}, row {number}", decoded
    except UserError:
        raise
    except Exception as error:  # every builder and transport raises types of its own
        reason = str(error).strip().partition("\n")[0]
        raise UserError(
            f"{table}: cannot be read from the hub ({reason}); fetch its files, put them on this "
            "machine and name them"
        ) from None


def decode_class_label(value: Any, feature: Any) -> Any:
    """Return a class label as its name, and −1, the hub's code for a hidden label, as None."""
    inner = getattr(feature, "feature", None)
    if isinstance(value, list) and inner is not None:
        return [decode_class_label(item, inner) for item in value]
    if not hasattr(feature, "int2str") or not isinstance(value, int):
        return value
    if value < 0:
        return None
    return feature.int2str(value)


def parse_number(value: Any) -> float | None:
    """Return a value as a finite number, or None if it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if isinstance(value, str) and not NUMBER.fullmatch(value):
        return None
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        return None
    number = float(value)
    if not abs(number) <= sys.float_info.max:  # an infinity, or not a number
        return None
    return number
