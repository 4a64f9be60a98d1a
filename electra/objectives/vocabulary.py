"""What an objective knows of the vocabulary."""

from __future__ import annotations

from typing import Protocol


class Vocabulary(Protocol):
    """What an objective knows of the vocabulary: its size, and the ids of special tokens."""

    @property
    def size(self) -> int: ...

    @property
    def mask(self) -> int: ...

    pad: int
    unk: int
    cls: int
    sep: int
