"""Read a corpus: text in any of the readable formats becomes documents, in bounded memory. Text
that is left out is reported.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from electra.config import UserError
from electra.data import parquet
from electra.data.delimited import find_column, read_delimited
from electra.data.json_rows import LocatedRow, read_json_lines, read_json_rows
from electra.data.lines import check_encodable, decode_line, open_source
from electra.data.sources import DocumentUnit, Report, Source, open_on_hub, resolve, warn

# Bounds on what is held in memory. A longer document or line is split into several.
MAX_DOCUMENT_CHARACTERS = 1_000_000
MAX_LINE_CHARACTERS = 100_000

Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Document:
    """The lines of one text, none of them blank, and its source ("file:line" or "file, row n")."""

    lines: list[str]
    source: str


def ignore_progress(fraction: float) -> None:
    """Do nothing, the default of every `progress` parameter."""


def read_corpus(
    corpus: Sequence[str | Path],
    *,
    text_field: str = "text",
    progress: Progress = ignore_progress,
    report: Report = warn,
) -> Iterator[Document]:
    """Return every document of a corpus, in the order of its files. `progress` is called with the
    share of bytes read so far.
    """
    sources = resolve(corpus, report=report)
    return read_sources(sources, text_field=text_field, progress=progress, report=report)


def read_sources(
    sources: Sequence[Source],
    *,
    text_field: str = "text",
    progress: Progress = ignore_progress,
    report: Report = warn,
) -> Iterator[Document]:
    """Yield every document of these sources."""
    indexed = dict(enumerate(sources))
    documents = read_indexed_sources(
        indexed, text_field=text_field, progress=progress, report=report
    )
    for _, document in documents:
        yield document


def read_indexed_sources(
    sources: Mapping[int, Source],
    *,
    text_field: str,
    progress: Progress,
    report: Report,
    document: DocumentUnit = "blank-line",
    may_be_empty: bool = False,
) -> Iterator[tuple[int, Document]]:
    """Yield every document with the index of its source in the corpus."""
    counter = ReadCounter(total=sum(source.size for source in sources.values()), progress=progress)
    for index, source in sources.items():
        before = counter.documents + counter.blank
        documents = read_source(source, text_field=text_field, document=document, counter=counter)
        for content in documents:
            counter.documents += 1
            yield index, content
        if counter.documents + counter.blank == before:
            report(f"{source.display_name}: holds no text")
        counter.finish(source)
    if counter.blank:
        report(f"{counter.blank} documents hold nothing but white space")
    if not counter.documents and not may_be_empty:
        raise no_text_error(sources.values())


def no_text_error(sources: Iterable[Source]) -> UserError:
    """Return the error about a corpus in which no file holds text."""
    names = [source.display_name for source in sources]
    if len(names) > 5:
        names[5:] = ["…"]
    return UserError(f"the corpus holds no text: {', '.join(names)}")


class ReadCounter:
    """Counts documents and reports the share of bytes read."""

    def __init__(self, *, total: int, progress: Progress) -> None:
        self.documents = self.blank = 0
        self.total_bytes, self.finished_bytes = total, 0
        self.progress, self.reported = progress, -1.0

    def report_position(self, position: int) -> None:
        """Report the progress at this position in the current file."""
        fraction = (self.finished_bytes + position) / max(1, self.total_bytes)
        if fraction - self.reported >= 0.001:  # at most a thousand calls for any corpus
            self.reported = fraction
            self.progress(min(1.0, fraction))

    def finish(self, source: Source) -> None:
        """Count a source as read."""
        self.finished_bytes += source.size
        self.report_position(0)


def read_source(
    source: Source, *, text_field: str, document: DocumentUnit, counter: ReadCounter
) -> Generator[Document]:
    """Yield the documents of one source."""
    if source.kind == "text":
        with open_source(source) as (stream, position):
            for content in read_text(source, stream, document):
                counter.report_position(position())
                yield content
        return
    for where, row in read_rows(source, text_field, counter):
        text = require_text_field(row, text_field, where)
        if "\0" in text:
            raise UserError(f"{where}: {text_field!r} holds a NUL character; this is not text")
        if not text.isascii():
            check_encodable(text, where)
        stripped = (line.strip() for line in text.split("\n"))
        lines = [line for line in stripped if line]
        counter.blank += not lines
        yield from split_document(lines, where)


def read_rows(source: Source, text_field: str, counter: ReadCounter) -> Iterator[LocatedRow]:
    """Return the rows of one source with their places."""
    if source.kind == "jsonl":
        return read_json_lines(source, counter.report_position)
    if source.kind == "json":
        return read_json_rows(source, counter.report_position)
    if source.kind == "parquet":
        return read_parquet(source, text_field, counter)
    if source.kind == "hub":
        return read_hub(source)
    return read_columns(source, text_field, counter)


# ---- bounded memory ------------------------------------------------------------------------------


def split_document(lines: Iterable[str], where: str) -> Iterator[Document]:
    """Yield one document, or several of at most `MAX_DOCUMENT_CHARACTERS`."""
    collected: list[str] = []
    size = 0
    for line in lines:
        for piece in split_line(line):
            if collected and size + len(piece) > MAX_DOCUMENT_CHARACTERS:
                yield Document(collected, where)
                collected, size = [], 0
            collected.append(piece)
            size += len(piece)
    if collected:
        yield Document(collected, where)


def split_line(line: str) -> Iterator[str]:
    """Yield a line in pieces of at most `MAX_LINE_CHARACTERS`, cut at white space if it has any."""
    start = 0
    while len(line) - start > MAX_LINE_CHARACTERS:
        head, follows = line[start : start + MAX_LINE_CHARACTERS], line[start + MAX_LINE_CHARACTERS]
        words = head.rsplit(maxsplit=1)
        cut = MAX_LINE_CHARACTERS
        if len(words) == 2 and not follows.isspace():
            cut = len(head) - len(words[1])
        yield head[:cut].rstrip()
        start += cut
        while start < len(line) and line[start].isspace():
            start += 1
    if start < len(line):
        yield line[start:]


# ---- formats -------------------------------------------------------------------------------------


def read_text(source: Source, stream: IO[bytes], document: DocumentUnit) -> Iterator[Document]:
    """Yield the documents of plain text, which is one or which blank lines separate."""
    lines = (
        (number, decode_line(raw, source, number).strip())
        for number, raw in read_numbered_lines(stream)
    )
    if document == "file":
        lines = (line for line in lines if line[1])
    for is_text, group in itertools.groupby(lines, key=lambda line: bool(line[1])):
        if is_text:
            number, first = next(group)
            document_lines = itertools.chain([first], (line for _, line in group))
            yield from split_document(document_lines, f"{source.display_name}:{number}")


def read_numbered_lines(stream: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file with their numbers; a line too long to hold comes in pieces with
    the same number.
    """
    number, rest = 1, b""
    while raw := stream.readline(MAX_LINE_CHARACTERS):
        raw = rest + raw
        if raw.endswith(b"\n"):
            yield number, raw
            number, rest = number + 1, b""
        elif len(raw) < MAX_LINE_CHARACTERS:
            rest = raw
        else:
            cut = raw.rstrip().rfind(b" ")
            if cut <= 0:
                cut = len(raw) - 1
                while cut > len(raw) - 4 and raw[cut] & 0xC0 == 0x80:  # not inside a character
                    cut -= 1
            yield number, raw[:cut]
            rest = raw[cut:]
    if rest:
        yield number, rest


