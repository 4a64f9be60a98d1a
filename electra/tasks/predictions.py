"""Predictions on their way out: JSON lines, a table, or the file that a benchmark's own evaluation
takes.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from electra import atomic
from electra.config import UserError
from electra.data.tables import Table, find_table
from electra.tasks.answering import stream as answered
from electra.tasks.answering import task_of
from electra.tasks.models import Tuned
from electra.tasks.span import write_squad
from electra.tasks.submission import server_file, write_glue

SUFFIXES = (".jsonl", ".csv", ".tsv")
OFFICIAL: dict[str, tuple[str, Any]] = {
    "glue": ("glue", write_glue),
    "squad": ("span", write_squad),
}


def check_output(output: Path | None, *, form: str) -> None:
    """Refuse, before any work, a file that cannot be written."""
    if output is None:
        if form != "records":
            raise UserError(f"--form {form} writes a file: name it with --output")
        return
    if form == "records" and output.suffix not in SUFFIXES:
        raise UserError(f"--output {output}: predictions are written as {', '.join(SUFFIXES)}")
    if not output.absolute().parent.is_dir():
        raise UserError(f"--output {output}: no folder {output.parent}; make it first")


def write_official(models: Sequence[Tuned], source: str, output: Path, *, form: str) -> int:
    """The file for one input; or, for a folder of GLUE's, a folder of files that are called as its
    server wants.
    """
    kind, write = OFFICIAL[form]
    task = task_of(models)
    if task.kind != kind:
        raise UserError(
            f"--form {form} needs a model of that benchmark; this one is of {task.name}"
        )
    targets: dict[Path, Sequence[Table]] = {}
    if form == "glue" and Path(source).is_dir():
        targets = {
            output / server_file(task.name, part): tables
            for part, tables in task.locate(source).test.items()
        }
        if not targets:
            raise UserError(f"{source}: no test data for {task.name} there")
        output.mkdir(exist_ok=True)
    count = 0
    for path, tables in (targets or {output: [find_table(source)]}).items():
        found = list(answered(models, task.read(tables, labelled=False)))
        write(path, task, [example for example, _ in found], [answer for _, answer in found])
        count += len(found)
    return count


def write_records(found: Iterator[dict[str, Any]], output: Path | None) -> int:
    """JSON lines, or a table whose nested values are JSON; under its own name only when whole."""
    count, writer = 0, None
    with (
        atomic.open_write(output)
        if output is not None
        else nullcontext(sys.stdout.buffer) as binary
    ):
        stream = io.TextIOWrapper(binary, encoding="utf8", newline="", write_through=True)
        try:
            for count, record in enumerate(found, start=1):  # noqa: B007 (the number of the last is the count)
                if output is None or output.suffix == ".jsonl":
                    stream.write(json.dumps(record, ensure_ascii=False) + "\n")
                    continue
                if writer is None:
                    # Some rows may lack an id or a label to repeat, and a table has the columns
                    # that it began with.
                    writer = csv.DictWriter(
                        stream,
                        record,
                        delimiter="\t" if output.suffix == ".tsv" else ",",
                        extrasaction="ignore",
                    )
                    writer.writeheader()
                writer.writerow(
                    {
                        key: json.dumps(value, ensure_ascii=False)
                        if isinstance(value, (list, dict))
                        else value
                        for key, value in record.items()
                    }
                )
        finally:
            stream.detach()  # or it would close standard output with itself
    return count
