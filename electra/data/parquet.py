"""Read Parquet in bounded memory, however large a small file is when it is decoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO, Any

MAX_BATCH_BYTES = 1 << 26  # of rows that are decoded together, by the metadata of the file
MAX_BATCH_ROWS = 256


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


def read_batches(stream: IO[bytes], columns: Sequence[str] | None = None) -> Iterator[Any]:
    """Yield record batches; raise OSError for a damaged file.

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
            row_bytes = max(1, group.total_byte_size // max(1, group.num_rows))
            rows = min(MAX_BATCH_ROWS, max(1, MAX_BATCH_BYTES // row_bytes))
            yield from file.iter_batches(batch_size=rows, row_groups=[number], columns=columns)
    except pyarrow.ArrowInvalid as error:
        raise OSError(str(error)) from None


def to_python(value: Any) -> Any:
    """Convert a value of a record batch to a Python object."""
    try:
        return value.as_py()
    except UnicodeDecodeError as error:
        raise OSError(str(error)) from None
