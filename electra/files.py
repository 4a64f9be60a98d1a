"""Read files that others wrote: bounded in size, nesting and numbers, refused with their path."""

from __future__ import annotations

import json
import re
import stat
import tomllib
from pathlib import Path, PurePosixPath
from typing import Any

from electra.config import Layer, UserError

# Bounds on files that are read into memory at once. Real files stay far below them.
MAX_BYTES = 256 * 1024 * 1024
MAX_DEPTH = 100
MAX_INTEGER_BITS = 4096
MAX_TOML_CHARACTERS = 1_000_000
MAX_TOML_DOTS = 1000  # in a line
# At the beginning of a line: the head of a section, or a key.
TOML_KEY = re.compile(r"""\s*(\[+[^\[\]]+\]+|(?:[\w.'-]|"[^"]*")+(?=\s*=))""")


def read_bounded_bytes(path: Path) -> bytes:
    """Return the content of a plain file; raise OSError or ValueError where it cannot be read.

    A pipe or a device is refused, since it might never end.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError("a folder, a pipe or a device, not a plain file")
    if status.st_size > MAX_BYTES:
        raise ValueError(f"{status.st_size:,} bytes long, where at most {MAX_BYTES:,} are read")
    return path.read_bytes()


def read_bounded_text(path: Path) -> str:
    """Return the text of a plain UTF-8 file without its byte order mark, which editors on Windows
    write; raise as `read_bounded_bytes` does.
    """
    return read_bounded_bytes(path).decode("utf-8-sig")


def parse_json(text: str) -> Any:
    """Return the value of a JSON text; raise ValueError where it is not JSON or out of bounds."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"nested more than {MAX_DEPTH} deep") from None
    if text.count("[") + text.count("{") > MAX_DEPTH:
        check_bounds(value)
    return value


def check_surrogates(value: Any) -> None:
    """Raise ValueError where a string holds half a surrogate pair: nobody can write it again."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("holds half of a surrogate pair") from None


def read_json_object(path: Path, *, remedy: str = "copy it again, or remove it") -> dict[str, Any]:
    """Return the JSON object that a file holds; raise UserError with path and remedy otherwise."""
    try:
        text = read_bounded_text(path)
        value = parse_json(text)
        if "\\ud" in text.lower():
            check_surrogates(value)
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{path.parent}: no {path.name} there; {remedy}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as JSON: {error}; {remedy}") from None
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise UserError(f"{path}: must hold a JSON object, found {kind}; {remedy}")
    return value


def read_json_object_or_empty(path: Path) -> dict[str, Any]:
    """Return the JSON object that a file holds, or an empty one where that cannot be read.

    A run that was killed may not have written the file yet, or not all of it.
    """
    try:
        return read_json_object(path)
    except UserError:
        return {}


def check_inside(name: object, *, source: Path, key: str) -> str:
    """Return the name of a file or folder beside the file that states it; refuse any other path."""
    if isinstance(name, str) and "\0" not in name:
        path = PurePosixPath(name)
        if path.parts and not path.is_absolute() and ".." not in path.parts:
            return name
    raise UserError(
        f"{source}: {key}={name!r}: must be a path inside of {source.parent}, without '..'; copy "
        "the folder again from where you trust it"
    )


def read_toml(path: Path) -> Layer:
    """Return the settings of one TOML file as a layer; raise UserError with the path otherwise."""
    try:
        text = read_bounded_text(path)
        check_toml_size(text)
        layer = tomllib.loads(text)
        check_bounds(layer)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}{describe_byte(error)}; save the file as UTF-8") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: not valid TOML: {describe_toml_error(error, text)}") from None
    except RecursionError:
        raise UserError(f"{path}: not valid TOML: nested more than {MAX_DEPTH} deep") from None
    except ValueError as error:
        raise UserError(f"{path}: not valid TOML: {error}") from None
    return layer


def describe_byte(error: UnicodeDecodeError) -> str:
    """Return the line and the value of the first byte that is not UTF-8."""
    line = error.object[: error.start].count(b"\n") + 1
    return f":{line}: byte 0x{error.object[error.start]:02x} is not UTF-8"


def describe_toml_error(error: tomllib.TOMLDecodeError, text: str) -> str:
    """Return the parser's message; of a key that is set twice with the key, which it leaves out."""
    message = str(error)
    if not message.startswith("Cannot overwrite a value"):
        return message
    lines = text.split("\n")
    if place := re.search(r"at line (\d+)", message):
        lines = lines[: int(place[1])]
    for number in range(len(lines), 0, -1):  # a value may end some lines below its key
        if key := TOML_KEY.match(lines[number - 1]):
            return f"line {number} sets {key[1]}, which is set already; remove one of the two"
    return message


def check_toml_size(text: str) -> None:
    """Refuse a TOML text whose parsing would take minutes.

    The parser takes time by the square of a key's parts: a minute for a file of 60 kB that is one
    key.
    """
    most_dots = max((line.count(".") for line in text.splitlines()), default=0)
    if len(text) > MAX_TOML_CHARACTERS or most_dots > MAX_TOML_DOTS:
        raise ValueError(
            f"longer than {MAX_TOML_CHARACTERS:,} characters, or {MAX_TOML_DOTS:,} dots in a line"
        )


def check_bounds(value: Any) -> None:
    """Refuse values that fail when they are walked or printed.

    Python's stack ends at a thousand calls, and its printing of integers at a few thousand digits.
    """
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [child for parent in level for child in children(parent)]
        if any(type(child) is int and child.bit_length() > MAX_INTEGER_BITS for child in level):
            raise ValueError(f"an integer of more than {MAX_INTEGER_BITS} bits")
        if not level:
            return
    raise ValueError(f"nested more than {MAX_DEPTH} deep")


def children(value: Any) -> list[Any]:
    """Return the values of a dict or list, and none of anything else."""
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list):
        return value
    return []
