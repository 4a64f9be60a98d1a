"""Warn of texts that the vocabulary of a model was not made for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from electra.data.sources import warn
from electra.data.wordpiece import WordPiece
from electra.tasks.features import Array, Features

# Words of another language in the same script are not [UNK] but fall into pieces. The vocabulary of
# small-en splits 6 to 17 % of the words of English data sets and at most 8 % of their most frequent
# ones, 27 and 26 % in C headers, and at least 51 and 56 % in texts of 19 other languages in Latin
# letters.
MAX_SPLIT = 0.38  # of the words, and of the most frequent ones
COMMON_WORDS = 200  # that even a language of long words has in its own vocabulary
SAMPLE_TOKENS = 40_000  # from the beginning of the data
MIN_WORDS = 1_000  # fewer may be a list of names
# One of 2,048 entries splits half of the words of its own language, one of 8,192 up to 29 %.
MIN_VOCABULARY = 16_000
CONTINUATION = "##"


@dataclass
class VocabularyFit:
    """Counts what a vocabulary does not know or splits, over all chunks of the data."""

    tokenizer: WordPiece
    texts: int = 0
    mostly_unknown: int = 0  # texts
    tokens: int = 0  # special ones apart
    unknown: int = 0  # tokens
    sampled: int = 0  # tokens
    words: Counter[tuple[str, ...]] = field(default_factory=Counter)  # by their pieces

    def add(self, features: Features) -> None:
        """Count the texts of a chunk."""
        tokens, unknown = count_unknown(features, self.tokenizer)
        self.texts += len(tokens)
        self.mostly_unknown += int(is_mostly_unknown(tokens, unknown).sum())
        self.tokens += int(tokens.sum())
        self.unknown += int(unknown.sum())
        sample = features.input_ids[: SAMPLE_TOKENS - self.sampled]
        self.sampled += len(sample)
        self.words.update(words_in_pieces(self.tokenizer.tokens(sample.tolist())))

    @property
    def split_warning(self) -> str:
        """A warning that words fall into pieces as those of another language do, or nothing."""
        words = self.words.total()
        if words < MIN_WORDS or self.tokenizer.size < MIN_VOCABULARY:
            return ""
        common = Counter(word for word, _ in self.words.most_common(COMMON_WORDS))
        if min(split_share(self.words), split_share(common)) <= MAX_SPLIT:
            return ""
        pieces = sum(len(word) * count for word, count in self.words.items())
        return (
            f"a word of the text falls into {pieces / words:.1f} pieces on average; the model's "
            "vocabulary was perhaps made for another language"
        )

    def warn(self) -> None:
        """Warn, once, of texts that are mostly [UNK], of which the model sees little more than how
        long they are, and of words that fall into pieces.
        """
        if self.mostly_unknown:
            warn(
                f"{self.mostly_unknown:,} of {self.texts:,} texts are mostly [UNK]: not in the "
                "model's vocabulary"
            )
        if self.split_warning:
            warn(self.split_warning)


def words_in_pieces(tokens: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Yield the pieces of each word of several letters, in a script with upper and lower case.

    Such scripts put spaces between words. Numbers, signs and [UNK] are no words, nor are the single
    letters beside an apostrophe.
    """
    pieces: tuple[str, ...] = ()
    for token in (*tokens, ""):
        if pieces and token.startswith(CONTINUATION):
            pieces += (token,)
            continue
        if len("".join(pieces)) > 1:
            yield pieces
        pieces = ()
        if token.isalpha() and token.lower() != token.upper():
            pieces = (token,)


def split_share(words: Counter[tuple[str, ...]]) -> float:
    """Return the share of words that have several pieces."""
    return sum(count for word, count in words.items() if len(word) > 1) / words.total()


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
