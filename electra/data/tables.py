"""Read labelled data: rows of CSV, TSV, JSON, Parquet or a data set on the hub, one by one."""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from electra.config import UserError
from electra.data import lines, parquet
from electra.data.delimited import find_column as find_column
from electra.data.delimited import read_delimited
from electra.data.delimited import require_column as require_column
from electra.data.json_rows import PANDAS, read_json_lines, read_json_rows
from electra.data.json_rows import LocatedRow as LocatedRow
from electra.data.lines import check_encodable, open_source
from electra.data.sources import (
    HUB_NAME,
    Report,
    Source,
    check_regular_file,
    compression_suffix,
    find_on_hub,
    open_on_hub,
    printable_path,
)
from electra.files import parse_json

FORMATS = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".json": "json", ".parquet": "parquet"}
BINARY = (".xlsx", ".xls", ".ods", ".zip", ".pdf", ".docx", ".feather", ".arrow", ".pkl")
MAX_JSON_BYTES = 256 * 1024 * 1024  # of a file that is one JSON value, decompressed
# One way to match any digits: `\d+\.?\d*` would try all ways to split a long run of them in two.
NUMBER = re.compile(r"\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*")

# By the type of a value that should be text, what to do.
NO_TEXT: dict[type, str] = {
    int: "; write it as text",
    float: "; write it as text",
    bytes: "; decode it first: value.decode()",
    dict: "; flatten it first: give the text a column of its own",
    list: f"; join its parts first, or, if it is a whole column, write one object a row{PANDAS}",
}


@dataclass(frozen=True)
class Table:
    """One file of labelled data, or one split of a data set on the hub."""

    source: Source
    format: str  # csv, tsv, jsonl, json, parquet, hub, or text for anything else
    split: str | None = None
    # Of text with columns; where they are not given, they are detected.
    delimiter: str = ""
    header: bool | None = None  # whether the first line names the columns
    rows: Sequence[LocatedRow] | None = None  # held in memory instead of a file

    def __str__(self) -> str:
        if self.split:
            return f"{self.source.display_name}/{self.split}"
        return self.source.display_name

    def fingerprint(self) -> dict[str, Any]:
        """Return what identifies the content of the table."""
        if self.rows is not None:
            return {"name": self.source.name, "rows": len(self.rows), "sha256": self.hash_rows()}
        return {**self.source.fingerprint(), "split": self.split}

    @property
    def is_delimited(self) -> bool:
        """Whether its columns stand between delimiters."""
        return self.format in ("csv", "tsv", "text")

    def hash_rows(self) -> str:
        """Return a hash of the rows in memory; the places they come from are no part of it."""
        digest = hashlib.sha256()
        for _, row in self.rows or ():
            digest.update(json.dumps(row, sort_keys=True, default=str).encode() + b"\n")
        return digest.hexdigest()


def table_of_rows(rows: Sequence[LocatedRow], *, name: str) -> Table:
    """Return a table of rows in memory. A message calls it `name`."""
    return Table(Source(display_name=name, name=name, kind="jsonl"), "jsonl", rows=rows)


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
    columns: Sequence[str] = (),
    ragged: Report | None = None,
) -> Iterator[LocatedRow]:
    """Return the rows of a table with their places.

    `header` names the columns of a file without a header line. `columns` are the names or numbers
    by which columns will be asked for: numbers mean that there may be no header line. Lines with
    too many or too few fields are reported to `ragged`; without it, the first one is an error.
    """
    if table.rows is not None:
        return iter(table.rows)
    if table.format == "jsonl":
        return read_json_lines(table.source)
    if table.format == "json":
        return read_json_rows(table.source)
    if table.format == "parquet":
        return read_parquet_rows(table)
    if table.format == "hub":
        return read_hub_rows(table)
    if table.source.path.suffix.lower() in BINARY:
        raise UserError(
            f"{table}: rows are read from .csv, .tsv, .txt, .json, .jsonl and .parquet (not "
            ".parquet also as .gz, .xz, .bz2, .zst), or from the hub; found "
            f"{table.source.path.suffix}; save it as CSV"
        )
    return read_delimited(
        table.source,
        format=table.format,
        delimiter=table.delimiter,
        header=header or table.header,
        columns=columns,
        ragged=ragged,
    )


def require_text(
    row: Mapping[str, Any], name: str, where: str, *, flag: str = "", may_be_missing: bool = False
) -> str:
    """Return a row's text in a column; an empty one for a missing value, where it may be."""
    value = require_column(row, name, where, flag=flag)
    if is_missing(value):
        if may_be_missing:
            return ""
        raise UserError(f"{where}: {name!r} is missing; fill it in, or leave the row out")
    if not isinstance(value, str):
        remedy = next((r for kind, r in NO_TEXT.items() if isinstance(value, kind)), "")
        raise UserError(f"{where}: {name!r} is {type(value).__name__}, not text{remedy}")
    check_encodable(value, where)
    return value


def is_missing(value: object) -> bool:
    """Return whether a value is what JSON, Parquet and pandas have in an empty cell."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def read_lines(table: Table) -> Iterator[tuple[str, str]]:
    """Return each line with its place, without the line ending."""
    return lines.read_lines(table.source)


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


def read_parquet_rows(table: Table) -> Iterator[LocatedRow]:
    """Yield the rows of a Parquet file."""
    with open_source(table.source) as (stream, _):
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
    remedy = "fetch its files, put them on this machine and name them"
    with open_on_hub(table.source, table.split, name=str(table), remedy=remedy) as dataset:
        features = dataset.features or {}
        for number, row in enumerate(dataset, start=1):
            decoded = {}
            for column, value in row.items():
                decoded[column] = decode_class_label(value, features.get(column))
            yield f"{table}, row {number}", decoded


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
