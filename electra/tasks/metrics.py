"""Scores of classifications and regressions. Each is finite, whatever a model answers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from electra.tasks.features import Array

Metric = Callable[[Array, Array], float]  # the true answers, the predicted ones
WORST_ERROR = 1e9  # of answers that are not finite


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


def mae(true: Array, predicted: Array) -> float:
    """Compute the mean absolute error, in the labels' unit."""
    return mean_error(true, predicted, power=1)


def rmse(true: Array, predicted: Array) -> float:
    """Compute the root of the mean squared error, in the labels' unit."""
    return math.sqrt(mean_error(true, predicted, power=2))


def r2(true: Array, predicted: Array) -> float:
    """Compute the share of the labels' variance that the answers explain; 0 where there is none."""
    if is_constant(true):
        return 0.0
    variance = float(np.var(true.astype(np.float64)))
    return 1.0 - mean_error(true, predicted, power=2) / variance


def roc_auc(true: Array, probabilities: Array) -> float:
    """Compute the chance that a row of class 1 gets a higher probability of it than one of class 0.

    It is 0.5 where only one of them occurs: nothing is to be told apart.
    """
    from sklearn.metrics import roc_auc_score

    if is_constant(true):
        return 0.5
    return float(roc_auc_score(true, np.nan_to_num(probabilities)))


def average_precision(true: Array, probabilities: Array) -> float:
    """Compute the area under the curve of precision over recall; 0 without a row of class 1."""
    from sklearn.metrics import average_precision_score

    if not np.any(true):
        return 0.0
    return float(average_precision_score(true, np.nan_to_num(probabilities)))


METRICS: dict[str, Metric] = {
    metric.__name__: metric
    for metric in (
        accuracy,
        f1,
        f1_macro,
        matthews_correlation,
        pearson,
        spearmanr,
        mae,
        rmse,
        r2,
        roc_auc,
        average_precision,
    )
}
REGRESSION_METRICS = ("spearmanr", "pearson")  # those of STS-B
SCORE_METRICS = (*REGRESSION_METRICS, "mae", "rmse", "r2")  # the others are of classifications
TWO_CLASS_METRICS = ("f1", "roc_auc", "average_precision")
PROBABILITY_METRICS = ("roc_auc", "average_precision")  # of the probability of class 1
LOWER_IS_BETTER = ("mae", "rmse")


# Which labels are there and how probable each is, both [N, labels]; the probability to give one.
MultiLabelMetric = Callable[[Array, Array, float], float]


def multi_f1_micro(true: Array, probabilities: Array, threshold: float) -> float:
    """Compute the F1 of all labels of all examples together."""
    from sklearn.metrics import f1_score

    given = probabilities >= threshold
    return float(f1_score(true.ravel(), given.ravel(), zero_division=0))


def multi_f1_macro(true: Array, probabilities: Array, threshold: float) -> float:
    """Compute the mean of the labels' F1."""
    from sklearn.metrics import f1_score

    given = probabilities >= threshold
    columns = range(true.shape[1])
    return float(np.mean([f1_score(true[:, i], given[:, i], zero_division=0) for i in columns]))


def exact_match(true: Array, probabilities: Array, threshold: float) -> float:
    """Compute the share of examples whose labels are all right: subset accuracy."""
    return float(np.mean(np.all(true == (probabilities >= threshold), axis=1)))


def multi_roc_auc(true: Array, probabilities: Array, threshold: float) -> float:
    """Compute the mean of the labels' ROC AUC, over labels that some examples have and some not."""
    pairs = [(true[:, i], probabilities[:, i]) for i in range(true.shape[1])]
    areas = [roc_auc(*pair) for pair in pairs if not is_constant(pair[0])]
    if not areas:
        return 0.5
    return float(np.mean(areas))


MULTI_LABEL_METRICS: dict[str, MultiLabelMetric] = {
    "f1_micro": multi_f1_micro,
    "f1_macro": multi_f1_macro,
    "exact_match": exact_match,
    "roc_auc": multi_roc_auc,
}


def direction(metric: str) -> int:
    """Return 1 where more is better, −1 for an error."""
    if metric in LOWER_IS_BETTER:
        return -1
    return 1


def mean_error(true: Array, predicted: Array, *, power: int) -> float:
    """Compute the mean of a power of the errors; WORST_ERROR where it is not finite, 0 of none."""
    if not len(true):
        return 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(np.mean(np.abs(true.astype(np.float64) - predicted) ** power))
    if not math.isfinite(mean):
        return WORST_ERROR
    return mean


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
