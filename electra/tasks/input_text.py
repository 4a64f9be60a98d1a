"""Inputs of a prediction that are no files: standard input, and a sentence on the command line."""

from __future__ import annotations

import codecs
import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from electra.config import UserError
from electra.data.lines import check_encodable
from electra.data.sources import compression_suffix
from electra.data.tables import FORMATS, Table, find_table, is_hub_name
from electra.escape import reword
from electra.tasks.input_rows import input_columns
from electra.tasks.tag import Tag
from electra.tasks.task import AnyTask

STANDARD_INPUT = "-"
BOM = codecs.BOM_UTF8  # at the start of what PowerShell and Excel write
JSON_LIST = re.compile(rb"(%b)?\s*\[\s*\{" % BOM)
JSON_LINE = re.compile(rb"(%b)?\s*\{" % BOM)
HEAD_BYTES = 4_096


def is_file(source: str) -> bool:
    """Return whether an input names a file (or a data set), even one that does not exist.

    A sentence has a blank in it and does not end as a table does.
    """
    if source == STANDARD_INPUT:
        return False
    try:
        if Path(source).expanduser().exists():
            return True
    except (OSError, RuntimeError):  # too long for a path, or "~someone is here"
        return False
    return ends_as_table(source) or len(source.split()) < 2


def ends_as_table(source: str) -> bool:
    path = Path(source)
    return path.suffix.lower() in (".txt", *FORMATS) or bool(compression_suffix(path))


def find_input(source: str) -> Table:
    """Return the table of an input that is a file; raise UserError if it does not exist."""
    is_there = Path(source).expanduser().exists()
    if not (is_there or ends_as_table(source) or is_hub_name(source)):
        raise UserError(
            f"{source}: no such file; a text of one word is read from standard input: echo "
            f"{shlex.quote(source)} | electra … -"
        )
    return find_table(source)


def check_input(source: str) -> None:
    """Raise UserError for an input that is empty, and would be the folder that one is in."""
    if not source.strip():
        raise UserError("INPUT is empty; name a file, - for standard input, or a text in quotes")


@contextmanager
def as_file(source: str, task: AnyTask) -> Iterator[str]:
    """Yield the path of the input; what is no file is written to a temporary one."""
    if is_file(source):
        yield source
        return
    if source == STANDARD_INPUT:
        with standard_input_file() as path:
            yield path
        return
    with TemporaryDirectory() as folder:
        yield str(write_sentence(source, task, Path(folder)))


@contextmanager
def standard_input_file() -> Iterator[str]:
    """Yield the path of a file with standard input, which is what messages call it."""
    with TemporaryDirectory() as folder:
        path = str(copy_standard_input(Path(folder)))
        outside = reword.get()
        token = reword.set(lambda text: outside(text.replace(path, "standard input")))
        try:
            yield path
        except UserError as error:
            if path not in str(error):
                raise
            raise UserError(reword.get()(str(error))) from None
        finally:
            reword.reset(token)


def copy_standard_input(folder: Path) -> Path:
    """Write standard input to a file: JSON if it begins as such, otherwise text."""
    stream = sys.stdin.buffer
    head = stream.read(HEAD_BYTES)
    suffix = ".txt"
    if JSON_LIST.match(head):
        suffix = ".json"
    elif JSON_LINE.match(head):
        suffix = ".jsonl"
    path = folder / f"standard-input{suffix}"
    with path.open("wb") as file:
        file.write(head)
        shutil.copyfileobj(stream, file)
    return path


def write_sentence(sentence: str, task: AnyTask, folder: Path) -> Path:
    """Write one text to a file that the task reads."""
    check_encodable(sentence, "the sentence")
    columns = input_columns(task)
    if isinstance(task, Tag):
        path = folder / "sentence.txt"
        content = " ".join(sentence.split())
    elif len(columns) == 1:
        path = folder / "sentence.jsonl"
        content = json.dumps({columns[0]: sentence})
    elif columns:
        raise UserError(
            f"{task.name} reads more than one text for each answer; write them to a file with the "
            f"columns {' and '.join(columns)}, and name it"
        )
    else:
        raise UserError(
            f"{task.name} names no column in `inputs` for a sentence; write its columns to a file, "
            "and name it"
        )
    path.write_text(content + "\n", encoding="utf8")
    return path