def require_text_field(row: dict[str, Any], text_field: str, where: str) -> str:
    """Return the text of a row; raise UserError with the fields of the row if it has none."""
    text = row.get(text_field)
    if isinstance(text, str):
        return text
    problem = f"no field {text_field!r}"
    if text_field in row:
        problem = f"{text_field!r} is {type(text).__name__}, not text"
    raise UserError(
        f"{where}: {problem}; fields here are {', '.join(map(str, row)) or 'none'}; name the one "
        "that holds the text with --text-field, or leave such rows out"
    )


def read_parquet(source: Source, text_field: str, counter: ReadCounter) -> Iterator[LocatedRow]:
    """Yield the rows of a Parquet file, with the one column that holds the text."""
    with open_source(source) as (stream, position):
        columns = parquet.column_names(stream)
        if text_field not in columns:
            require_text_field(dict.fromkeys(columns), text_field, source.display_name)
        row = 0
        for batch in parquet.read_batches(stream, source.display_name, [text_field]):
            counter.report_position(position())
            for value in batch.column(0):
                row += 1
                where = f"{source.display_name}, row {row}"
                yield where, {text_field: parquet.to_python(value, where, text_field)}


def read_columns(source: Source, text_field: str, counter: ReadCounter) -> Iterator[LocatedRow]:
    """Yield the rows of CSV or TSV, where a number may name the column that holds the text."""
    rows = read_delimited(
        source,
        format=source.kind,
        columns=[text_field],
        report_position=counter.report_position,
    )
    for where, row in rows:
        column = find_column(row, text_field)
        if column in row:
            row[text_field] = row[column]
        yield where, row


def read_hub(source: Source) -> Iterator[LocatedRow]:
    """Yield the rows of the training split, streamed."""
    name = source.display_name
    remedy = "fetch its .parquet files, put them into a folder on this machine and give that folder"
    with open_on_hub(source, "train", name=name, remedy=remedy) as dataset:
        for number, row in enumerate(dataset, start=1):
            yield f"{name}, row {number}", row
