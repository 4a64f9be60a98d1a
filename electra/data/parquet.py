"""Parquet in bounded memory, whatever a small file unfolds to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO, Any

MAX_BATCH_BYTES = 1 << 26  # of rows that are decoded together, by what the file says of them
MAX_BATCH_ROWS = 256


def column_names(stream: IO[bytes]) -> list[str]:
    """Of its columns."""
    import pyarrow
    import pyarrow.parquet

    try:
        found: list[str] = pyarrow.parquet.read_schema(stream).names
    except pyarrow.ArrowInvalid as error:
        raise OSError(str(error)) from None
    stream.seek(0)
    return found


def read_batches(stream: IO[bytes], columns: Sequence[str] | None = None) -> Iterator[Any]:
    """Record batches. Text that a file stores once for many rows is not repeated in memory, so take
    values one at a time. What is damaged raises OSError.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        schema = pyarrow.parquet.read_schema(stream)
        repeated = [field.name for field in schema if pyarrow.types.is_string(field.type)]
        stream.seek(0)
        file = pyarrow.parquet.ParquetFile(stream, buffer_size=1 << 20, read_dictionary=repeated)
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            row_bytes = max(1, group.total_byte_size // max(1, group.num_rows))
            rows = min(MAX_BATCH_ROWS, max(1, MAX_BATCH_BYTES // row_bytes))
            yield from file.iter_batches(batch_size=rows, row_groups=[number], columns=columns)
    except pyarrow.ArrowInvalid as error:
        raise OSError(str(error)) from None


def to_python(value: Any) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError as error:
        raise OSError(str(error)) from None
