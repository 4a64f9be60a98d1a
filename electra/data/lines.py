"""Read the lines of a file: decompressed, decoded and bounded, with their places."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

from electra.config import UserError
from electra.data.sources import Source

MAX_LINE_BYTES = 64 * 1024 * 1024  # of a line that is held in memory

# By the first bytes of a file: what it is, and the remedy.
BINARY = {
    b"\x1f\x8b": "compressed by gzip; give it a name that ends with .gz",
    b"\xfd7zXZ\0": "compressed by xz; give it a name that ends with .xz",
    b"\x28\xb5\x2f\xfd": "compressed by zstd; give it a name that ends with .zst",
    b"PK\x03\x04": "a .zip or .xlsx file; unpack it, or save the sheet as .csv",
}
# A wrong encoding rarely fails: it gives other letters.
CONVERT = (
    "find out its encoding (often cp1252 for western European languages, cp1254 for Turkish, "
    "cp1251 for Cyrillic, UTF-16 for a file that begins with the bytes ff fe or fe ff) and convert "
    "it: iconv -f ENCODING -t UTF-8"
)
PADDING = 64 * 1024  # zeros at the end of a compressed file; tapes and blocks pad with fewer

Position = Callable[[], int]  # bytes of the file on disk that have been read


def read_lines(
    source: Source, report_position: Callable[[int], None] = lambda position: None
) -> Iterator[tuple[str, str]]:
    """Yield each line with its place ("file:line"), without the line ending."""
    with open_source(source) as (stream, position):
        number = 0
        while raw := stream.readline(MAX_LINE_BYTES + 1):
            number += 1
            where = f"{source.display_name}:{number}"
            if len(raw) > MAX_LINE_BYTES:
                raise UserError(
                    f"{where}: a line longer than {MAX_LINE_BYTES >> 20} MB; write one document or "
                    "row per line"
                )
            report_position(position())
            yield where, decode_line(raw, source, number).rstrip("\r\n")


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
    if compression:
        check_end(raw)
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


def check_end(raw: IO[bytes]) -> None:
    """Raise OSError where a file ends with many zeros, which gzip would skip one by one."""
    if raw.seek(0, io.SEEK_END) >= PADDING:
        raw.seek(-PADDING, io.SEEK_END)
        if not any(raw.read(PADDING)):
            raise OSError(f"its last {PADDING:,} bytes are zeros, as after an unfinished download")
    raw.seek(0)


def refuse_binary(beginning: bytes, source: Source) -> None:
    """Raise UserError for a compressed file, or a spreadsheet, under the name of another file."""
    for magic, remedy in BINARY.items():
        if beginning.startswith(magic):
            raise UserError(f"{source.display_name}: not text but {remedy}")


def decode_line(raw: bytes, source: Source, number: int) -> str:
    """Return a line of a file as text."""
    if number == 1:
        refuse_binary(raw, source)
    if b"\0" in raw:
        raise UserError(
            f"{source.display_name}:{number}: a NUL byte; this is not UTF-8 text. If the file is "
            "UTF-16, convert it: iconv -f UTF-16 -t UTF-8; if it is binary, leave it out"
        )
    raw = raw.removeprefix(codecs.BOM_UTF8)  # of any line: files may have been joined
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{source.display_name}:{number}: byte 0x{raw[error.start]:02x} at column "
            f"{error.start + 1} is not UTF-8; {CONVERT}"
        ) from None


def check_encodable(text: str, where: str) -> None:
    """Raise UserError for text that cannot be encoded as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        character = text[error.start]
        found = f"half a surrogate pair, {character!r}"
        if "\udc80" <= character <= "\udcff":  # how Python keeps a byte that it cannot decode
            found = f"byte 0x{ord(character) - 0xDC00:02x} is not UTF-8"
        raise UserError(
            f"{where}: {found}; the text was cut, or decoded wrongly: give it as UTF-8"
        ) from None
