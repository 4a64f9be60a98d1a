"""JSON files that carry a checksum of themselves, and the list of a corpus's files beside them.

The list is a file of its own: with millions of files it is too long for a JSON file that is read
at once, and it need not be written again with every shard.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from electra import atomic
from electra.checksums import hash_file
from electra.config import UserError
from electra.files import parse_json, read_json_object

INPUTS = "inputs.jsonl"
CHECKSUM = "sha256"  # the key of a file's own checksum
MAX_INPUT_BYTES = 1 << 20  # of one line of the list
ENCODER = json.JSONEncoder(ensure_ascii=False)  # json.dumps would build one for every line


def write_record(path: Path, values: dict[str, Any]) -> None:
    """Write values as JSON with a checksum."""
    atomic.write_json(path, values | {CHECKSUM: checksum_values(values)})


def read_record(path: Path, *, remedy: str) -> dict[str, Any]:
    """Return the values of a JSON file, without their checksum, which files of earlier versions
    lack; raise UserError where it is another.
    """
    values = read_json_object(path, remedy=remedy)
    if CHECKSUM in values and values.pop(CHECKSUM) != checksum_values(values):
        raise UserError(f"{path}: damaged: its checksum is not the one that it holds; {remedy}")
    return values


def checksum_values(values: dict[str, Any]) -> str:
    """Return a checksum that does not depend on white space and order."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def checksum_file(path: Path) -> str:
    """Return the SHA-256 of a plain file; raise UserError where it cannot be read."""
    try:
        return hash_file(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def write_inputs(folder: Path, inputs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Write the list of a corpus's files, one a line, and return what stands for it in a record."""
    digest = hashlib.sha256()
    with atomic.open_write(folder / INPUTS) as stream:
        for file in inputs:
            line = ENCODER.encode(file).encode() + b"\n"
            digest.update(line)
            stream.write(line)
    return {"file": INPUTS, "count": len(inputs), "sha256": digest.hexdigest()}


def read_inputs(folder: Path, inputs: dict[str, Any], *, remedy: str) -> list[dict[str, Any]]:
    """Return the list of a corpus's files that `write_inputs` wrote."""
    path, digest = folder / INPUTS, hashlib.sha256()
    files: list[dict[str, Any]] = []
    try:
        if path.exists() and not path.is_file():
            raise OSError("a folder, a pipe or a device, not a plain file")
        with path.open("rb") as stream:
            while line := stream.readline(MAX_INPUT_BYTES):
                digest.update(line)
                files.append(parse_input(line))
        if (len(files), digest.hexdigest()) != (inputs.get("count"), inputs.get("sha256")):
            raise ValueError("its checksum is not the one in the manifest")
    except FileNotFoundError:
        raise UserError(f"{path}: is missing; {remedy}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: damaged: {error}; {remedy}") from None
    return files


def parse_input(line: bytes) -> dict[str, Any]:
    """Return the file of the corpus that a line describes."""
    file = parse_json(line.decode())
    if not isinstance(file, dict) or not isinstance(file.get("name"), str):
        raise ValueError("a line that names no file")
    return file
