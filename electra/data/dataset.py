"""The dataset of pre-training: rows of token ids in memory-mapped files."""

from __future__ import annotations

import tokenize
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from electra.config import UserError
from electra.data.examples import Ends, Ids


class MemmapDataset:
    """Rows of several memory-mapped files, indexed from 0 through all of them."""

    def __init__(self, files: Sequence[tuple[Path, int]]) -> None:
        """Open files of ids, each with its number of rows; the ends are in a file beside each."""
        self.paths = [path for path, _ in files]
        self.starts = np.cumsum([0, *(rows for _, rows in files)], dtype=np.int64)
        self.mapped: dict[Path, npt.NDArray[Any]] = {}

    def __len__(self) -> int:
        return int(self.starts[-1])

    def take(self, indices: npt.NDArray[np.int64]) -> tuple[Ids, Ends]:
        """Return ids [n, T] and ends [n, 2] of these rows, in this order."""
        return self.gather(indices, ".ids.npy"), self.gather(indices, ".ends.npy")

    def ends(self, indices: npt.NDArray[np.int64]) -> Ends:
        """Return ends [n, 2] of these rows, in this order."""
        return self.gather(indices, ".ends.npy")

    def gather(self, indices: npt.NDArray[np.int64], suffix: str) -> npt.NDArray[Any]:
        """Return the rows with these indices from the files with this suffix."""
        indices = np.asarray(indices, dtype=np.int64)
        if len(indices) and (indices.min() < 0 or indices.max() >= len(self)):
            raise IndexError(f"rows {indices.min()} to {indices.max()} of {len(self)}")
        gathered: npt.NDArray[Any] = np.empty((0, 0), dtype=np.uint16)
        file_numbers = np.searchsorted(self.starts, indices, side="right") - 1
        for number in np.unique(file_numbers):
            in_file = file_numbers == number
            rows = self.open(self.paths[number], suffix)[indices[in_file] - self.starts[number]]
            if not len(gathered):
                gathered = np.empty((len(indices), rows.shape[1]), dtype=rows.dtype)
            gathered[in_file] = rows
        return gathered

    def open(self, path: Path, suffix: str) -> npt.NDArray[Any]:
        """Return the memory-mapped file with this suffix that belongs to a file of ids."""
        path = path.with_name(path.name.removesuffix(".ids.npy") + suffix)
        if path not in self.mapped:
            self.mapped[path] = load_integers(path, mmap_mode="r")
        return self.mapped[path]


def load_integers(path: Path, *, mmap_mode: Literal["r"] | None = None) -> npt.NDArray[Any]:
    """Load an array of integers. Objects would come as a pickle, which is never opened."""
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode=mmap_mode, allow_pickle=False)
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "iu":
            raise ValueError("not an array of whole numbers")
    # NumPy parses the header as Python source, hence the TokenError.
    except (OSError, ValueError, EOFError, tokenize.TokenError) as error:
        raise UserError(
            f"{path}: damaged ({error}); run `electra shard` again with --overwrite"
        ) from None
    return array
