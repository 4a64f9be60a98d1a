"""What a span is worth: exact match and F1 as SQuAD's evaluation counts them, and its search for a
threshold.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

ARTICLES = re.compile(r"\b(a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(answer: str) -> list[str]:
    """The words that count: no case, no punctuation (of ASCII), no articles."""
    return ARTICLES.sub(" ", answer.lower().translate(NO_PUNCTUATION)).split()


def exact_match(prediction: str, references: Sequence[str]) -> float:
    """1 if the prediction is one of the references; without references, if it is empty."""
    said = normalised(prediction)
    return float(any(said == reference for reference in countable(references)))


def f1(prediction: str, references: Sequence[str]) -> float:
    """The overlap in words with the reference that is nearest; without references, 1 if the
    prediction is empty.
    """
    said = normalised(prediction)
    return max(overlap(said, reference) for reference in countable(references))


def countable(references: Sequence[str]) -> list[list[str]]:
    """As the evaluation of 2.0 does for both versions: a reference of which nothing is left does
    not count.
    """
    return [words for words in map(normalised, references) if words] or [[]]


def overlap(said: list[str], reference: list[str]) -> float:
    if not said or not reference:
        return float(said == reference)
    common = sum((Counter(said) & Counter(reference)).values())
    return (
        2 * common / (len(said) + len(reference))
    )  # the harmonic mean of common/said and common/reference


def best_threshold(
    answered: Sequence[float], silent: Sequence[float], null_odds: Sequence[float]
) -> tuple[float, float]:
    """(best mean, threshold) where a question scores `silent` if its odds are above the threshold,
    else `answered`.

    One pass: from silence everywhere, questions are answered in the order of their odds. Equal odds
    go together, as no threshold can part them.
    """
    order = np.argsort(null_odds, kind="stable")
    odds = np.asarray(null_odds, dtype=np.float64)[order]
    gains = (
        np.asarray(answered, dtype=np.float64)[order] - np.asarray(silent, dtype=np.float64)[order]
    )
    totals = np.concatenate([[0.0], np.cumsum(gains)]) + np.sum(silent)
    thresholds = np.concatenate([[np.nextafter(odds[0], -np.inf)], odds])
    possible = np.concatenate([[True], odds[1:] != odds[:-1], [True]])
    best = np.flatnonzero(possible)[np.argmax(totals[possible])]
    return float(totals[best] / len(odds)), float(thresholds[best])
