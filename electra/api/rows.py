"""Data that a Python program holds, as tables: files by name, DataFrames, lists of dicts."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from electra.config import UserError
from electra.data.tables import LocatedRow, Table, find_table, table_of_rows
from electra.tasks.input_rows import input_row
from electra.tasks.task import AnyTask


class DataFrame(Protocol):
    """A table of pandas, or any object that gives its rows in the same way."""

    def to_dict(self, orient: Any, /) -> Any: ...


PathName: TypeAlias = str | os.PathLike[str]
Rows: TypeAlias = Sequence[Mapping[str, Any]] | DataFrame
Data: TypeAlias = PathName | Sequence[PathName] | Rows
# How polars, pyarrow, data sets of the hub, columns, arrays and pandas give their rows.
TO_ROWS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("to_dicts", ()),
    ("to_pylist", ()),
    ("to_list", ()),
    ("tolist", ()),
    ("to_dict", ("records",)),
)
# What messages say that a function takes.
PATHS = "a path, or a list of paths"
ROWS = "a list of dicts with a row each, or a DataFrame"
TEXTS = f"a list of texts, {ROWS}, or the path of a file"
MODELS = (
    "the folder of a model, owner/name on the hub, what `electra finetune` returned, or a list of "
    "these"
)
MISSING = ("NAType", "NaTType")  # what pandas writes for a value that is not there


def is_path(data: object) -> bool:
    return isinstance(data, (str, os.PathLike))


def as_items(
    data: object, *, name: str, accepted: str = f"a path, a list of paths, {ROWS}"
) -> list[Any]:
    """Return the rows, paths or texts of a list or a DataFrame; a string is one path.

    `accepted` is what a message says that the caller takes.
    """
    if isinstance(data, (str, os.PathLike)):
        return [data]
    if not isinstance(data, Mapping):
        for method, arguments in TO_ROWS:
            if hasattr(data, method):
                refuse_repeated_columns(data, name=name)
                return list(getattr(data, method)(*arguments))
        if isinstance(data, Iterable) and not isinstance(data, (bytes, bytearray)):
            return list(data)
    raise UserError(f"{name} is a {type(data).__name__}; give {accepted}")


def refuse_repeated_columns(data: object, *, name: str) -> None:
    """Raise UserError for a DataFrame with two columns of one name: a dict of a row keeps one."""
    columns = getattr(data, "columns", ())  # of pandas; of pyarrow these are no names
    if not hasattr(data, "to_dict"):
        columns = getattr(data, "column_names", ())
    counts = Counter(map(str, columns))
    if repeated := [column for column, count in counts.items() if count > 1]:
        raise UserError(f"{name}: column {min(repeated)!r} is named more than once; rename one")


def holds_rows(items: Sequence[object], *, name: str) -> bool:
    """Return whether the items are rows and not paths; raise UserError where they are mixed."""
    rows = [isinstance(item, Mapping) for item in items]
    for number, item in enumerate(items, start=1):
        if not isinstance(item, Mapping) and (any(rows) or not is_path(item)):
            raise UserError(
                f"{name}, item {number} is a {type(item).__name__}; give paths alone, or a dict "
                "for each row"
            )
    return any(rows)


def find_tables(data: Data, *, name: str) -> list[Table]:
    """Return the tables of files, or one table of rows, which messages call `name`."""
    items = as_items(data, name=name)
    if not items:
        raise UserError(f"{name} is empty; give at least one file or one row")
    if not holds_rows(items, name=name):
        return [find_table(item) for item in items]
    return [rows_table(items, name=name)]


def rows_table(rows: Iterable[Mapping[str, Any]], *, name: str) -> Table:
    """Return a table of dicts in memory."""
    located: list[LocatedRow] = []
    for number, row in enumerate(rows, start=1):
        plain = {str(column): to_plain(value) for column, value in row.items()}
        located.append((f"{name}, row {number}", plain))
    return table_of_rows(located, name=name)


def to_plain(value: Any) -> Any:
    """Return a value of NumPy or pandas as Python's own, and a missing one as None."""
    if type(value).__name__ in MISSING:
        return None
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return value.tolist()
    return value


# ---- inputs to predict ---------------------------------------------------------------------------


def input_tables(task: AnyTask, inputs: object) -> list[Table]:
    """Return the table of what a model is to answer: a file, rows, or bare texts and pairs."""
    if isinstance(inputs, (str, os.PathLike)):
        return [find_input(inputs)]
    rows = []
    for number, item in enumerate(as_items(inputs, name="inputs", accepted=TEXTS), start=1):
        if isinstance(item, os.PathLike):
            raise UserError(
                f"inputs, item {number} is a path, and the items of a list are texts; give one "
                "file by itself: predict(path)"
            )
        rows.append(input_row(task, item, f"inputs, row {number}"))
    return [rows_table(rows, name="inputs")]


def find_input(path: PathName) -> Table:
    try:
        return find_table(Path(path))
    except UserError as error:
        remedy = f"a text goes into a list: [{str(path)[:40]!r}]"
        raise UserError(f"{error} ({remedy})") from None
