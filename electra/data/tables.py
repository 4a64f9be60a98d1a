"""Labelled data in whatever files it comes in: rows of CSV, TSV, JSONL, Parquet or a hub data set,
one by one.
"""

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
from electra.data.corpus import MAX_JSON_LINE_BYTES, check_encodable, open_source, parse_json_line
from electra.data.sources import (
    COMPRESSIONS,
    HUB_NAME,
    Report,
    Source,
    check_regular_file,
    find_on_hub,
    printable_path,
)
from electra.files import parse_json

FORMATS = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".json": "json", ".parquet": "parquet"}
MAX_JSON_BYTES = 256 * 1024 * 1024  # of a file that is one JSON value, unpacked
MAX_ROW_CHARACTERS = (
    16 * 1024 * 1024
)  # of CSV or TSV; split into its fields it takes some twenty times as much memory
MAX_COLUMNS = 10_000

LocatedRow = tuple[
    str, dict[str, Any]
]  # where a row stands ("file:line" or "file, row n"), and the row


@dataclass(frozen=True)
class Table:
    """One file of labelled data, or one split of a data set on the hub."""

    source: Source
    format: str  # csv, tsv, jsonl, json, parquet, hub, or text for anything else
    split: str | None = None

    def __str__(self) -> str:
        return (
            f"{self.source.display_name}/{self.split}" if self.split else self.source.display_name
        )

    def fingerprint(self) -> dict[str, Any]:
        return {**self.source.fingerprint(), "split": self.split}


def find_table(given: str | Path, *, split: str | None = None, format: str | None = None) -> Table:
    """A file that is there, or a data set on the hub that answers; what cannot be read is refused
    now.
    """
    path = Path(given).expanduser()
    if path.is_dir():
        raise UserError(
            f"{path}: a folder where a file is expected; it holds "
            f"{', '.join(sorted(p.name for p in path.iterdir())[:8]) or 'nothing'}"
        )
    if path.exists():
        compression = path.suffix.lower() if path.suffix.lower() in COMPRESSIONS else ""
        suffix = Path(path.stem).suffix.lower() if compression else path.suffix.lower()
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
    return not Path(given).expanduser().exists() and HUB_NAME.fullmatch(str(given)) is not None


def read_rows(
    table: Table,
    *,
    header: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    ragged: Report | None = None,
) -> Iterator[LocatedRow]:
    """Each row with its place. `header` names the columns of a file that has no first line of
    names; `columns` are those wanted, which must be there. Lines with too many or too few fields go
    to `ragged`; without it, the first one is an error.
    """
    if table.format in ("csv", "tsv"):
        return read_delimited(table, header=header, wanted=columns or (), ragged=ragged)
    if table.format == "jsonl":
        return read_json_lines(table)
    if table.format == "parquet":
        return read_parquet_rows(table, wanted=columns)
    if table.format == "hub":
        return read_hub_rows(table)
    raise UserError(
        f"{table}: rows are read from .csv, .tsv, .jsonl and .parquet (not .parquet also as .gz, "
        ".xz, "
        f".bz2, .zst), or from the hub; found {table.source.path.suffix or 'no suffix'}"
    )


def require_column(row: Mapping[str, Any], name: str, where: str, *, flag: str = "") -> Any:
    """A row's value in a column, or an error that lists the columns there are and the flag that
    names another.
    """
    if name not in row:
        raise UserError(
            f"{where}: no column {name!r}{suggest(name, row)}; columns here are "
            f"{', '.join(map(str, row)) or 'none'}"
            + (f"; name the right one with {flag}" if flag else "")
        )
    return row[name]


def require_text(row: Mapping[str, Any], name: str, where: str) -> str:
    """A row's text in a column."""
    value = require_column(row, name, where)
    if not isinstance(value, str):
        raise UserError(f"{where}: {name!r} is {type(value).__name__}, not text")
    check_encodable(value, where)
    return value


def read_lines(table: Table) -> Iterator[tuple[str, str]]:
    """Each line with its place, without its end."""
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
                yield where, raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{where}: byte 0x{raw[error.start]:02x} is not UTF-8; convert the file, from "
                    "Latin-1 "
                    "for example: iconv -f LATIN1 -t UTF-8"
                ) from None


def read_json(table: Table) -> Any:
    """A file that is one JSON value, as SQuAD's are."""
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


# ---- forms ---------------------------------------------------------------------------------------


