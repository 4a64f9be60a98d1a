"""What a score is, for classes and for numbers. Every one is finite, whatever a model answers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from electra.tasks.features import Array

Metric = Callable[[Array, Array], float]  # the true answers, the given ones


def accuracy(true: Array, given: Array) -> float:
    return float(np.mean(true == given)) if len(true) else 0.0


def f1(true: Array, given: Array) -> float:
    """Of class 1, the positive one, where there are two."""
    from sklearn.metrics import f1_score

    return float(f1_score(true, given, pos_label=1, zero_division=0)) if len(true) else 0.0


def f1_macro(true: Array, given: Array) -> float:
    """Each class counts the same, however rare."""
    from sklearn.metrics import f1_score

    return float(f1_score(true, given, average="macro", zero_division=0)) if len(true) else 0.0


def matthews_correlation(true: Array, given: Array) -> float:
    from sklearn.metrics import matthews_corrcoef

    return 0.0 if constant(true) or constant(given) else float(matthews_corrcoef(true, given))


def pearson(true: Array, given: Array) -> float:
    from scipy.stats import pearsonr

    return correlation(pearsonr, true, given)


def spearmanr(true: Array, given: Array) -> float:
    from scipy import stats

    return correlation(stats.spearmanr, true, given)


METRICS: dict[str, Metric] = {
    metric.__name__: metric
    for metric in (accuracy, f1, f1_macro, matthews_correlation, pearson, spearmanr)
}
OF_NUMBERS = ("spearmanr", "pearson")  # of a regression; the others are of classes


def correlation(
    measure: Callable[[Array, Array], tuple[float, float]], true: Array, given: Array
) -> float:
    """Nothing correlates with a constant: 0, where the formula divides by 0. So too where a model
    answers NaN.
    """
    if constant(true) or constant(given):
        return 0.0
    found = float(measure(true.astype(np.float64), given.astype(np.float64))[0])
    return found if math.isfinite(found) else 0.0


def constant(values: Array) -> bool:
    return len(values) < 2 or bool(np.all(values == values[0]))
