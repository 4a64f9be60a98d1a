"""Look at the beginning of every file of a corpus, so that what stops a run is found before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from contextvars import ContextVar

from electra.config import UserError
from electra.data.corpus import ReadCounter, ignore_progress, no_text_error, read_source
from electra.data.lines import decode_line, open_source
from electra.data.sources import DocumentUnit, Source

CHECKED_BYTES = 2 * 1024 * 1024  # of each file: in most languages a wrong encoding shows early
# Of many files less, so that a check takes seconds: of all together, but of each at least this.
ALL_CHECKED_BYTES, MIN_CHECKED_BYTES = 256 * 1024 * 1024, 32 * 1024
SHOWN = 3  # names of files in a message

was_checked: ContextVar[list[bool] | None] = ContextVar("was_checked", default=None)


@contextmanager
def checked_once() -> Iterator[None]:
    """Inside of this, `check_at_start` looks at a corpus once, though several stages read it."""
    token = was_checked.set([])
    try:
        yield
    finally:
        was_checked.reset(token)


def check_at_start(
    sources: Sequence[Source],
    *,
    text_field: str,
    document: DocumentUnit = "blank-line",
    may_be_empty: bool = False,
) -> None:
    """Raise UserError before the long reading of a corpus that `check_beginnings` refuses."""
    checked = was_checked.get()
    if checked:
        return
    check_beginnings(sources, text_field=text_field, document=document, may_be_empty=may_be_empty)
    if checked is not None:
        checked.append(True)


def check_beginnings(
    sources: Sequence[Source],
    *,
    text_field: str,
    document: DocumentUnit,
    may_be_empty: bool = False,
) -> None:
    """Raise UserError where the beginning of a file cannot be read, or where no file holds text.

    Data sets on the hub are left out.
    """
    limit = min(CHECKED_BYTES, max(MIN_CHECKED_BYTES, ALL_CHECKED_BYTES // len(sources)))
    holds_text, errors = False, {}
    for source in sources:
        try:
            check_encoding(source, limit)
            holds_text |= has_document(source, limit, text_field=text_field, document=document)
        except UserError as error:
            errors[source.display_name] = str(error)
    if errors:
        raise UserError(describe_errors(errors, files=len(sources)))
    if not holds_text and not may_be_empty:
        raise no_text_error(sources)


def check_encoding(source: Source, limit: int) -> None:
    """Raise UserError where the first `limit` bytes of a file of text are not UTF-8."""
    if source.kind in ("hub", "parquet"):
        return
    with open_source(source) as (stream, _):
        beginning = stream.read(limit)
    if len(beginning) == limit:
        beginning = without_last_character(beginning)
    try:
        decode_line(beginning, source, 1)  # a tenth of the time of line by line
    except UserError:
        for number, line in enumerate(beginning.split(b"\n"), start=1):
            decode_line(line, source, number)


def without_last_character(text: bytes) -> bytes:
    """Return UTF-8 without its last character, which may be cut."""
    end = len(text) - 1
    while end > len(text) - 4 and text[end] & 0xC0 == 0x80:
        end -= 1
    return text[:end]


def has_document(source: Source, limit: int, *, text_field: str, document: DocumentUnit) -> bool:
    """Return whether a file holds a document; read it until there is one, and rows until `limit`
    bytes of the file, or characters of text, are read.
    """
    if source.kind == "hub":
        return True
    counter = PositionCounter()
    documents = read_source(source, text_field=text_field, document=document, counter=counter)
    characters, holds_text = 0, False
    with closing(documents):
        for content in documents:
            holds_text = True
            characters += sum(map(len, content.lines))
            # Any lines of UTF-8 are text, whereas every row may be broken in its own way.
            if source.kind == "text" or max(characters, counter.position) > limit:
                break
    return holds_text


class PositionCounter(ReadCounter):
    """Keeps the position in the file that is read."""

    def __init__(self) -> None:
        super().__init__(total=0, progress=ignore_progress)
        self.position = 0

    def report_position(self, position: int) -> None:
        self.position = position


def describe_errors(errors: dict[str, str], *, files: int) -> str:
    """Return one message about the files that cannot be read: what is wrong with the first."""
    first = next(iter(errors.values()))
    if len(errors) == 1:
        return first
    names = ", ".join(list(errors)[:SHOWN])
    if len(errors) > SHOWN:
        names += ", …"
    return f"{len(errors)} of {files} files cannot be read: {names}. The first: {first}"
