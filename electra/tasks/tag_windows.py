"""Rows of words for tagging: the windows of a long sentence, and their tokens and labels."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from electra.data.wordpiece import WordPiece
from electra.tasks.features import IGNORE_INDEX, Row


class Window(NamedTuple):
    """Words `start` up to `end` are read; of these, `first` up to `last` are decided."""

    start: int
    end: int
    first: int
    last: int


def windows(sizes: Sequence[int], *, room: int) -> list[Window]:
    """Return windows of at most `room` tokens over words of these sizes, each word decided once.

    No word may be larger than `room`. Neighbours share up to half a window, and the middle of what
    they share is the border between what they decide: so a word is decided with a quarter of a
    window to either side, where there is that much text.
    """
    offsets = [0, *accumulate(sizes)]
    result: list[Window] = []
    start = first = 0
    while True:
        end = bisect_right(offsets, offsets[start] + room) - 1
        if end == len(sizes):
            return [*result, Window(start, end, first, end)]
        # The next window must hold a word more.
        reach = max(offsets[end] - room // 2, offsets[end + 1] - room)
        following = bisect_left(offsets, reach)
        last = bisect_left(offsets, (offsets[following] + offsets[end]) / 2)
        result.append(Window(start, end, first, last))
        start, first = following, last


def window_row(
    example: int,
    pieces: Sequence[Sequence[int]],
    targets: Sequence[int],
    *,
    window: Window,
    tokenizer: WordPiece,
) -> Row:
    """Build `[CLS] words [SEP]`; a word is labelled at its first token, if it is decided here."""
    ids, words, labels = [tokenizer.cls], [IGNORE_INDEX], [IGNORE_INDEX]
    for word in range(window.start, window.end):
        ids += pieces[word]
        unscored = [IGNORE_INDEX] * len(pieces[word])
        words += unscored
        labels += unscored
        if window.first <= word < window.last:
            words[-len(unscored)] = word
            labels[-len(unscored)] = targets[word]
    ids.append(tokenizer.sep)
    words.append(IGNORE_INDEX)
    labels.append(IGNORE_INDEX)
    return Row(example, ids, token_labels={"word": words, "target": labels})
