"""Compare a manifest with the files that it describes: by their sizes when shards are opened, by
every byte when they are verified.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from electra.config import UserError
from electra.data.dataset import load_integers
from electra.data.examples import token_dtype
from electra.data.manifest import COUNTS, MANIFEST, SHARD_AGAIN, Manifest, ShardFile, shard_command
from electra.data.records import checksum_file

HEADER_BYTES = 128  # that np.save writes before an array of one or two dimensions
IDS, ENDS = ".ids.npy", ".ends.npy"


def check_manifest(folder: Path, manifest: Manifest) -> None:
    """Raise UserError where the numbers of a manifest contradict each other or a file's size."""
    for file in manifest.files:
        path = folder / file.name
        check_size(path, file.bytes)
        shape, dtype = expected_array(path, file, manifest)
        size = HEADER_BYTES + int(np.prod(shape)) * dtype.itemsize
        if size != file.bytes:
            raise UserError(
                f"{path}: damaged: {file.bytes:,} bytes, but {file.rows:,} rows of a vocabulary of "
                f"{manifest.vocab_size:,}, as {MANIFEST} says, take {size:,}; run "
                f"{shard_command(path)}"
            )
    check_totals(folder / MANIFEST, manifest)


def expected_array(
    path: Path, file: ShardFile, manifest: Manifest
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and the type of the array in a file, by the manifest."""
    if path.name == COUNTS and file.rows == manifest.vocab_size:
        return (file.rows,), np.dtype(np.int64)
    if path.name.endswith(IDS):
        return (file.rows, manifest.length), token_dtype(manifest.vocab_size)
    if path.name.endswith(ENDS):
        return (file.rows, 2), np.dtype(np.uint16)
    raise UserError(
        f"{path}: {MANIFEST} gives it {file.rows:,} rows, which no file of that name has; run "
        f"{shard_command(path)}"
    )


def check_totals(path: Path, manifest: Manifest) -> None:
    """Raise UserError unless the totals of a manifest are those of its files."""
    ids, ends = file_rows(manifest, IDS), file_rows(manifest, ENDS)
    rows: Counter[str] = Counter()
    for name, count in ids.items():
        rows["rows" if "train-" in name else "held_out_rows"] += count
    cells = max(1, manifest.rows * manifest.length)
    comparisons = {
        "rows of ids, in the order of their files": (list(ids.items()), list(ends.items())),
        "rows": (manifest.rows, rows["rows"]),
        "held_out_rows": (manifest.held_out_rows, rows["held_out_rows"]),
        "files": (len(manifest.files), len({file.name for file in manifest.files})),
        "fill": (manifest.fill, round(manifest.tokens / cells, 4)),
    }
    for key, (stated, found) in comparisons.items():
        if stated != found:
            raise UserError(f"{path}: {key} is {stated}, but its files hold {found}; {SHARD_AGAIN}")


def file_rows(manifest: Manifest, suffix: str) -> dict[str, int]:
    """Return the rows of each file with a suffix, by its name without the suffix."""
    rows = {}
    for file in manifest.files:
        if file.name.endswith(suffix):
            rows[file.name.removesuffix(suffix)] = file.rows
    return rows


def check_size(path: Path, size: int) -> None:
    """Raise UserError unless a file has this many bytes."""
    if not path.is_file():
        raise UserError(f"{path}: is missing; run {shard_command(path)}")
    if path.stat().st_size != size:
        raise UserError(
            f"{path}: has {path.stat().st_size} bytes, not {size}; run {shard_command(path)}"
        )


def check_content(path: Path, file: ShardFile, manifest: Manifest) -> int:
    """Raise UserError unless a file holds what the manifest says, byte for byte. Return the number
    of tokens where the file holds the ends of rows to train on.
    """
    check_checksum(path, file)
    array = load_integers(path, mmap_mode="r")
    shape, dtype = expected_array(path, file, manifest)
    if array.shape != shape or array.dtype != dtype:
        raise UserError(
            f"{path}: {array.dtype} of shape {array.shape}, but {MANIFEST} says {dtype} of shape "
            f"{shape}; run {shard_command(path)}"
        )
    if not is_in_range(path, array, manifest):
        raise UserError(
            f"{path}: holds numbers beyond the vocabulary or the length of its rows; run "
            f"{shard_command(path)}"
        )
    if path.name.startswith("train-") and path.name.endswith(ENDS):
        return int(array[:, 1].sum(dtype=np.int64))
    return 0


def is_in_range(path: Path, array: npt.NDArray[Any], manifest: Manifest) -> bool:
    """Return whether ids are in the vocabulary, and segments in order and within their row."""
    if not array.size:
        return True
    if path.name.endswith(IDS):
        return bool(array.max() < manifest.vocab_size)
    if path.name.endswith(ENDS):
        return bool((array[:, 0] <= array[:, 1]).all() and array.max() <= manifest.length)
    return bool(array.min() >= 0)


def check_checksum(path: Path, file: ShardFile) -> None:
    """Raise UserError unless a file has the checksum that was written down for it."""
    if checksum_file(path) != file.sha256:
        raise UserError(
            f"{path}: damaged: its checksum is not the one in {MANIFEST}; run {shard_command(path)}"
        )
