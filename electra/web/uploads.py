"""Tables: an uploaded file becomes examples, and their answers a CSV file."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from electra.config import UserError, suggest_or_list
from electra.data.sources import KINDS, Source
from electra.data.tables import FORMATS, Table
from electra.tasks.inference import add_input_columns
from electra.tasks.prediction_files import write_delimited
from electra.tasks.task import Answer, AnyTask, Example
from electra.web.requests import Limits, RequestError, as_request_error, quote

SUFFIXES = {
    "text/csv": ".csv",
    "text/tab-separated-values": ".tsv",
    "application/jsonl": ".jsonl",
    "application/x-ndjson": ".jsonl",
}
COLUMNS = ("text", "text_pair", "question", "context", "words", "options")
FLAG = re.compile(r"--([a-z]+(?:-[a-z]+)*)")  # of `electra predict`, in a message
CHUNK_EXAMPLES = 32  # that are queued at a time, so that a table does not hold up other requests


def upload_suffix(content_type: str) -> str:
    """Return the ending of a file of this type."""
    suffix = SUFFIXES.get(content_type.partition(";")[0].strip().lower())
    if suffix is None:
        raise RequestError(
            415, f"Send a table with one of the headers Content-Type: {', '.join(SUFFIXES)}."
        )
    return suffix


def with_columns(task: AnyTask, query: Mapping[str, str]) -> AnyTask:
    """Return the task that reads the columns that a query names."""
    known = [name for name in COLUMNS if name in task.inference_options]
    for name in query:
        if name not in known:
            hint = suggest_or_list(name, known)
            raise RequestError(400, f"Unknown parameter {quote(name)}{hint}.")
        if not query[name]:
            raise RequestError(400, f"The parameter {name} is empty; give the name of a column.")
    options: dict[str, Any] = dict(query)
    if "options" in options:
        options["options"] = tuple(options["options"].split(","))
    return replace(task, **options)


def read_upload(task: AnyTask, body: bytes, *, suffix: str, limits: Limits) -> list[Example]:
    """Return the examples of an uploaded file; raise RequestError for one that cannot be read."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"upload{suffix}"
        path.write_bytes(body)
        # Messages name the display name, and so no path of the server.
        source = Source(
            display_name=f"table{suffix}",
            name=path.name,
            kind=KINDS[suffix],
            path=path,
            size=len(body),
        )
        table = Table(source, FORMATS[suffix])
        try:
            examples = list(islice(task.read([table], labelled=False), limits.table_rows + 1))
        except UserError as error:
            message = str(error).replace(str(path), source.display_name).replace(folder, "")
            raise as_request_error(UserError(FLAG.sub(as_parameter, message))) from None
    if not examples:
        raise RequestError(400, "The table has no rows; send a header line and at least one row.")
    if len(examples) > limits.table_rows:
        raise RequestError(
            413,
            f"The table has more than {limits.table_rows:,} rows; send it in parts, or use "
            "electra predict.",
        )
    check_cells(examples, limits)
    return examples


def as_parameter(flag: re.Match[str]) -> str:
    return f"the parameter {flag[1].replace('-', '_')}"


def check_cells(examples: Iterable[Example], limits: Limits) -> None:
    """Refuse a text that would keep the model busy for minutes."""
    for example in examples:
        for name, value in (getattr(example, "row", None) or {}).items():
            if isinstance(value, str) and len(value) > limits.characters:
                raise RequestError(
                    413,
                    f"{example.where}: {quote(name)} has {len(value):,} characters, where at most "
                    f"{limits.characters:,} are taken; shorten it.",
                )


def write_csv(task: AnyTask, answered: Iterable[tuple[Example, Answer]]) -> bytes:
    """Return the table with the columns of the answers after its own, as `electra predict` does."""
    records = []
    for example, answer in answered:
        row = getattr(example, "row", None)
        records.append(add_input_columns(task.record(example, answer), row))
    stream = io.StringIO(newline="")
    write_delimited(records, stream, delimiter=",")
    return stream.getvalue().encode()
