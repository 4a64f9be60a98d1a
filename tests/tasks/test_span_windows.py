"""Windows lose no token, and tokens lose no character."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra.data.wordpiece import WordPiece
from electra.tasks.span_files import Question
from electra.tasks.span_windows import encode_questions, max_context, windows
from tests.tasks.test_span import tokenizer_of_words


@given(total=st.integers(0, 300), room=st.integers(1, 60), stride=st.integers(1, 80))
def test_every_token_is_in_a_window_and_every_window_begins_a_stride_later(
    total: int, room: int, stride: int
) -> None:
    found = windows(total, room=room, stride=stride)
    assert set().union(*(range(begin, end) for begin, end in found)) == set(range(total))
    assert [begin for begin, _ in found] == [k * min(stride, room) for k in range(len(found))]
    assert all(0 < end - begin <= room for begin, end in found) or total == 0


def test_windows_end_with_the_paragraph() -> None:
    assert windows(10, room=6, stride=3) == [(0, 6), (3, 9), (6, 10)]
    assert windows(6, room=6, stride=3) == [(0, 6)]
    assert windows(0, room=6, stride=3) == [(0, 0)]


def test_a_token_counts_in_the_window_that_shows_most_around_it() -> None:
    # Token 4 has 4 left and 1 right in the first window, 1 left and 4 right in the second: the
    # first keeps it.
    assert max_context([(0, 6), (3, 9), (6, 10)]) == [
        [1, 1, 1, 1, 1, 0],
        [0, 0, 1, 1, 1, 0],
        [0, 0, 1, 1],
    ]


@given(total=st.integers(0, 200), room=st.integers(1, 40), stride=st.integers(1, 50))
def test_every_token_counts_in_exactly_one_window(total: int, room: int, stride: int) -> None:
    found = windows(total, room=room, stride=stride)
    counts = [0] * total
    for (begin, _), flags in zip(found, max_context(found), strict=True):
        for place, flag in enumerate(flags, start=begin):
            counts[place] += flag
    assert counts == [1] * total


@pytest.fixture(scope="module")
def tokenizer() -> WordPiece:
    return tokenizer_of_words("cafe", "opens", "in", "北", "京", "at", "seven", "##teen", "!", "😀")


@pytest.mark.parametrize(
    ("context", "tokens"),
    [
        ("Café opens!", ["Café", "opens", "!"]),  # one character for é
        ("Cafe\u0301 opens", ["Cafe", "opens"]),  # two characters, of which the vocabulary sees one
        ("in 北京", ["in", "北", "京"]),
        (
            "😀 seventeen",
            ["😀", "seven", "teen"],
        ),  # one character, though two UTF-16 units and four bytes
        ("in\n\t at", ["in", "at"]),
    ],
)
def test_tokens_know_their_characters_in_the_original_text(
    tokenizer: WordPiece, context: str, tokens: list[str]
) -> None:
    ((_, _, paragraph),) = encode_questions([Question("", "", "at", context)], tokenizer)
    cut = [context[start:end] for start, end in zip(paragraph.starts, paragraph.ends, strict=True)]
    assert cut == tokens


def test_a_span_is_the_tokens_it_shares_characters_with(tokenizer: WordPiece) -> None:
    context = "Café opens at seventeen!"
    ((_, _, paragraph),) = encode_questions(
        [Question("", "", "at", context)], tokenizer
    )  # café opens at seven ##teen !
    assert paragraph.token_span((5, 13)) == (1, 2)
    assert paragraph.token_span((14, 18)) == (3, 3)  # "seve" is within one token
    assert paragraph.token_span((14, 23)) == (3, 4)
    assert paragraph.token_span((4, 5)) is None  # a space
    assert paragraph.token_span(None) is None


def test_questions_about_one_paragraph_share_its_tokens(tokenizer: WordPiece) -> None:
    first, second = encode_questions(
        [Question("", "1", "at", "seven"), Question("", "2", "in", "seven")], tokenizer
    )
    assert first[2] is second[2]
