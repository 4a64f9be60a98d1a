"""Documents become examples, `[CLS] A [SEP] B [SEP]` or `[CLS] A [SEP]`, as the reference code cuts
but losing nothing.

A document is one run of tokens, and an example is a stretch of it: `start` to `middle` is segment
A, `middle` to `end` segment B. The next example begins where this one ends, so nothing can be lost,
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

LONG_WORD = 200  # characters without white space that no writer meant as one word
ONE_SEGMENT = 0.1  # chance that an example is a single segment, as classification tasks are
SHORT_TARGET = 0.05  # chance that the next example aims at a random length
SHORTEST_TARGET = 5

Ids = npt.NDArray[np.unsignedinteger[Any]]  # uint16, or uint32 where the vocabulary needs it
Ends = npt.NDArray[np.uint16]


class Span(NamedTuple):
    start: int
    middle: int
    end: int


def cut(line_lengths: list[int], *, length: int, rng: random.Random) -> list[Span]:
    """The examples of a document whose lines have this many tokens each; none is longer than
    `length` in all.

    Lines are gathered until they reach a target; what does not fit is carried over to the next
    example, where the reference code throws it away.
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
        span = split(start, bounds[line : last + 1], target=target, length=length, rng=rng)
        spans.append(span)
        start = span.end
        is_short = rng.random() < SHORT_TARGET
        target = (
            SHORTEST_TARGET + int(rng.random() * (length - SHORTEST_TARGET + 1))
            if is_short
            else length
        )
    return spans


def split(start: int, ends: list[int], *, target: int, length: int, rng: random.Random) -> Span:
    """Gathered lines, given by where each ends, as segments A and B.

    The reference code lets a short line that follows the first line of B slip back into A, out of
    order; here B, once begun, takes all the rest.
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


class Passage(NamedTuple):
    """A document on its way to a worker: its number in the corpus decides every chance taken with
    it.
    """

    ordinal: int
    lines: list[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cutter:
    """Turns passages into rows. What it gives depends on these settings and the passages, and on
    nothing else.
    """

    length: int
    held_out: float
    seed: int

    def rows(self, passages: list[Passage], wordpiece: WordPiece) -> Cuttings:
        encoded = iter(wordpiece.encode([line for passage in passages for line in passage.lines]))
        tokens: list[int] = []
        spans: list[Span] = []
        is_held_out: list[bool] = []
        held_out_documents = long_words = 0
        for passage in passages:
            # Mixed by the generator's own seeding, so that neighbouring documents do not share
            # their chances.
            rng = random.Random(f"{self.seed}/{passage.ordinal}")
            is_set_aside = set_aside(passage.ordinal, share=self.held_out, rng=rng)
            begin, lengths = len(tokens), []
            for line, found in zip(passage.lines, encoded, strict=False):
                tokens += found
                lengths.append(len(found))
                if len(line) > LONG_WORD and wordpiece.unk in found:
                    long_words += count_long_words(line)
            stretches = cut(lengths, length=self.length, rng=rng)
            spans += [Span(begin + s, begin + m, begin + e) for s, m, e in stretches]
            is_held_out += [is_set_aside] * len(stretches)
            held_out_documents += is_set_aside
        ids, ends = fill(
            np.array(tokens, dtype=np.int64), spans, length=self.length, wordpiece=wordpiece
        )
        chosen = np.array(is_held_out, dtype=bool)
        return Cuttings(
            train=(ids[~chosen], ends[~chosen]),
            held_out=(ids[chosen], ends[chosen]),
            documents=len(passages),
            held_out_documents=held_out_documents,
            long_words=long_words,
        )


class Cuttings(NamedTuple):
    """What a block of passages gave: rows to train on and rows set aside, each as ids [rows, T] and
    ends [rows, 2].
    """

    train: tuple[Ids, Ends]
    held_out: tuple[Ids, Ends]
    documents: int
    held_out_documents: int
    long_words: int


def set_aside(ordinal: int, *, share: float, rng: random.Random) -> bool:
    """Whether a document is held out: by chance, and the second one always.

    So any corpus of two documents has something to measure on, and a corpus of one still has
    something to train on, without knowing how many documents are still to come.
    """
    chance = rng.random()  # drawn in any case: the share must not change how documents are cut
    return share > 0 and (ordinal == 1 or chance < share)


def count_long_words(line: str) -> int:
    return sum(len(word) > LONG_WORD for word in line.split())


def id_type(vocabulary_size: int) -> np.dtype[np.unsignedinteger[Any]]:
    return np.dtype(np.uint16) if vocabulary_size <= 2**16 else np.dtype(np.uint32)


def fill(
    tokens: npt.NDArray[np.int64], spans: list[Span], *, length: int, wordpiece: WordPiece
) -> tuple[Ids, Ends]:
    """Spans of a run of tokens as padded rows [rows, T], and where each row's segments end [rows,
    2].
    """
    # Some word-level tokenizers look a literal "[MASK]" up as a word; in text it is a word nobody
    # knows.
    tokens[np.isin(tokens, [wordpiece.pad, wordpiece.cls, wordpiece.sep, wordpiece.mask])] = (
        wordpiece.unk
    )
    start, middle, end = (
        np.array(spans, dtype=np.int64).reshape(-1, 3).T[:, :, None]
    )  # each [rows, 1]
    first_end = middle - start + 2
    last_end = np.where(end > middle, first_end + end - middle + 1, first_end)
    column = np.arange(length)
    # [CLS] shifts the first segment by one place, the [SEP] between them the second by another.
    origin = start + column - 1 - (column >= first_end)
    ids = (
        tokens[np.clip(origin, 0, len(tokens) - 1)]
        if spans
        else np.zeros((0, length), dtype=np.int64)
    )
    ids[:, 0] = wordpiece.cls
    ids[(column == first_end - 1) | (column == last_end - 1)] = wordpiece.sep
    ids[column >= last_end] = wordpiece.pad
    ends = np.concatenate([first_end, last_end], axis=1)
    return ids.astype(id_type(wordpiece.size)), ends.astype(np.uint16)
