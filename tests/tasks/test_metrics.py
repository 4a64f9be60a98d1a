from __future__ import annotations

import math

import numpy as np
import pytest

from electra.tasks.metrics import (
    METRICS,
    accuracy,
    average_precision,
    f1,
    f1_macro,
    matthews_correlation,
    pearson,
    roc_auc,
    spearmanr,
)

TRUE = np.array([1, 1, 1, 0, 0, 0, 0, 1])
GIVEN = np.array(
    [1, 1, 0, 0, 0, 1, 0, 1]
)  # 3 true positives, 1 false positive, 1 false negative, 3 true negatives


def test_accuracy_is_the_share_of_right_answers() -> None:
    assert accuracy(TRUE, GIVEN) == 6 / 8


def test_f1_is_of_the_positive_class() -> None:
    assert f1(TRUE, GIVEN) == pytest.approx(2 * 3 / (2 * 3 + 1 + 1))
    assert f1(np.array([0, 0, 1]), np.array([0, 0, 0])) == 0.0


def test_macro_f1_counts_a_rare_class_as_much_as_a_common_one() -> None:
    # Class 0: precision 2/3, recall 1, F1 0.8; class 1: never given, 0; class 2: all right, 1.
    assert f1_macro(np.array([0, 0, 1, 2]), np.array([0, 0, 0, 2])) == pytest.approx(
        (0.8 + 0 + 1) / 3
    )


def test_matthews_correlation_equals_its_definition() -> None:
    assert matthews_correlation(TRUE, GIVEN) == pytest.approx(
        (3 * 3 - 1 * 1) / math.sqrt(4 * 4 * 4 * 4)
    )


def test_pearson_is_of_values_and_spearman_of_ranks() -> None:
    true, given = np.array([0.0, 1.0, 2.0, 5.0]), np.array([0.0, 1.0, 4.0, 25.0])
    # Deviations −2 −1 0 3 and −7.5 −6.5 −3.5 17.5: 74 / √(14 · 417)
    assert pearson(true, given) == pytest.approx(74 / math.sqrt(14 * 417))
    assert spearmanr(true, given) == pytest.approx(1.0)
    assert spearmanr(true, -given) == pytest.approx(-1.0)


def test_tied_scores_share_their_rank() -> None:
    # Ranks 1 2.5 2.5 4 against 1 2 3 4: 4.5 / √(4.5 · 5)
    assert spearmanr(np.array([1.0, 2, 2, 3]), np.array([1.0, 2, 3, 4])) == pytest.approx(
        4.5 / math.sqrt(4.5 * 5)
    )


@pytest.mark.parametrize("name", ["matthews_correlation", "pearson", "spearmanr"])
@pytest.mark.filterwarnings("error")
def test_nothing_correlates_with_a_constant(name: str) -> None:
    varied, constant = np.array([0.0, 1.0, 1.0]), np.array([1.0, 1.0, 1.0])
    assert METRICS[name](varied, constant) == METRICS[name](constant, varied) == 0.0


@pytest.mark.parametrize("name", METRICS)
def test_no_examples_and_one_example_give_a_finite_score(name: str) -> None:
    for count in (0, 1):
        assert math.isfinite(METRICS[name](np.zeros(count), np.zeros(count)))


def test_answers_that_are_no_numbers_score_nothing() -> None:
    assert pearson(np.array([0.0, 1.0, 2.0]), np.array([np.nan, 1.0, np.nan])) == 0.0


def test_errors_of_scores_equal_those_of_scikit_learn() -> None:
    from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

    rng = np.random.default_rng(0)
    true = rng.normal(3.0, 2.0, 50)
    given = true + rng.normal(0.0, 1.0, 50)
    assert METRICS["mae"](true, given) == pytest.approx(mean_absolute_error(true, given))
    assert METRICS["rmse"](true, given) == pytest.approx(root_mean_squared_error(true, given))
    assert METRICS["r2"](true, given) == pytest.approx(r2_score(true, given))


@pytest.mark.parametrize("name", ["mae", "rmse", "r2"])
@pytest.mark.filterwarnings("error")
def test_a_score_of_answers_that_are_not_finite_is_finite_and_bad(name: str) -> None:
    true = np.array([0.0, 1.0, 2.0])
    for broken in (np.nan, np.inf, 1e200):
        value = METRICS[name](true, np.array([0.0, broken, 2.0]))
        assert math.isfinite(value)
        assert value != METRICS[name](true, true)


@pytest.mark.filterwarnings("error")
def test_two_classes_that_cannot_be_told_apart_have_an_auc_of_one_half() -> None:
    assert roc_auc(np.array([0, 1, 1]), np.array([0.5, 0.5, 0.5])) == 0.5
    assert roc_auc(np.array([1, 1]), np.array([0.1, 0.9])) == 0.5  # one class alone
    assert roc_auc(np.array([0, 0, 1, 1]), np.array([0.1, 0.4, 0.35, 0.8])) == 0.75
    assert math.isfinite(roc_auc(np.array([0, 1]), np.array([np.nan, 0.5])))


def test_average_precision_is_the_mean_precision_at_each_positive() -> None:
    found = average_precision(np.array([0, 0, 1, 1]), np.array([0.1, 0.4, 0.35, 0.8]))
    assert found == pytest.approx((1 / 1 + 2 / 3) / 2)
    assert average_precision(np.array([0, 0]), np.array([0.1, 0.4])) == 0.0
