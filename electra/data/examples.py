"""Build pre-training examples from documents: `[CLS] A [SEP] B [SEP]` or `[CLS] A [SEP]`, cut as in
the reference code, but without truncating anything.

A document is one run of tokens, and an example is a span of it: `start` to `middle` is segment A,
`middle` to `end` segment B. The next example begins where this one ends, so nothing is lost,
repeated or reordered.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from electra.data.wordpiece import WordPiece

LONG_WORD = 200  # characters; a longer run without white space is no word of any language
ONE_SEGMENT = 0.1  # chance that an example is a single segment, as classification tasks are
SHORT_TARGET = 0.05  # chance that the next example aims at a random length
SHORTEST_TARGET = 5

Ids = npt.NDArray[np.unsignedinteger[Any]]  # uint16, or uint32 where the vocabulary needs it
Ends = npt.NDArray[np.uint16]


class Span(NamedTuple):
    """The tokens of one example: segment A from `start` to `middle`, B from `middle` to `end`."""

    start: int
    middle: int
    end: int

    def shift(self, offset: int) -> Span:
        """Return the span `offset` tokens further on."""
        return Span(self.start + offset, self.middle + offset, self.end + offset)


def cut_document(line_lengths: list[int], *, length: int, rng: random.Random) -> list[Span]:
    """Cut a document whose lines have this many tokens each into examples of at most `length`
    tokens, special tokens included.

    Lines are collected until they reach a target length; tokens that do not fit are carried over to
    the next example, where the reference code truncates them.
    """
    bounds = [0, *itertools.accumulate(line_lengths)]
    total = bounds[-1]
    spans: list[Span] = []
    target, start, line = length, 0, 0
    while start < total:
        while bounds[line] <= start:
            line += 1
        last = line
        while bounds[last] - start < target and bounds[last] < total:
            last += 1
        span = split_segments(start, bounds[line : last + 1], target=target, length=length, rng=rng)
        spans.append(span)
        start = span.end
        target = length
        if rng.random() < SHORT_TARGET:
            target = SHORTEST_TARGET + int(rng.random() * (length - SHORTEST_TARGET + 1))
    return spans


def split_segments(
    start: int, ends: list[int], *, target: int, length: int, rng: random.Random
) -> Span:
    """Split lines, given by the end of each, into segments A and B.

    The reference code moves a short line that follows the first line of B back into A, out of
    order; here all lines after the first line of B belong to B.
    """
    room_for_two, room_for_one = length - 3, length - 2
    if rng.random() < ONE_SEGMENT:
        end = min(ends[-1], start + room_for_one)
        return Span(start, end, end)
    first_target = (target - 3) // 2
    middle = ends[0]  # A is never empty
    for end in ends[1:]:
        fits = end - start < first_target
        if not fits and not (middle - start < first_target and rng.random() < 0.5):
            break
        middle = end
    if middle == ends[-1] or middle - start >= room_for_two:
        end = min(middle, start + room_for_one)
        return Span(start, end, end)
    return Span(start, middle, min(ends[-1], start + room_for_two))


class NumberedDocument(NamedTuple):
    """The lines of a document, and its number in the corpus, which seeds every random draw."""

    ordinal: int
    lines: list[str]


class Examples(NamedTuple):
    """The rows of a block of documents, to train on and held out, each as ids [rows, T] and ends
    [rows, 2].
    """

    train: tuple[Ids, Ends]
    held_out: tuple[Ids, Ends]
    documents: int
    held_out_documents: int
    long_words: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ExampleBuilder:
    """Builds the rows of documents. They depend on these settings and the documents alone."""

    length: int
    held_out: float
    seed: int

    def build(self, documents: list[NumberedDocument], tokenizer: WordPiece) -> Examples:
        """Tokenize, cut and pad documents."""
        lines = [line for document in documents for line in document.lines]
        encoded = iter(tokenizer.encode(lines))
        tokens: list[int] = []
        spans: list[Span] = []
        held_out_rows: list[bool] = []
        held_out_documents = long_words = 0
        for document in documents:
            # A string seed is hashed, so that neighbouring documents do not share their draws.
            rng = random.Random(f"{self.seed}/{document.ordinal}")
            held_out = draw_held_out(document.ordinal, share=self.held_out, rng=rng)
            begin, lengths = len(tokens), []
            for line, line_ids in zip(document.lines, encoded, strict=False):
                tokens += line_ids
                lengths.append(len(line_ids))
                if len(line) > LONG_WORD and tokenizer.unk in line_ids:
                    long_words += count_long_words(line)
            document_spans = cut_document(lengths, length=self.length, rng=rng)
            spans += [span.shift(begin) for span in document_spans]
            held_out_rows += [held_out] * len(document_spans)
            held_out_documents += held_out
        token_ids = np.array(tokens, dtype=np.int64)
        ids, ends = pad_rows(token_ids, spans, length=self.length, tokenizer=tokenizer)
        mask = np.array(held_out_rows, dtype=bool)
        return Examples(
            train=(ids[~mask], ends[~mask]),
            held_out=(ids[mask], ends[mask]),
            documents=len(documents),
            held_out_documents=held_out_documents,
            long_words=long_words,
        )


def draw_held_out(ordinal: int, *, share: float, rng: random.Random) -> bool:
    """Return whether a document is held out: by chance, and the second document always.

    So any corpus of two documents has something to measure on, and a corpus of one still has
    something to train on, without knowing how many documents follow.
    """
    chance = rng.random()  # drawn in any case: the share must not change how documents are cut
    return share > 0 and (ordinal == 1 or chance < share)


def count_long_words(line: str) -> int:
    """Count the words of a line that are too long for any vocabulary."""
    return sum(len(word) > LONG_WORD for word in line.split())


def token_dtype(vocab_size: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Return the smallest of uint16 and uint32 that holds every id."""
    if vocab_size <= 2**16:
        return np.dtype(np.uint16)
    return np.dtype(np.uint32)


def pad_rows(
    tokens: npt.NDArray[np.int64], spans: list[Span], *, length: int, tokenizer: WordPiece
) -> tuple[Ids, Ends]:
    """Return spans of the tokens as padded rows [rows, T], and where the segments of each row end
    [rows, 2].
    """
    # Some word-level tokenizers look up a literal "[MASK]" as a word; in text it is an unknown
    # word.
    special = [tokenizer.pad, tokenizer.cls, tokenizer.sep, tokenizer.mask]
    tokens[np.isin(tokens, special)] = tokenizer.unk
    bounds = np.array(spans, dtype=np.int64).reshape(-1, 3)
    start, middle, end = bounds.T[:, :, None]  # each [rows, 1]
    first_end = middle - start + 2
    last_end = np.where(end > middle, first_end + end - middle + 1, first_end)
    column = np.arange(length)
    # [CLS] shifts the first segment by one position, the [SEP] between them the second by another.
    origin = start + column - 1 - (column >= first_end)
    ids = np.zeros((0, length), dtype=np.int64)
    if spans:
        ids = tokens[np.clip(origin, 0, len(tokens) - 1)]
    ids[:, 0] = tokenizer.cls
    ids[(column == first_end - 1) | (column == last_end - 1)] = tokenizer.sep
    ids[column >= last_end] = tokenizer.pad
    ends = np.concatenate([first_end, last_end], axis=1)
    return ids.astype(token_dtype(tokenizer.size)), ends.astype(np.uint16)
