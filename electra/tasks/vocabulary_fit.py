"""Warn of texts that the vocabulary of a model was not made for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from electra.data.sources import warn
from electra.data.wordpiece import WordPiece
from electra.tasks.features import Array, Features


@dataclass
class VocabularyFit:
    """Counts what a vocabulary does not know, over all chunks of the data."""

    tokenizer: WordPiece
    texts: int = 0
    mostly_unknown: int = 0  # texts
    tokens: int = 0  # special ones apart
    unknown: int = 0  # tokens

    def add(self, features: Features) -> None:
        """Count the texts of a chunk."""
        tokens, unknown = count_unknown(features, self.tokenizer)
        self.texts += len(tokens)
        self.mostly_unknown += int(is_mostly_unknown(tokens, unknown).sum())
        self.tokens += int(tokens.sum())
        self.unknown += int(unknown.sum())

    def warn(self) -> None:
        """Warn, once, of texts that are mostly [UNK]: the model sees little more than how long
        they are.
        """
        if self.mostly_unknown:
            warn(
                f"{self.mostly_unknown:,} of {self.texts:,} texts are mostly [UNK]: not in the "
                "model's vocabulary"
            )


def mostly_unknown_texts(features: Features, tokenizer: WordPiece) -> Array:
    """Return the indices of the examples that are mostly [UNK]."""
    return np.flatnonzero(is_mostly_unknown(*count_unknown(features, tokenizer)))


def is_mostly_unknown(tokens: Array, unknown: Array) -> Array:
    is_most: Array = 2 * unknown > tokens
    return is_most


def count_unknown(features: Features, tokenizer: WordPiece) -> tuple[Array, Array]:
    """Return the number of tokens of each example, special ones apart, and how many are [UNK]."""
    ids = features.input_ids
    is_text = (ids != tokenizer.cls) & (ids != tokenizer.sep)
    return sum_by_example(is_text, features), sum_by_example(ids == tokenizer.unk, features)


def sum_by_example(values: Array, features: Features) -> Array:
    """Return the sum over the tokens of each example, which may have several rows."""
    by_row = np.add.reduceat(values, features.offsets[:-1], dtype=np.int64)
    sums: Array = np.bincount(features.examples, weights=by_row)
    return sums.astype(np.int64)
