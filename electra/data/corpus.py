"""Read a corpus: text in any of the readable formats becomes documents, in bounded memory. Text
that is left out is reported.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import itertools
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from electra.config import UserError
from electra.data import parquet
from electra.data.sources import Report, Source, resolve, warn
from electra.files import parse_json

# Bounds on what is held in memory. A longer document or line is split into several.
MAX_DOCUMENT_CHARACTERS = 1_000_000
MAX_LINE_CHARACTERS = 100_000
MAX_JSON_LINE_BYTES = 64 * 1024 * 1024

Progress = Callable[[float], None]
Position = Callable[[], int]  # bytes of the file on disk that have been read


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
    may_be_empty: bool = False,
) -> Iterator[tuple[int, Document]]:
    """Yield every document with the index of its source in the corpus."""
    counter = ReadCounter(total=sum(source.size for source in sources.values()), progress=progress)
    for index, source in sources.items():
        before = counter.documents + counter.blank
        for document in read_source(source, text_field=text_field, counter=counter):
            counter.documents += 1
            yield index, document
        if counter.documents + counter.blank == before:
            report(f"{source.display_name}: holds no text")
        counter.finish(source)
    if counter.blank:
        report(f"{counter.blank} documents hold nothing but white space")
    if not counter.documents and not may_be_empty:
        names = [source.display_name for source in sources.values()]
        if len(names) > 5:
            names[5:] = ["…"]
        raise UserError(f"the corpus holds no text: {', '.join(names)}")


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


def read_source(source: Source, *, text_field: str, counter: ReadCounter) -> Iterator[Document]:
    """Yield the documents of one source."""
    if source.kind == "text":
        with open_source(source) as (stream, position):
            yield from read_text(source, stream, position, counter)
        return
    rows = {"jsonl": read_jsonl, "parquet": read_parquet, "hub": read_hub}[source.kind]
    for where, text in rows(source, text_field, counter):
        if "\0" in text:
            raise UserError(f"{where}: {text_field!r} holds a NUL character; this is not text")
        if not text.isascii():
            check_encodable(text, where)
        stripped = (line.strip() for line in text.split("\n"))
        lines = [line for line in stripped if line]
        counter.blank += not lines
        yield from split_document(lines, where)


def check_encodable(text: str, where: str) -> None:
    """Raise UserError for text that cannot be encoded as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{where}: half a surrogate pair, {text[error.start]!r}; the text was cut or decoded "
            "wrongly when the file was made"
        ) from None


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


@contextlib.contextmanager
def open_source(source: Source) -> Iterator[tuple[IO[bytes], Position]]:
    """Open a file as a stream of its decompressed bytes, with the position in the file on disk."""
    with source.path.open("rb") as raw:
        try:
            yield decompress(raw, source.compression), raw.tell
        except UserError:
            raise
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            form = source.compression or source.path.suffix
            raise UserError(
                f"{source.display_name}: damaged, cut short, or not a {form} file ({error}); "
                "fetch or write it again"
            ) from None


def decompress(raw: IO[bytes], compression: str) -> IO[bytes]:
    """Return a stream of the decompressed bytes."""
    if compression == ".zst":
        import pyarrow

        return io.BufferedReader(
            pyarrow.CompressedInputStream(pyarrow.PythonFile(raw, "r"), "zstd"), 1 << 20
        )
    openers: dict[str, Callable[[IO[bytes]], Any]] = {
        ".gz": gzip.open,
        ".xz": lzma.open,
        ".bz2": bz2.open,
    }
    if compression in openers:
        return io.BufferedReader(openers[compression](raw), 1 << 20)
    return raw


def read_text(
    source: Source, stream: IO[bytes], position: Position, counter: ReadCounter
) -> Iterator[Document]:
    """Yield the documents of plain text, which blank lines separate."""
    lines = (
        (number, decode_line(raw, source, number)) for number, raw in read_numbered_lines(stream)
    )
    for is_text, group in itertools.groupby(lines, key=lambda line: bool(line[1])):
        if is_text:
            number, first = next(group)
            document_lines = itertools.chain([first], (line for _, line in group))
            for document in split_document(document_lines, f"{source.display_name}:{number}"):
                counter.report_position(position())
                yield document


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


def decode_line(raw: bytes, source: Source, number: int) -> str:
    """Return a line of a file as text, without the white space around it."""
    if b"\0" in raw:
        raise UserError(
            f"{source.display_name}:{number}: a NUL byte; this is not UTF-8 text. If the file is "
            "UTF-16, convert it: iconv -f UTF-16 -t UTF-8; if it is binary, leave it out"
        )
    try:
        return raw.decode(line_encoding(number)).strip()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{source.display_name}:{number}: byte 0x{raw[error.start]:02x} at column "
            f"{error.start + 1} is not UTF-8; convert the file, from Latin-1 for example: "
            "iconv -f LATIN1 -t UTF-8"
        ) from None


def line_encoding(number: int) -> str:
    """Return the codec of a line: the first line may start with a byte order mark."""
    if number == 1:
        return "utf-8-sig"
    return "utf-8"


def read_jsonl(source: Source, text_field: str, counter: ReadCounter) -> Iterator[tuple[str, str]]:
    """Yield the text of every line of JSON, after its place ("file:line")."""
    with open_source(source) as (stream, position):
        number = 0
        while raw := stream.readline(MAX_JSON_LINE_BYTES + 1):
            number += 1
            where = f"{source.display_name}:{number}"
            if len(raw) > MAX_JSON_LINE_BYTES:
                raise UserError(
                    f"{where}: longer than {MAX_JSON_LINE_BYTES >> 20} MB; write one document per "
                    "line"
                )
            counter.report_position(position())
            if line := decode_line(raw, source, number):
                yield where, require_text_field(parse_json_line(line, where), text_field, where)


def parse_json_line(line: str, where: str) -> dict[str, Any]:
    """Return the JSON object on a line."""
    try:
        row = parse_json(line)
    except ValueError as error:
        raise UserError(
            f"{where}: not a JSON object on one line ({error}); a list of objects becomes lines "
            "with jq -c '.[]'"
        ) from None
    if not isinstance(row, dict):
        raise UserError(
            f"{where}: expected one JSON object per line, found a {type(row).__name__}; a list of "
            "objects becomes lines with jq -c '.[]'"
        )
    return row


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


def read_parquet(
    source: Source, text_field: str, counter: ReadCounter
) -> Iterator[tuple[str, str]]:
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
                text = parquet.to_python(value, where, text_field)
                yield where, require_text_field({text_field: text}, text_field, where)


def read_hub(source: Source, text_field: str, counter: ReadCounter) -> Iterator[tuple[str, str]]:
    """Yield the text of the training split, streamed: nothing of it is stored on this disk."""
    import datasets

    try:
        rows = datasets.load_dataset(
            source.name, source.config, split="train", revision=source.revision, streaming=True
        )
        for number, row in enumerate(rows, start=1):
            where = f"{source.display_name}, row {number}"
            yield where, require_text_field(row, text_field, where)
    except UserError:
        raise
    except Exception as error:  # every builder and transport raises types of its own
        reason = str(error).strip().partition("\n")[0]
        raise UserError(
            f"{source.display_name}: cannot be read from the hub ({reason}); fetch its .parquet "
            "files, put them into a folder on this machine and give that folder"
        ) from None
