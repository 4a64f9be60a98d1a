"""Scores of classifications and regressions. Each is finite, whatever a model answers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from electra.tasks.features import Array

Metric = Callable[[Array, Array], float]  # the true answers, the predicted ones


def accuracy(true: Array, predicted: Array) -> float:
    if not len(true):
        return 0.0
    return float(np.mean(true == predicted))


def f1(true: Array, predicted: Array) -> float:
    """Compute the F1 of class 1, the positive one of two."""
    from sklearn.metrics import f1_score

    if not len(true):
        return 0.0
    return float(f1_score(true, predicted, pos_label=1, zero_division=0))


def f1_macro(true: Array, predicted: Array) -> float:
    """Compute the mean of the classes' F1: each counts the same, however rare."""
    from sklearn.metrics import f1_score

    if not len(true):
        return 0.0
    return float(f1_score(true, predicted, average="macro", zero_division=0))


def matthews_correlation(true: Array, predicted: Array) -> float:
    from sklearn.metrics import matthews_corrcoef

    if is_constant(true) or is_constant(predicted):
        return 0.0
    return float(matthews_corrcoef(true, predicted))


def pearson(true: Array, predicted: Array) -> float:
    from scipy.stats import pearsonr

    return correlation(pearsonr, true, predicted)


def spearmanr(true: Array, predicted: Array) -> float:
    from scipy import stats

    return correlation(stats.spearmanr, true, predicted)


METRICS: dict[str, Metric] = {
    metric.__name__: metric
    for metric in (accuracy, f1, f1_macro, matthews_correlation, pearson, spearmanr)
}
REGRESSION_METRICS = ("spearmanr", "pearson")  # the others are of classifications


def correlation(
    measure: Callable[[Array, Array], tuple[float, float]], true: Array, predicted: Array
) -> float:
    """Compute a correlation; 0 where either side is constant (the formula divides by 0) or NaN."""
    if is_constant(true) or is_constant(predicted):
        return 0.0
    value = float(measure(true.astype(np.float64), predicted.astype(np.float64))[0])
    if not math.isfinite(value):
        return 0.0
    return value


def is_constant(values: Array) -> bool:
    return len(values) < 2 or bool(np.all(values == values[0]))
