"""A paragraph as tokens that know their characters, and the windows in which a long one is read."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from electra.data.wordpiece import WordPiece
from electra.tasks.span_files import Question

ENCODED_TOGETHER = 1024  # questions whose paragraphs are held as tokens at a time

Window = tuple[int, int]  # its first token, and the one behind its last


class Paragraph(NamedTuple):
    """Tokens, and the characters each is made of. Arrays: a list of numbers takes nine times the
    memory.
    """

    ids: array[int]
    starts: array[int]
    ends: array[int]

    def tokens(self, span: tuple[int, int] | None) -> tuple[int, int] | None:
        """The first and last token that share a character with the span."""
        if span is None:
            return None
        first = int(np.searchsorted(self.ends, span[0], side="right"))
        last = int(np.searchsorted(self.starts, span[1], side="left")) - 1
        return (first, last) if first <= last else None


def encoded(
    examples: Sequence[Question], tokenizer: WordPiece
) -> Iterator[tuple[Question, list[int], Paragraph]]:
    """Each question with its ids and its paragraph's; questions about the same paragraph share the
    latter.
    """
    for begin in range(0, len(examples), ENCODED_TOGETHER):
        chunk = examples[begin : begin + ENCODED_TOGETHER]
        contexts = list(dict.fromkeys(example.context for example in chunk))
        found = tokenizer.backend_tokenizer.encode_batch(contexts, add_special_tokens=False)
        paragraphs = {
            context: Paragraph(
                array("i", tokens.ids),
                array("i", [start for start, _ in tokens.offsets]),
                array("i", [end for _, end in tokens.offsets]),
            )
            for context, tokens in zip(contexts, found, strict=True)
        }
        for example, asked in zip(
            chunk, tokenizer.encode([example.question for example in chunk]), strict=True
        ):
            yield example, asked, paragraphs[example.context]


def windows(total: int, *, room: int, stride: int) -> list[Window]:
    """Windows of at most `room` tokens, one every `stride`, that hold every token; at least one."""
    step = min(stride, room)  # a stride longer than a window would pass tokens over
    found = [(0, min(room, total))]
    while found[-1][1] < total:
        begin = found[-1][0] + step
        found.append((begin, min(begin + room, total)))
    return found


def widest(found: Sequence[Window]) -> list[list[int]]:
    """For each window, 1 at its tokens that no window shows with more text around them, and 0 at
    the others.

    BERT's measure: what is left or right of the token, whichever is less, and to break ties a
    little for long windows.
    """
    most = np.full(found[-1][1], -1.0)
    owner = np.zeros(found[-1][1], dtype=np.int64)
    for number, (begin, end) in enumerate(found):
        places = np.arange(begin, end)
        around = np.minimum(places - begin, end - 1 - places) + 0.01 * (end - begin)
        better = places[around > most[begin:end]]
        most[better], owner[better] = around[better - begin], number
    return [
        (owner[begin:end] == number).astype(int).tolist()
        for number, (begin, end) in enumerate(found)
    ]