def read_delimited(
    table: Table, *, header: Sequence[str] | None, wanted: Sequence[str], ragged: Report | None
) -> Iterator[LocatedRow]:
    """CSV with its quotes. TSV as GLUE has it: a quote is a character like any other."""
    csv.field_size_limit(MAX_ROW_CHARACTERS)
    dialect: Any = (
        {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
        if table.format == "tsv"
        else {"strict": True}
    )
    given = RowLines(table)
    reader = csv.reader(iter(given), **dialect)
    names = list(header) if header is not None else None
    begins = 1  # a quoted field may hold line ends: a row stands where it begins
    try:
        for fields in reader:
            where, begins, given.gathered = f"{table}:{begins}", reader.line_num + 1, 0
            if not fields:
                continue
            if names is None:
                names = check_header(fields, table)
                for name in wanted:
                    require_column(dict.fromkeys(names), name, str(table))
            elif len(fields) == len(names):
                yield where, dict(zip(names, fields, strict=True))
            else:
                found = f"{where}: {len(fields)} fields where {len(names)} columns are expected ({', '.join(names)})"
                if ragged is None:
                    raise UserError(
                        found
                        + (
                            "; mend this line"
                            if table.format == "tsv"
                            else "; mend this line, or quote what holds a comma"
                        )
                    )
                ragged(found)
    except csv.Error as error:
        raise UserError(f"{table}:{begins}: not valid {table.format.upper()}: {error}") from None


class RowLines:
    """Lines for csv's reader, which takes as many for one row as a quote stays open: all of a file,
    if it may.
    """

    def __init__(self, table: Table) -> None:
        self.table, self.gathered = table, 0  # characters since the last row

    def __iter__(self) -> Iterator[str]:
        for where, line in read_lines(self.table):
            self.gathered += len(line) + 1
            if self.gathered > MAX_ROW_CHARACTERS:
                raise UserError(
                    f"{where}: a row of more than {MAX_ROW_CHARACTERS >> 20} million characters; "
                    "split it, or "
                    "close the quote that was left open"
                )
            yield line + "\n"


def check_header(names: Sequence[str], table: Table) -> list[str]:
    if len(names) > MAX_COLUMNS:
        raise UserError(
            f"{table}:1: {len(names):,} columns, where at most {MAX_COLUMNS:,} are read; keep "
            "those that "
            "are needed"
        )
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise UserError(f"{table}:1: column {min(twice)!r} is named more than once")
    return list(names)


def read_json_lines(table: Table) -> Iterator[LocatedRow]:
    for where, line in read_lines(table):
        if line.strip():
            yield where, parse_json_line(line, where)


def read_parquet_rows(table: Table, *, wanted: Sequence[str] | None) -> Iterator[LocatedRow]:
    with open_source(table.source) as (stream, _):
        there = dict.fromkeys(parquet.column_names(stream))
        for name in wanted or ():
            require_column(there, name, str(table))
        row = 0
        for batch in parquet.read_batches(stream):
            for index in range(batch.num_rows):
                row += 1
                yield (
                    f"{table}, row {row}",
                    {
                        name: parquet.to_python(column[index])
                        for name, column in zip(batch.schema.names, batch.columns, strict=True)
                    },
                )


def read_hub_rows(table: Table) -> Iterator[LocatedRow]:
    """One split, streamed; a class that the hub stores as a number comes with its name."""
    import datasets

    source = table.source
    try:
        found = datasets.load_dataset(
            source.name, source.config, split=table.split, revision=source.revision, streaming=True
        )
        names = {column: feature for column, feature in (found.features or {}).items()}
        for number, row in enumerate(found, start=1):
            yield (
                f"{table}, row {number}",
                {
                    column: decode_class_label(value, names.get(column))
                    for column, value in row.items()
                },
            )
    except UserError:
        raise
    except Exception as error:  # each builder and each transport raises its own kinds
        raise UserError(
            f"{table}: cannot be read from the hub ({str(error).strip().partition(chr(10))[0]}); "
            "fetch its "
            "files, put them on this machine and name them"
        ) from None


def decode_class_label(value: Any, feature: Any) -> Any:
    """A class by its name; −1 is the hub's word for an answer that is kept secret."""
    inner = getattr(feature, "feature", None)
    if isinstance(value, list) and inner is not None:
        return [decode_class_label(item, inner) for item in value]
    if hasattr(feature, "int2str") and isinstance(value, int):
        return None if value < 0 else feature.int2str(value)
    return value


def parse_number(value: Any) -> float | None:
    """A value as a finite number, if it is one."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if isinstance(value, str) and not re.fullmatch(
        r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", value
    ):
        return None
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        return None
    found = float(value)
    return found if abs(found) <= sys.float_info.max else None
