"""What an objective returns for a batch: a loss, and metric sums that add up over batches."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

BINS = 4096  # of the discriminator's logits, clipped to ±CLIP; ties in a bin cost AUC below 1e-4
CLIP = 16.0
# The scores of a histogram that there are only where it has tokens of both classes.
OF_BOTH_CLASSES = {"auc", "average_precision", "precision", "recall", "rtd_accuracy"}


class Loss(NamedTuple):
    """This micro-batch's share of the step's mean loss.

    The shares of all micro-batches of a step add up to it.
    """

    total: Tensor
    parts: dict[str, Tensor]


class MetricSums:
    """Sums and counts of metrics, and a histogram of RTD logits for each class.

    They add up over batches and processes; `scores` divides.
    """

    def __init__(self, means: dict[str, Tensor], histogram: Tensor | None = None) -> None:
        self.means = means  # name → [sum, count]
        self.histogram = histogram  # [2, BINS]: logits of original and of replaced tokens

    def __add__(self, other: MetricSums) -> MetricSums:
        means = {name: pair + other.means[name] for name, pair in self.means.items()}
        if self.histogram is None or other.histogram is None:
            return MetricSums(means)
        return MetricSums(means, self.histogram + other.histogram)

    def tensors(self) -> list[Tensor]:
        """Return everything that adds up, for an all_reduce in place."""
        tensors = list(self.means.values())
        if self.histogram is not None:
            tensors.append(self.histogram)
        return tensors

    def scores(self) -> dict[str, float]:
        scores = {name: float(total / count) for name, (total, count) in self.means.items()}
        if self.histogram is None:
            return scores
        return {**scores, **rtd_scores(self.histogram.cpu().double())}


def sum_and_count(values: Tensor, where: Tensor) -> Tensor:
    """Return [sum, count] of the values that are scored, in float64."""
    total = (values * where).sum(dtype=torch.float64)
    return torch.stack([total, where.sum(dtype=torch.float64)])


def rtd_histogram(disc_logits: Tensor, is_replaced: Tensor, weights: Tensor) -> Tensor:
    """Return [2, BINS]: how often each logit was given to an original and to a replaced token.

    Zero is the edge of a bin.
    """
    bins = ((disc_logits.float() + CLIP) * (BINS / (2 * CLIP))).long().clamp(0, BINS - 1)
    counts = torch.zeros(2 * BINS, dtype=torch.float64, device=disc_logits.device)
    counts.scatter_add_(0, (bins + BINS * is_replaced).flatten(), weights.flatten().double())
    return counts.view(2, BINS)


def rtd_scores(histogram: Tensor) -> dict[str, float]:
    """Return AUC, average precision, precision, recall and accuracy at ½, and their baselines.

    `baseline_rtd_loss` is the entropy of the replaced fraction: the loss of a discriminator that
    knows nothing else. `logit_std` is the standard deviation of the logits.
    """
    original, replaced = histogram
    negatives, positives = float(original.sum()), float(replaced.sum())
    fraction = positives / (positives + negatives)
    scores = {
        "replaced_fraction": fraction,
        "baseline_rtd_loss": entropy(fraction),
        "baseline_accuracy": max(fraction, 1 - fraction),
        "logit_std": standard_deviation(histogram.sum(0)),
    }
    if not positives or not negatives:
        return scores
    above = replaced.flip(0).cumsum(0).flip(0) - replaced
    auc = float((original * (above + replaced / 2)).sum()) / (positives * negatives)
    true_positives = replaced.flip(0).cumsum(0)
    predicted_positives = histogram.sum(0).flip(0).cumsum(0)
    precisions = replaced.flip(0) * true_positives / predicted_positives.clamp(min=1)
    half = BINS // 2
    hits, flagged = float(replaced[half:].sum()), float(histogram[:, half:].sum())
    precision = 0.0
    if flagged:
        precision = hits / flagged
    correct = hits + float(original[:half].sum())
    return {
        **scores,
        "auc": auc,
        "average_precision": float(precisions.sum()) / positives,
        "precision": precision,
        "recall": hits / positives,
        "rtd_accuracy": correct / (positives + negatives),
    }


def standard_deviation(counts: Tensor) -> float:
    """Return the standard deviation of logits that are counted by bin; of one bin alone it is 0."""
    logits = (torch.arange(BINS, dtype=counts.dtype) + 0.5) * (2 * CLIP / BINS) - CLIP
    mean = (counts * logits).sum() / counts.sum()
    return math.sqrt((counts * (logits - mean).square()).sum() / counts.sum())


def entropy(fraction: float) -> float:
    return -sum(p * math.log(p) for p in (fraction, 1 - fraction) if p > 0)
