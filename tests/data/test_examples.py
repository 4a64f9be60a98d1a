from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from electra.data.examples import (
    ExampleBuilder,
    NumberedDocument,
    Span,
    cut_document,
    draw_held_out,
    pad_rows,
)
from electra.data.wordpiece import WordPiece

line_lengths = st.lists(st.integers(0, 60), max_size=40) | st.lists(
    st.integers(0, 2000), max_size=4
)


@given(line_lengths, st.integers(8, 130), st.integers(0, 2**32))
def test_examples_tile_the_document_and_fit_the_length(
    lengths: list[int], length: int, seed: int
) -> None:
    spans = cut_document(lengths, length=length, rng=random.Random(seed))
    assert [span.start for span in spans] == [0, *(span.end for span in spans)][: len(spans)]
    assert (spans[-1].end if spans else 0) == sum(lengths)
    for start, middle, end in spans:
        assert start < middle <= end  # A is never empty
        assert (end - start) + (2 if middle == end else 3) <= length


def test_a_long_line_fills_one_segment_after_another() -> None:
    spans = cut_document([1000], length=128, rng=random.Random(0))
    assert all(span.middle == span.end for span in spans)
    assert spans[0] == Span(0, 126, 126)


def test_segments_end_where_lines_end_unless_the_example_is_full() -> None:
    bounds = set(np.cumsum([10] * 100).tolist())
    for span in cut_document([10] * 100, length=128, rng=random.Random(1)):
        assert span.middle in bounds or span.middle - span.start == 126


def test_the_chances_are_those_of_the_reference_code() -> None:
    spans = cut_document([10] * 200_000, length=128, rng=random.Random(0))
    whole = [span for span in spans if span.end - span.start >= 120]
    assert abs(np.mean([span.middle == span.end for span in whole]) - 0.1) < 0.01
    # Of the targets drawn at random, a share of about 8 / 124 is too long to be seen as short.
    assert abs(1 - len(whole) / len(spans) - 0.05) < 0.01
    # A aims at (128 - 3) // 2 = 62 tokens: lines of 10 stop it at 60, and a coin may let it have
    # one more.
    first = [span.middle - span.start for span in whole if span.middle < span.end]
    assert 58 < np.mean(first) < 70


def test_rows_read_cls_a_sep_b_sep_and_padding(tokenizer: WordPiece) -> None:
    cls, sep, pad = tokenizer.cls, tokenizer.sep, tokenizer.pad
    ids, ends = pad_rows(
        np.arange(10, 20), [Span(0, 2, 5), Span(5, 10, 10)], length=8, tokenizer=tokenizer
    )
    assert ids.tolist() == [
        [cls, 10, 11, sep, 12, 13, 14, sep],
        [cls, 15, 16, 17, 18, 19, sep, pad],
    ]
    assert ends.tolist() == [[4, 8], [7, 7]]
    assert (ids.dtype, ends.dtype) == (np.uint16, np.uint16)


def test_special_ids_in_the_text_become_unknown(tokenizer: WordPiece) -> None:
    ids, _ = pad_rows(
        np.array([10, tokenizer.mask, tokenizer.cls]),
        [Span(0, 3, 3)],
        length=8,
        tokenizer=tokenizer,
    )
    assert ids[0, 1:4].tolist() == [10, tokenizer.unk, tokenizer.unk]


lines = st.sampled_from(["the old bridge", "water", "…", "[MASK] stone " * 30])


@given(st.lists(st.lists(lines, min_size=1, max_size=9), min_size=1, max_size=4), st.integers(0, 9))
def test_the_text_of_a_documents_rows_is_its_tokens_in_order(
    tokenizer: WordPiece, texts: list[list[str]], seed: int
) -> None:
    builder = ExampleBuilder(length=16, held_out=0.0, seed=seed)
    examples = builder.build([NumberedDocument(n, text) for n, text in enumerate(texts)], tokenizer)
    ids, ends = examples.train
    written = [
        int(i)
        for row, (first, last) in zip(ids, ends, strict=True)
        for i in [*row[1 : first - 1], *row[first : last - 1]]
    ]
    assert written == [i for lines in texts for encoded in tokenizer.encode(lines) for i in encoded]
    assert len(examples.held_out[0]) == 0


def test_a_document_is_cut_alike_whatever_stands_around_it(tokenizer: WordPiece) -> None:
    builder = ExampleBuilder(length=16, held_out=0.5, seed=3)
    documents = [NumberedDocument(n, ["the old bridge over the water " * 5] * 3) for n in range(20)]
    together = builder.build(documents, tokenizer)
    alone = [builder.build([document], tokenizer) for document in documents]
    for name in ("train", "held_out"):
        for part in (0, 1):
            pieces = np.concatenate([getattr(examples, name)[part] for examples in alone])
            np.testing.assert_array_equal(getattr(together, name)[part], pieces)


def test_the_second_document_is_always_held_out_and_the_first_only_by_chance() -> None:
    assert draw_held_out(1, share=1e-9, rng=random.Random(0))
    assert not draw_held_out(0, share=1e-9, rng=random.Random(0))
    assert not draw_held_out(1, share=0.0, rng=random.Random(0))
    chosen = sum(draw_held_out(n, share=0.1, rng=random.Random(f"0/{n}")) for n in range(2, 10_000))
    assert 900 < chosen < 1100


def test_words_too_long_to_be_words_are_counted_when_they_became_unknown(
    tokenizer: WordPiece,
) -> None:
    builder = ExampleBuilder(length=16, held_out=0.0, seed=0)
    assert (
        builder.build(
            [NumberedDocument(0, ["the water " * 50, "x" * 201 + " the " + "y" * 300])], tokenizer
        ).long_words
        == 2
    )
