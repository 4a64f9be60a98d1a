"""Look at the beginning of every file of a corpus, so that what stops a run is found before it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from electra.config import UserError
from electra.data.corpus import ReadCounter, ignore_progress, no_text_error, read_source
from electra.data.lines import decode_line, open_source
from electra.data.sources import DocumentUnit, Source

CHECKED_BYTES = 2 * 1024 * 1024  # of each file: in most languages a wrong encoding shows early
SHOWN = 3  # names of files in a message


def check_beginnings(sources: Sequence[Source], *, text_field: str, document: DocumentUnit) -> None:
    """Raise UserError where the beginning of a file cannot be read, or where no file holds text.

    Data sets on the hub are left out.
    """
    holds_text, errors = False, {}
    for source in sources:
        try:
            check_encoding(source)
            holds_text |= has_document(source, text_field=text_field, document=document)
        except UserError as error:
            errors[source.display_name] = str(error)
    if errors:
        raise UserError(describe_errors(errors, files=len(sources)))
    if not holds_text:
        raise no_text_error(sources)


def check_encoding(source: Source) -> None:
    """Raise UserError where the beginning of a file of text is not UTF-8."""
    if source.kind in ("hub", "parquet"):
        return
    with open_source(source) as (stream, _):
        beginning = stream.read(CHECKED_BYTES)
    if len(beginning) == CHECKED_BYTES:
        beginning = without_last_character(beginning)
    for number, line in enumerate(beginning.split(b"\n"), start=1):
        decode_line(line, source, number)


def without_last_character(text: bytes) -> bytes:
    """Return UTF-8 without its last character, which may be cut."""
    end = len(text) - 1
    while end > len(text) - 4 and text[end] & 0xC0 == 0x80:
        end -= 1
    return text[:end]


def has_document(source: Source, *, text_field: str, document: DocumentUnit) -> bool:
    """Return whether a file holds a document; read it until there is one."""
    if source.kind == "hub":
        return True
    counter = ReadCounter(total=0, progress=ignore_progress)
    documents = read_source(source, text_field=text_field, document=document, counter=counter)
    with closing(documents):
        return next(documents, None) is not None


def describe_errors(errors: dict[str, str], *, files: int) -> str:
    """Return one message about the files that cannot be read: what is wrong with the first."""
    first = next(iter(errors.values()))
    if len(errors) == 1:
        return first
    names = ", ".join(list(errors)[:SHOWN])
    if len(errors) > SHOWN:
        names += ", …"
    return f"{len(errors)} of {files} files cannot be read: {names}. The first: {first}"
