"""Read Parquet in bounded memory, however large a small file is when it is decoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO, Any

from electra.config import UserError

MAX_BATCH_BYTES = 1 << 26  # of rows that are decoded together, by the metadata of the file
MAX_BATCH_ROWS = 256
MAX_VALUE_BYTES = 1 << 26  # of one column in one row
# Of a column of more than a batch. Text shrinks to a tenth; a hundredfold is a long repetition.
MAX_EXPANSION = 1000


def column_names(stream: IO[bytes]) -> list[str]:
    """Return the names of the columns."""
    import pyarrow
    import pyarrow.parquet

    try:
        names: list[str] = pyarrow.parquet.read_schema(stream).names
    except pyarrow.ArrowInvalid as error:
        raise OSError(str(error)) from None
    stream.seek(0)
    return names


def read_batches(
    stream: IO[bytes], display_name: str, columns: Sequence[str] | None = None
) -> Iterator[Any]:
    """Yield record batches; raise OSError for a damaged file, UserError for too large values.

    Text that a file stores once for many rows is not repeated in memory, so convert values one at a
    time.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        schema = pyarrow.parquet.read_schema(stream)
        strings = [field.name for field in schema if pyarrow.types.is_string(field.type)]
        stream.seek(0)
        file = pyarrow.parquet.ParquetFile(stream, buffer_size=1 << 20, read_dictionary=strings)
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            check_column_sizes(group, display_name, columns)
            row_bytes = max(1, group.total_byte_size // max(1, group.num_rows))
            rows = min(MAX_BATCH_ROWS, max(1, MAX_BATCH_BYTES // row_bytes))
            yield from file.iter_batches(batch_size=rows, row_groups=[number], columns=columns)
    except pyarrow.ArrowInvalid as error:
        raise OSError(str(error)) from None


def check_column_sizes(group: Any, display_name: str, columns: Sequence[str] | None) -> None:
    """Raise UserError, before anything is decoded, for a column of a row group whose metadata says
    that it holds values too large for memory.
    """
    for index in range(group.num_columns):
        column = group.column(index)
        name = column.path_in_schema.partition(".")[0]
        if columns is not None and name not in columns:
            continue
        size, stored = column.total_uncompressed_size, max(1, column.total_compressed_size)
        if size > MAX_VALUE_BYTES * max(1, group.num_rows):
            raise value_too_large(display_name, name)
        if size > MAX_BATCH_BYTES and size > MAX_EXPANSION * stored:
            raise UserError(
                f"{display_name}: column {name!r} expands from {stored:,} to {size:,} bytes, more "
                f"than {MAX_EXPANSION} times its size; leave the repeated values out"
            )


def to_python(value: Any, where: str, name: str) -> Any:
    """Convert a value of the column of this name in a record batch to a Python object."""
    try:
        converted = value.as_py()
    except UnicodeDecodeError as error:
        raise OSError(str(error)) from None
    if isinstance(converted, (str, bytes)) and len(converted) > MAX_VALUE_BYTES:
        raise value_too_large(where, name)
    return converted


def value_too_large(where: str, name: str) -> UserError:
    """Return the error for a value that is too large."""
    return UserError(
        f"{where}: column {name!r} holds a value of more than {MAX_VALUE_BYTES >> 20} MB; write "
        "one document per row"
    )
