"""Class weights: those of scikit-learn, the loss of torch, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.utils.class_weight import compute_class_weight

from electra.config import UserError
from electra.tasks import find_task
from electra.tasks.class_weights import balanced_weights, parse_weights, positive_weights
from electra.tasks.features import TaskBatch
from electra.tasks.texts import Text
from tests.tasks.toys import toy_tokenizer
from tests.wording import wording_of

wording = wording_of(__file__)

WIDTH = 8


def fitted(labels: Sequence[str], **options: Any) -> tuple[Any, list[Text]]:
    examples = [Text(f"a.csv:{n}", "the dog", None, label) for n, label in enumerate(labels, 2)]
    task = find_task("classify", **options).fit_labels(examples)
    return task.fit_weights(examples), examples


def mean_loss(task: Any, examples: list[Text]) -> tuple[float, torch.Tensor, torch.Tensor]:
    """The loss as it is reported, and the logits and targets that it is of."""
    features = task.features(examples, toy_tokenizer(), length=16, training=True)
    labels = features.collate(np.arange(len(features))).labels
    torch.manual_seed(0)
    hidden, mask = torch.randn(len(features), 3, WIDTH), torch.ones(len(features), 3)
    batch = TaskBatch(mask.long(), mask.long(), mask.bool(), labels)
    head = task.head(WIDTH, dropout=0.0)
    loss = head.loss(hidden, batch).item() / task.weight(features).sum()
    return loss, head.logits(hidden[:, 0]), labels["target"]


def test_balanced_weights_equal_those_of_scikit_learn() -> None:
    labels = [0] * 7 + [1] * 2 + [2]
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    assert balanced_weights([7, 2, 1]) == pytest.approx(tuple(expected))
    assert balanced_weights([4, 0]) == (0.5, 1.0)


def test_the_weighted_loss_equals_that_of_torch() -> None:
    task, examples = fitted("aabac", class_weights="a=2,c=0.5")
    assert task.label_weights == (2.0, 1.0, 0.5)
    loss, logits, target = mean_loss(task, examples)
    expected = F.cross_entropy(logits, target, weight=torch.tensor([2.0, 1.0, 0.5]))
    assert loss == pytest.approx(expected.item(), rel=1e-6)


def test_the_loss_of_several_labels_equals_that_of_torch() -> None:
    labels = ["a|b", "a", "", "c", "a|c"]
    plain, examples = fitted(labels, multi_label=True)
    loss, logits, target = mean_loss(plain, examples)
    assert target.shape == (5, 3)
    assert loss == pytest.approx(F.binary_cross_entropy_with_logits(logits, target).item())
    weighted, examples = fitted(labels, multi_label=True, class_weights="balanced")
    weights = [2 / 3, 4 / 1, 3 / 2]  # rows without the label to rows with it
    assert weighted.label_weights == pytest.approx(tuple(weights))
    loss, logits, target = mean_loss(weighted, examples)
    expected = F.binary_cross_entropy_with_logits(logits, target, pos_weight=torch.tensor(weights))
    assert loss == pytest.approx(expected.item(), rel=1e-6)


def test_a_label_that_every_row_has_weighs_1() -> None:
    assert positive_weights([5, 0, 1], 5) == (1.0, 1.0, 4.0)


def test_labels_with_commas_are_given_as_json() -> None:
    assert parse_weights('{"a,b": 2, "c=d": 3}', ["a,b", "c=d"]) == (2.0, 3.0)
    assert parse_weights("c=d=3", ["c=d"]) == (3.0,)


@pytest.mark.parametrize(
    ("given", "key"),
    [("d=2", "unknown"), ("a", "no_weight"), ("a=0", "not_positive"), ("{a", "no_json")],
)
def test_a_weight_that_cannot_be_is_refused(given: str, key: str) -> None:
    with pytest.raises(UserError, match=wording(f"a_weight_that_cannot_be_is_refused_{key}")):
        fitted("aabac", class_weights=given)


def test_scores_have_no_class_weights() -> None:
    with pytest.raises(UserError, match="--class-weights is for classes"):
        fitted(["0.5", "1", "2"], class_weights="balanced")
