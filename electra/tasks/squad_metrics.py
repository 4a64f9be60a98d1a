"""Exact match and F1 as SQuAD's evaluation computes them, and its search for a threshold."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

ARTICLES = re.compile(r"\b(a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(answer: str) -> list[str]:
    """Return the words that count: no case, no punctuation (of ASCII), no articles."""
    return ARTICLES.sub(" ", answer.lower().translate(NO_PUNCTUATION)).split()


def exact_match(prediction: str, references: Sequence[str]) -> float:
    """Return 1 if the prediction is one of the references; without references, if it is empty."""
    predicted = normalize_answer(prediction)
    return float(any(predicted == reference for reference in normalize_references(references)))


def f1(prediction: str, references: Sequence[str]) -> float:
    """Return the overlap in words with the nearest reference; without one, 1 for no prediction."""
    predicted = normalize_answer(prediction)
    return max(word_f1(predicted, reference) for reference in normalize_references(references))


def normalize_references(references: Sequence[str]) -> list[list[str]]:
    """Drop references of which nothing is left, as the evaluation of 2.0 does for both versions."""
    return [words for words in map(normalize_answer, references) if words] or [[]]


def word_f1(predicted: list[str], reference: list[str]) -> float:
    if not predicted or not reference:
        return float(predicted == reference)
    common = sum((Counter(predicted) & Counter(reference)).values())
    # The harmonic mean of common/predicted and common/reference.
    return 2 * common / (len(predicted) + len(reference))


def best_threshold(
    answered: Sequence[float], silent: Sequence[float], null_odds: Sequence[float]
) -> tuple[float, float]:
    """Return the best mean score and its threshold.

    A question scores `silent` if its odds are above the threshold, otherwise `answered`. One pass:
    from silence everywhere, questions are answered in the order of their odds. Equal odds go
    together, as no threshold can separate them.
    """
    order = np.argsort(null_odds, kind="stable")
    odds = np.asarray(null_odds, dtype=np.float64)[order]
    answered_scores = np.asarray(answered, dtype=np.float64)[order]
    silent_scores = np.asarray(silent, dtype=np.float64)[order]
    gains = answered_scores - silent_scores
    totals = np.concatenate([[0.0], np.cumsum(gains)]) + np.sum(silent)
    thresholds = np.concatenate([[np.nextafter(odds[0], -np.inf)], odds])
    possible = np.concatenate([[True], odds[1:] != odds[:-1], [True]])
    best = np.flatnonzero(possible)[np.argmax(totals[possible])]
    return float(totals[best] / len(odds)), float(thresholds[best])
