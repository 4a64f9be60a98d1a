"""Text in whatever files it comes in becomes documents, in bounded memory; nothing is dropped
without a word.
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

# Bounds on what is held at once. A longer document goes on as a further one, a longer line as a
# further line.
MAX_DOCUMENT_CHARACTERS = 1_000_000
MAX_LINE_CHARACTERS = 100_000
MAX_JSON_LINE_BYTES = 64 * 1024 * 1024

Progress = Callable[[float], None]
Position = Callable[[], int]  # bytes of the file on disk that have been read


@dataclass(frozen=True, slots=True)
class Document:
    """Lines that belong together, none of them blank, and where they came from ("file:line" or
    "file, row n").
    """

    lines: list[str]
    source: str


def ignore_progress(fraction: float) -> None:
    """Progress that nobody watches."""


def read_corpus(
    inputs: Sequence[str | Path],
    *,
    text_field: str = "text",
    progress: Progress = ignore_progress,
    report: Report = warn,
) -> Iterator[Document]:
    """Every document of the corpus, in the order of its files; `progress` hears the share of bytes
    read so far.
    """
    return read_sources(
        resolve(inputs, report=report), text_field=text_field, progress=progress, report=report
    )


def read_sources(
    sources: Sequence[Source],
    *,
    text_field: str = "text",
    progress: Progress = ignore_progress,
    report: Report = warn,
) -> Iterator[Document]:
    for _, document in read_indexed_sources(
        dict(enumerate(sources)), text_field=text_field, progress=progress, report=report
    ):
        yield document


def read_indexed_sources(
    sources: Mapping[int, Source],
    *,
    text_field: str,
    progress: Progress,
    report: Report,
    may_be_empty: bool = False,
) -> Iterator[tuple[int, Document]]:
    """Every document, after the place of its file in the corpus."""
    counter = ReadCounter(total=sum(source.size for source in sources.values()), progress=progress)
    for place, source in sources.items():
        before = counter.documents + counter.blank
        for document in read_source(source, text_field=text_field, counter=counter):
            counter.documents += 1
            yield place, document
        if counter.documents + counter.blank == before:
            report(f"{source.display_name}: holds no text")
        counter.finish(source)
    if counter.blank:
        report(f"{counter.blank} documents hold nothing but white space")
    if not counter.documents and not may_be_empty:
        raise UserError(
            f"the corpus holds no text: {', '.join(s.display_name for s in list(sources.values())[:5])}"
            f"{' …' if len(sources) > 5 else ''}"
        )


class ReadCounter:
    """What has been read so far."""

    def __init__(self, *, total: int, progress: Progress) -> None:
        self.documents = self.blank = 0
        self.total, self.progress = total, progress
        self.finished, self.told = 0, -1.0

    def at(self, position: int) -> None:
        fraction = (self.finished + position) / self.total if self.total else 0.0
        if fraction - self.told >= 0.001:  # a thousand calls at most, however small the documents
            self.told = fraction
            self.progress(min(1.0, fraction))

    def finish(self, source: Source) -> None:
        self.finished += source.size
        self.at(0)


def read_source(source: Source, *, text_field: str, counter: ReadCounter) -> Iterator[Document]:
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
        lines = [line for raw in text.split("\n") if (line := raw.strip())]
        counter.blank += not lines
        yield from split_document(lines, where)


def check_encodable(text: str, where: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{where}: half a surrogate pair, {text[error.start]!r}; the text was cut or decoded "
            "wrongly "
            "when the file was made"
        ) from None


# ---- bounded memory ------------------------------------------------------------------------------


def split_document(lines: Iterable[str], where: str) -> Iterator[Document]:
    """One document, or as many as keep each under the bound."""
    gathered: list[str] = []
    size = 0
    for line in lines:
        for piece in (line,) if len(line) <= MAX_LINE_CHARACTERS else split_line(line):
            if gathered and size + len(piece) > MAX_DOCUMENT_CHARACTERS:
                yield Document(gathered, where)
                gathered, size = [], 0
            gathered.append(piece)
            size += len(piece)
    if gathered:
        yield Document(gathered, where)


def split_line(line: str) -> Iterator[str]:
    """A line in parts no longer than the bound, cut at white space where there is any."""
    start = 0
    while len(line) - start > MAX_LINE_CHARACTERS:
        head, follows = line[start : start + MAX_LINE_CHARACTERS], line[start + MAX_LINE_CHARACTERS]
        words = head.rsplit(maxsplit=1)
        # Without white space, or with it only at the end, there is no better place than the bound
        # itself.
        cut = (
            len(head) - len(words[1])
            if len(words) == 2 and not follows.isspace()
            else MAX_LINE_CHARACTERS
        )
        yield head[:cut].rstrip()
        start += cut
        while start < len(line) and line[start].isspace():
            start += 1
    if start < len(line):
        yield line[start:]


# ---- formats -------------------------------------------------------------------------------------


@contextlib.contextmanager
def open_source(source: Source) -> Iterator[tuple[IO[bytes], Position]]:
    """A file as its uncompressed bytes, and the position in the file on disk."""
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
    """Plain text: a blank line ends a document."""
    lines = (
        (number, decode_line(raw, source, number)) for number, raw in read_numbered_lines(stream)
    )
    for is_text, group in itertools.groupby(lines, key=lambda line: bool(line[1])):
        if is_text:
            number, first = next(group)
            for document in split_document(
                itertools.chain([first], (line for _, line in group)),
                f"{source.display_name}:{number}",
            ):
                counter.at(position())
                yield document


def read_numbered_lines(stream: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their numbers; a line too long to hold comes in parts under the same
    number.
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
    """A line of a file as text, without the white space around it."""
    if b"\0" in raw:
        raise UserError(
            f"{source.display_name}:{number}: a NUL byte; this is not UTF-8 text. If the file is UTF-16, "
            "convert "
            f"it: iconv -f UTF-16 -t UTF-8; if it is binary, leave it out"
        )
    try:
        return raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{source.display_name}:{number}: byte 0x{raw[error.start]:02x} at column {error.start + 1} "
            "is not "
            "UTF-8; convert the file, from Latin-1 for example: iconv -f LATIN1 -t UTF-8"
        ) from None


def read_jsonl(source: Source, text_field: str, counter: ReadCounter) -> Iterator[tuple[str, str]]:
    with open_source(source) as (stream, position):
        number = 0
        while raw := stream.readline(MAX_JSON_LINE_BYTES + 1):
            number += 1
            where = f"{source.display_name}:{number}"
            if len(raw) > MAX_JSON_LINE_BYTES:
                raise UserError(
                    f"{where}: longer than {MAX_JSON_LINE_BYTES >> 20} MB; write one document per line"
                )
            counter.at(position())
            if line := decode_line(raw, source, number):
                yield where, require_text_field(parse_json_line(line, where), text_field, where)


def parse_json_line(line: str, where: str) -> dict[str, Any]:
    try:
        row = parse_json(line)
    except ValueError as error:
        raise UserError(
            f"{where}: not a JSON object on one line ({error}); a list of objects becomes lines "
            "with "
            "jq -c '.[]'"
        ) from None
    if not isinstance(row, dict):
        raise UserError(
            f"{where}: expected one JSON object per line, found a {type(row).__name__}; a list of "
            "objects "
            "becomes lines with jq -c '.[]'"
        )
    return row


def require_text_field(row: dict[str, Any], text_field: str, where: str) -> str:
    text = row.get(text_field)
    if isinstance(text, str):
        return text
    found = (
        f"{text_field!r} is {type(text).__name__}, not text"
        if text_field in row
        else f"no field {text_field!r}"
    )
    raise UserError(
        f"{where}: {found}; fields here are {', '.join(map(str, row)) or 'none'}; name the one "
        "that holds "
        "the text with --text-field, or leave such rows out"
    )


def read_parquet(
    source: Source, text_field: str, counter: ReadCounter
) -> Iterator[tuple[str, str]]:
    with open_source(source) as (stream, position):
        there = parquet.column_names(stream)
        if text_field not in there:
            require_text_field(dict.fromkeys(there), text_field, source.display_name)
        row = 0
        for batch in parquet.read_batches(stream, [text_field]):
            counter.at(position())
            for value in batch.column(0):
                row += 1
                where = f"{source.display_name}, row {row}"
                yield (
                    where,
                    require_text_field({text_field: parquet.to_python(value)}, text_field, where),
                )


def read_hub(source: Source, text_field: str, counter: ReadCounter) -> Iterator[tuple[str, str]]:
    """The training split, streamed: nothing of it is kept on this disk."""
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
    except Exception as error:  # each builder and each transport raises its own kinds
        raise UserError(
            f"{source.display_name}: cannot be read from the hub "
            f"({str(error).strip().partition(chr(10))[0]}); "
            "fetch its .parquet files, put them into a folder on this machine and give that "
            "folder"
        ) from None
