"""Tallies add up, and their scores are scikit-learn's."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.metrics import average_precision_score, precision_score, recall_score, roc_auc_score

from electra.objectives.measures import MetricSums, entropy, rtd_histogram, sum_and_count
from electra.objectives.metrics import RTD_METRICS


def random_logits(seed: int, *, count: int = 3000):
    rng = torch.Generator().manual_seed(seed)
    replaced = torch.rand(1, count, generator=rng) < 0.1
    logits = torch.randn(1, count, generator=rng) - 2 + 1.5 * replaced
    attention_mask = torch.rand(1, count, generator=rng) < 0.9
    return logits, replaced, attention_mask


def test_detection_scores_are_those_of_scikit_learn():
    logits, replaced, attention_mask = random_logits(0)
    scores = MetricSums({}, rtd_histogram(logits, replaced, attention_mask)).scores()
    truth, given = replaced[attention_mask].numpy(), logits[attention_mask].numpy()
    assert scores["auc"] == pytest.approx(roc_auc_score(truth, given), abs=1e-3)
    assert scores["average_precision"] == pytest.approx(
        average_precision_score(truth, given), abs=2e-3
    )
    assert scores["precision"] == pytest.approx(precision_score(truth, given > 0))
    assert scores["recall"] == pytest.approx(recall_score(truth, given > 0))
    assert scores["replaced_fraction"] == pytest.approx(truth.mean())
    assert scores["logit_std"] == pytest.approx(given.std(), rel=1e-3)


def test_tallies_of_two_halves_add_up_to_the_whole():
    logits, replaced, attention_mask = random_logits(1)
    whole = MetricSums(
        {"x": sum_and_count(logits, attention_mask)},
        rtd_histogram(logits, replaced, attention_mask),
    )
    first, second = (
        MetricSums(
            {"x": sum_and_count(logits[:, part], attention_mask[:, part])},
            rtd_histogram(logits[:, part], replaced[:, part], attention_mask[:, part]),
        )
        for part in (slice(0, 1000), slice(1000, None))
    )
    assert (first + second).scores() == pytest.approx(whole.scores())


def test_a_detector_that_says_the_same_of_everything_is_a_coin():
    _, replaced, attention_mask = random_logits(2)
    scores = MetricSums(
        {},
        rtd_histogram(
            torch.full_like(attention_mask, -3.0, dtype=torch.float32), replaced, attention_mask
        ),
    ).scores()
    assert scores["auc"] == pytest.approx(0.5)
    assert scores["average_precision"] == pytest.approx(scores["replaced_fraction"])
    assert scores["logit_std"] == 0.0
    assert (scores["precision"], scores["recall"]) == (0.0, 0.0)


def test_the_trivial_loss_is_the_entropy_of_the_replaced_share():
    assert entropy(0.1) == pytest.approx(-0.1 * math.log(0.1) - 0.9 * math.log(0.9))
    assert entropy(0.0) == 0.0


def test_nothing_replaced_gives_no_ranking_scores_rather_than_a_guess():
    logits, replaced, attention_mask = random_logits(3)
    scores = MetricSums(
        {}, rtd_histogram(logits, torch.zeros_like(replaced), attention_mask)
    ).scores()
    assert "auc" not in scores
    assert scores["replaced_fraction"] == 0.0


@pytest.mark.parametrize("mean", [0.0, -2.1640625, -2.168, 15.9])
def test_equal_logits_have_collapsed_wherever_the_edge_of_a_bin_is(mean: float):
    logits = torch.full((1, 1000), mean) + 1e-4 * torch.randn(1, 1000)
    replaced = torch.arange(1000)[None] < 100
    scores = MetricSums({}, rtd_histogram(logits, replaced, torch.ones(1, 1000))).scores()
    scores["rtd_loss"] = 0.33
    assert RTD_METRICS[0].has_collapsed(scores)
    assert not RTD_METRICS[0].has_collapsed({**scores, "logit_std": 0.03}), "not begun to learn"
