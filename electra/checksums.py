"""The checksums of a folder's files, in a file that `sha256sum --check` reads too."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from electra import atomic
from electra.config import UserError
from electra.files import MAX_BYTES, read_bounded_text

CHECKSUMS = "checksums.sha256"


class DamagedFile(UserError):
    """A file whose content is not the one that its folder's checksums state."""


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a plain file; a pipe or a device might never end."""
    if path.exists() and not path.is_file():
        raise DamagedFile(f"{path}: a folder, a pipe or a device, not a plain file")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_checksums(folder: Path, names: Iterable[str]) -> None:
    """Write the checksums of these files of a folder."""
    lines = [f"{hash_file(folder / name)}  {name}\n" for name in sorted(names)]
    atomic.write(folder / CHECKSUMS, "".join(lines))


def read_checksums(folder: Path) -> dict[str, str]:
    """Return the checksum of each file that a folder states one for; raise DamagedFile where a line
    is not what `write_checksums` writes.
    """
    path, checksums = folder / CHECKSUMS, {}
    try:
        lines = read_bounded_text(path).split("\n")
        if lines.pop():
            raise ValueError("its last line has no end")
        for number, line in enumerate(lines, start=1):
            match = re.fullmatch(r"([0-9a-f]{64})  (\S+)", line)
            if match is None:
                raise ValueError(f"line {number} is not a checksum and a file name")
            checksums[match[2]] = match[1]
    except (OSError, ValueError) as error:
        raise DamagedFile(f"{path} is damaged: {error}") from None
    return checksums


def verify_file(path: Path, checksums: dict[str, str]) -> None:
    """Raise DamagedFile where the content of a file is not the one that was written."""
    if not path.is_file():
        raise DamagedFile(f"{path.parent} is not whole: {path.name} is missing")
    stated = checksums.get(path.name)
    if stated is None:
        raise DamagedFile(f"{path.parent / CHECKSUMS} is damaged: it lacks {path.name}")
    try:
        check_size(path)
        is_same = hash_file(path) == stated
    except OSError as error:
        raise DamagedFile(f"{path} cannot be read: {error.strerror}") from None
    if not is_same:
        raise DamagedFile(
            f"{path} is damaged: its checksum is not the one it was written with, which "
            f"{CHECKSUMS} states"
        )


def check_size(path: Path) -> None:
    """Raise DamagedFile for a file that is too long to be what it was: hashing might take hours."""
    size, longest = path.stat().st_size, MAX_BYTES
    if path.suffix == ".safetensors":
        with path.open("rb") as file:
            header = min(int.from_bytes(file.read(8), "little"), MAX_BYTES)
            ends = re.findall(rb'"data_offsets":\[\d{1,18},(\d{1,18})\]', file.read(header))
        longest = 8 + header + max(map(int, ends), default=0)
    if size > longest:
        raise DamagedFile(f"{path} is damaged: {size:,} bytes long, {longest:,} are expected")


def verify_if_listed(path: Path) -> None:
    """Raise DamagedFile where its folder has a checksum of a file, and the file another content."""
    if not path.is_file() or not (path.parent / CHECKSUMS).is_file():
        return
    remedy = (
        "copy or export the folder again; if you changed the file on purpose, remove "
        f"{path.parent / CHECKSUMS}"
    )
    try:
        checksums = read_checksums(path.parent)
        if path.name in checksums:
            verify_file(path, checksums)
    except DamagedFile as error:
        raise DamagedFile(f"{error}; {remedy}") from None
