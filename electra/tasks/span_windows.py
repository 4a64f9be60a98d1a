"""Tokens of a paragraph with their characters, and the overlapping windows of a long paragraph."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from electra.data.wordpiece import WordPiece, refuse_panics
from electra.tasks.span_files import Question

CHUNK_QUESTIONS = 1024  # whose paragraphs are held as tokens at a time

Window = tuple[int, int]  # its first token, and the one behind its last


class Paragraph(NamedTuple):
    """Tokens, and the first and last character of each.

    In arrays: a list of numbers takes nine times the memory.
    """

    ids: array[int]
    starts: array[int]
    ends: array[int]

    def token_span(self, span: tuple[int, int] | None) -> tuple[int, int] | None:
        """Return the first and last token that share a character with the span."""
        if span is None:
            return None
        first = int(np.searchsorted(self.ends, span[0], side="right"))
        last = int(np.searchsorted(self.starts, span[1], side="left")) - 1
        if first > last:
            return None
        return first, last


def encode_questions(
    examples: Sequence[Question], tokenizer: WordPiece
) -> Iterator[tuple[Question, list[int], Paragraph]]:
    """Yield each question with its ids and its paragraph; the same paragraph is encoded once."""
    for start in range(0, len(examples), CHUNK_QUESTIONS):
        chunk = examples[start : start + CHUNK_QUESTIONS]
        paragraphs = encode_paragraphs([example.context for example in chunk], tokenizer)
        questions = tokenizer.encode([example.question for example in chunk])
        for example, ids in zip(chunk, questions, strict=True):
            yield example, ids, paragraphs[example.context]


def encode_paragraphs(contexts: Sequence[str], tokenizer: WordPiece) -> dict[str, Paragraph]:
    unique = list(dict.fromkeys(contexts))
    with refuse_panics(tokenizer.display_name):
        encodings = tokenizer.backend_tokenizer.encode_batch(unique, add_special_tokens=False)
    paragraphs = {}
    for context, encoding in zip(unique, encodings, strict=True):
        paragraphs[context] = Paragraph(
            ids=array("i", encoding.ids),
            starts=array("i", [start for start, _ in encoding.offsets]),
            ends=array("i", [end for _, end in encoding.offsets]),
        )
    return paragraphs


def windows(total: int, *, room: int, stride: int) -> list[Window]:
    """Return at least one window: of at most `room` tokens, one every `stride`, over all tokens."""
    step = min(stride, room)  # a stride longer than a window would skip tokens
    result = [(0, min(room, total))]
    while result[-1][1] < total:
        start = result[-1][0] + step
        result.append((start, min(start + room, total)))
    return result


def max_context(windows: Sequence[Window]) -> list[list[int]]:
    """For each window, return 1 at the tokens with more context here than in any other, else 0.

    BERT's measure: what is left or right of the token, whichever is less, and to break ties a
    little for long windows.
    """
    most = np.full(windows[-1][1], -1.0)
    owner = np.zeros(windows[-1][1], dtype=np.int64)
    for number, (start, end) in enumerate(windows):
        positions = np.arange(start, end)
        context = np.minimum(positions - start, end - 1 - positions) + 0.01 * (end - start)
        better = positions[context > most[start:end]]
        most[better], owner[better] = context[better - start], number
    return [
        (owner[start:end] == number).astype(int).tolist()
        for number, (start, end) in enumerate(windows)
    ]
