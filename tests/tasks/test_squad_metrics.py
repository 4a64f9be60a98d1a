"""Exact match and F1 against values worked by hand; the threshold against its definition."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra.tasks.squad_metrics import best_threshold, exact_match, f1, normalize_answer


def test_case_punctuation_articles_and_spaces_do_not_count() -> None:
    assert normalize_answer("  The U.S.A.'s  an-swer, a\tTheory ") == ["usas", "answer", "theory"]
    assert normalize_answer("“Über” the top") == [
        "“über”",
        "top",
    ]  # only ASCII punctuation, as the evaluation has it


@pytest.mark.parametrize(
    ("prediction", "references", "exact", "overlap"),
    [
        ("the Alps", ["Alps"], 1, 1),
        ("Alps", ["the Swiss Alps"], 0, 2 / 3),  # precision 1/1, recall 1/2
        (
            "in the Swiss Alps",
            ["Alps of France"],
            0,
            2 / 6,
        ),  # in swiss alps / alps of france: 1/3 and 1/3
        (
            "very very old",
            ["very old"],
            0,
            4 / 5,
        ),  # a word counts as often as both have it: 2/3 and 2/2
        ("Jura", ["Alps"], 0, 0),
        ("Jura", ["Alps", "the Jura"], 1, 1),  # the best of the references
        ("", ["Alps"], 0, 0),
        ("", [], 1, 1),  # no answer, and none was to be found
        ("Alps", [], 0, 0),
        ("The", ["The"], 1, 1),  # nothing is left of either
        ("a", [], 1, 1),  # nothing is left of the prediction
    ],
)
def test_exact_match_and_f1_are_those_worked_by_hand(
    prediction: str, references: list[str], exact: float, overlap: float
) -> None:
    assert exact_match(prediction, references) == exact
    assert f1(prediction, references) == pytest.approx(overlap)


def test_the_threshold_is_worked_out_by_hand() -> None:
    # Sorted by odds: right 1, right 0.5, (unanswerable) −1, right 1. Silence everywhere scores 1 of
    # 4.
    best, threshold = best_threshold(
        [0.5, 0.0, 1.0, 1.0], [0.0, 1.0, 0.0, 0.0], [-1.0, 2.0, -3.0, 4.0]
    )
    assert (best, threshold) == ((1 + 1 + 0.5) / 4, -1.0)


def test_where_silence_is_best_the_threshold_is_below_all_odds() -> None:
    best, threshold = best_threshold([0.0, 0.0], [1.0, 1.0], [-5.0, 3.0])
    assert best == 1.0
    assert -5.1 < threshold < -5.0


eighths = st.integers(0, 8).map(lambda n: n / 8)


@given(
    st.lists(
        st.tuples(eighths, st.sampled_from([0.0, 1.0]), st.integers(-4, 4).map(float)), min_size=1
    )
)
def test_the_search_finds_what_trying_every_threshold_finds(
    questions: list[tuple[float, float, float]],
) -> None:
    def mean_at(threshold: float) -> float:
        return sum(
            silent if odds > threshold else answered for answered, silent, odds in questions
        ) / len(questions)

    answered, silent, odds = zip(*questions, strict=True)
    best, threshold = best_threshold(answered, silent, odds)
    assert best == pytest.approx(max(map(mean_at, (-math.inf, *odds))))
    assert mean_at(threshold) == pytest.approx(best)
