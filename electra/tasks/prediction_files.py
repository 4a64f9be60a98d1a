"""Write predictions: JSON lines, a table, or the file of a benchmark's own evaluation."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

from electra import atomic
from electra.config import UserError
from electra.console import print_data
from electra.data.tables import Table, find_table
from electra.tasks.inference import ensemble_task, free_name, stream_answers
from electra.tasks.models import FinetunedModel
from electra.tasks.submissions import server_file, write_glue, write_squad
from electra.tasks.task import AnyTask

OPENING = 1_000  # records that decide the columns of a table
LABEL_SEPARATOR = "|"  # of several labels in one column
DELIMITERS = {".csv": ",", ".tsv": "\t"}
SUFFIXES = (".jsonl", *DELIMITERS)
# json.dumps would build one for every record
JSON_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
# By --form: the kind of task, and what writes its answers.
OFFICIAL: dict[str, tuple[str, Callable[[Path, Any, Any, Any], None]]] = {
    "glue": ("glue", write_glue),
    "squad": ("span", write_squad),
}


def check_output(output: Path | None, *, form: str) -> None:
    """Raise UserError, before any work, for a file that cannot be written."""
    if output is None:
        if form != "records":
            raise UserError(f"--form {form} writes a file: name it with --output")
        return
    if form == "records" and output.suffix not in SUFFIXES:
        raise UserError(f"--output {output}: predictions are written as {', '.join(SUFFIXES)}")
    if form == "glue" and output.is_dir():
        output = output / "AX.tsv"  # any file in it
    atomic.check_output_file(output)


def write_official(
    models: Sequence[FinetunedModel], source: str, output: Path, *, form: str
) -> int:
    """Write the file of a benchmark's evaluation and return the number of answers.

    For a folder of GLUE's, write a folder of files with the names that its server expects.
    """
    kind, write = OFFICIAL[form]
    task = ensemble_task(models)
    if task.kind != kind:
        raise UserError(
            f"--form {form} needs a model of that benchmark; this one is of {task.name}"
        )
    inputs: Mapping[Path, Sequence[Table]]
    if form == "glue" and Path(source).is_dir():
        inputs = glue_test_sets(task, source, output)
        output.mkdir(exist_ok=True)
    else:
        inputs = {output: [find_table(source)]}
    count = 0
    for path, tables in inputs.items():
        answered = list(stream_answers(models, task.read(tables, labelled=False)))
        examples = [example for example, _ in answered]
        write(path, task, examples, [answer for _, answer in answered])
        count += len(answered)
    return count


def glue_test_sets(task: AnyTask, source: str, output: Path) -> dict[Path, Sequence[Table]]:
    """Return the test data of a GLUE task by the files that its answers go to."""
    test = task.locate(source).test
    if not test:
        raise UserError(f"{source}: no test data for {task.name} there")
    return {output / server_file(task.name, part): tables for part, tables in test.items()}


def write_records(records: Iterable[dict[str, Any]], output: Path | None) -> int:
    """Write JSON lines, or a table whose nested values are JSON; return the number of records.

    A file gets its name only when it is complete. Without one, standard output is written to.
    """
    if output is None and sys.stdout.isatty():
        return print_json_lines(records)
    with text_stream(output) as stream:
        if output is None or output.suffix not in DELIMITERS:
            return write_json_lines(records, stream)
        return write_delimited(records, stream, delimiter=DELIMITERS[output.suffix])


@contextmanager
def text_stream(output: Path | None) -> Iterator[IO[str]]:
    if output is None:
        with detached_text(sys.stdout.buffer) as stream:
            yield stream
    else:
        with atomic.open_write(output) as file, detached_text(file) as stream:
            yield stream


@contextmanager
def detached_text(binary: IO[bytes]) -> Iterator[IO[str]]:
    r"""Write text to a binary stream, without closing that stream in the end.

    Half a surrogate pair, in an id for example, becomes the escape that JSON has for it: \ud83d.
    """
    stream = io.TextIOWrapper(
        binary, encoding="utf8", errors="backslashreplace", newline="", write_through=True
    )
    try:
        yield stream
    finally:
        stream.detach()


def write_json_lines(records: Iterable[dict[str, Any]], stream: IO[str]) -> int:
    count = 0
    for record in records:
        stream.write(to_json(record) + "\n")
        count += 1
    return count


def print_json_lines(records: Iterable[dict[str, Any]]) -> int:
    """Print JSON lines on a terminal, which control characters in them must not reach."""
    count = 0
    for record in records:
        print_data(to_json(record))
        count += 1
    return count


def write_delimited(records: Iterable[dict[str, Any]], stream: IO[str], *, delimiter: str) -> int:
    """Write a table with a column for each field of the first records."""
    flat = map(flatten_record, records)
    # Some rows may lack an id or a gold label.
    opening = list(islice(flat, OPENING))
    columns: dict[str, None] = {}
    for record in opening:
        columns |= dict.fromkeys(record)
    count = 0
    writer = csv.DictWriter(stream, columns, delimiter=delimiter, extrasaction="ignore")
    if opening:
        writer.writeheader()
    for record in chain(opening, flat):
        writer.writerow(record)
        count += 1
    return count


def flatten_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with a field for each label's or option's probability.

    Other nested values become JSON, also the probabilities of words: sentences differ in length.
    """
    flat: dict[str, Any] = {}
    for key, value in record.items():
        of_words = isinstance(value, list) and "choice" not in record
        if key in ("labels", "gold") and "labels" in record and isinstance(value, list):
            flat[key] = LABEL_SEPARATOR.join(value)
            continue
        if key != "probabilities" or of_words:
            flat[key] = to_cell(value)
            continue
        items: Iterable[tuple[object, float]] = enumerate(value)
        if isinstance(value, Mapping):
            items = value.items()
        probabilities = {f"probability_{label}": probability for label, probability in items}
        for name in [name for name in flat if name in probabilities]:
            flat[free_name(name, record)] = flat.pop(name)
        flat |= probabilities
    return flat


def to_cell(value: Any) -> Any:
    if isinstance(value, (list, dict)):
        return to_json(value)
    return value


def to_json(value: Any) -> str:
    try:
        return JSON_ENCODER.encode(value)
    except ValueError:  # NaN or infinity
        return JSON_ENCODER.encode(replace_not_finite(value))


def replace_not_finite(value: Any) -> Any:
    """Return a record with None for every number that JSON has no word for."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case list():
            return [replace_not_finite(item) for item in value]
        case dict():
            return {key: replace_not_finite(item) for key, item in value.items()}
    return value
