"""Rows of token ids in memory-mapped files."""

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
    """Rows over several memory-mapped files, numbered through."""

    def __init__(self, files: Sequence[tuple[Path, int]]) -> None:
        """`files`: each file of ids, whose ends lie beside it, and its number of rows."""
        self.paths = [path for path, _ in files]
        self.starts = np.cumsum([0, *(rows for _, rows in files)], dtype=np.int64)
        self.mapped: dict[Path, npt.NDArray[Any]] = {}

    def __len__(self) -> int:
        return int(self.starts[-1])

    def take(self, indices: npt.NDArray[np.int64]) -> tuple[Ids, Ends]:
        """ids [n, T] and ends [n, 2] of these rows, in this order."""
        return self.gather(indices, ".ids.npy"), self.gather(indices, ".ends.npy")

    def ends(self, indices: npt.NDArray[np.int64]) -> Ends:
        """ends [n, 2] of these rows, in this order."""
        return self.gather(indices, ".ends.npy")

    def gather(self, indices: npt.NDArray[np.int64], suffix: str) -> npt.NDArray[Any]:
        indices = np.asarray(indices, dtype=np.int64)
        if len(indices) and (indices.min() < 0 or indices.max() >= len(self)):
            raise IndexError(f"rows {indices.min()} to {indices.max()} of {len(self)}")
        which = np.searchsorted(self.starts, indices, side="right") - 1
        gathered: npt.NDArray[Any] | None = None
        for number in np.unique(which):
            here = which == number
            rows = self.open(self.paths[number], suffix)[indices[here] - self.starts[number]]
            if gathered is None:
                gathered = np.empty((len(indices), rows.shape[1]), dtype=rows.dtype)
            gathered[here] = rows
        return gathered if gathered is not None else np.empty((0, 0), dtype=np.uint16)

    def open(self, path: Path, suffix: str) -> npt.NDArray[Any]:
        path = path.with_name(path.name.removesuffix(".ids.npy") + suffix)
        if path not in self.mapped:
            self.mapped[path] = load_integers(path, mmap_mode="r")
        return self.mapped[path]


def load_integers(path: Path, *, mmap_mode: Literal["r"] | None = None) -> npt.NDArray[Any]:
    """An array of whole numbers. Objects would come as a pickle, which is never opened."""
    try:
        found: npt.NDArray[Any] = np.load(path, mmap_mode=mmap_mode, allow_pickle=False)
        if not isinstance(found, np.ndarray) or found.dtype.kind not in "iu":
            raise ValueError("not an array of whole numbers")
    except (
        OSError,
        ValueError,
        EOFError,
        tokenize.TokenError,
    ) as error:  # a header is read as Python's literals are
        raise UserError(
            f"{path}: damaged ({error}); run `electra shard` again with --overwrite"
        ) from None
    return found
