"""Precision, recall and F1 of each class: those of scikit-learn, and a table of 80 columns."""

from __future__ import annotations

import io
from statistics import median

import numpy as np
import pytest
from rich.console import Console
from sklearn.metrics import precision_recall_fscore_support

from electra.tasks.class_scores import ClassScores, average_scores, class_scores, class_table


def of_class(label: str, f1: float, support: int = 1) -> ClassScores:
    return {"label": label, "precision": f1, "recall": f1, "f1": f1, "support": support}


def test_scores_equal_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    true, predicted = rng.random((2, 40, 4)) < 0.4
    true[:, 3] = False  # a class that does not occur
    expected = precision_recall_fscore_support(true, predicted, zero_division=0)
    found = class_scores(list("abcd"), true, predicted)
    for name, values in zip(("precision", "recall", "f1", "support"), expected, strict=True):
        assert [scores[name] for scores in found] == pytest.approx(list(values))


def test_over_seeds_each_score_has_its_median() -> None:
    runs = [[of_class("a", f1)] for f1 in (0.1, 0.9, 0.2)]
    assert average_scores(runs, median) == [of_class("a", 0.2)]
    assert average_scores([[of_class("a", 0.1)], []], median) == []  # a run of an earlier version


def test_a_table_shows_the_ten_most_frequent_classes_in_80_columns() -> None:
    classes = [of_class(f"{'label ' * 12}{n}", 0.5, support=n) for n in range(12)]
    screen = io.StringIO()
    Console(width=80, file=screen).print(class_table(classes))
    shown = screen.getvalue()
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.count("50.0") == 10 * 3
    assert "the 10 most frequent of 12 classes" in shown
