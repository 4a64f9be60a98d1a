"""What an objective says of a batch: a loss to descend, and tallies that add up over batches and
processes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

BINS = (
    4096  # of the detector's logits, clipped to ±REACH; ties inside a bin cost AUC less than 1e-4
)
REACH = 16.0


class Loss(NamedTuple):
    """This micro-batch's share of the step's mean loss: shares of all micro-batches of a step add
    up to it.
    """

    total: Tensor
    parts: dict[str, Tensor]


class Tally:
    """Sums that mean something only as quotients, and a histogram of a detector's logits for each
    true class.
    """

    def __init__(self, quotients: dict[str, Tensor], detections: Tensor | None = None) -> None:
        self.quotients = quotients  # name → [sum, count]
        self.detections = detections  # [2, BINS]: logits of originals, logits of replaced tokens

    def __add__(self, other: Tally) -> Tally:
        quotients = {name: pair + other.quotients[name] for name, pair in self.quotients.items()}
        if self.detections is None or other.detections is None:
            return Tally(quotients)
        return Tally(quotients, self.detections + other.detections)

    def tensors(self) -> list[Tensor]:
        """Everything that adds up, for a reduction over processes in place."""
        return [*self.quotients.values(), *([] if self.detections is None else [self.detections])]

    def scores(self) -> dict[str, float]:
        scores = {name: float(total / count) for name, (total, count) in self.quotients.items()}
        return (
            scores
            if self.detections is None
            else {**scores, **detection_scores(self.detections.cpu().double())}
        )


def quotient(values: Tensor, where: Tensor) -> Tensor:
    """[sum, count] of the values that count."""
    return torch.stack([(values * where).sum(dtype=torch.float64), where.sum(dtype=torch.float64)])


def detections(logits: Tensor, replaced: Tensor, attention_mask: Tensor) -> Tensor:
    """[2, BINS] how often each logit was given to an original and to a replaced token. Zero is the
    edge of a bin.
    """
    bins = ((logits.float() + REACH) * (BINS / (2 * REACH))).long().clamp(0, BINS - 1)
    counts = torch.zeros(2 * BINS, dtype=torch.float64, device=logits.device)
    counts.scatter_add_(0, (bins + BINS * replaced).flatten(), attention_mask.flatten().double())
    return counts.view(2, BINS)


def detection_scores(counts: Tensor) -> dict[str, float]:
    """AUC, average precision, and precision / recall / accuracy at one half; what a constant answer
    would score beside.

    `baseline_rtd_loss` is the entropy of the replaced share: the loss of a detector that knows
    nothing else.
    """
    original, replaced = counts
    negatives, positives = float(original.sum()), float(replaced.sum())
    share = positives / (positives + negatives)
    scores = {
        "replaced_fraction": share,
        "baseline_rtd_loss": entropy(share),
        "baseline_accuracy": max(share, 1 - share),
    }
    if not positives or not negatives:
        return scores
    above = replaced.flip(0).cumsum(0).flip(0) - replaced
    auc = float((original * (above + replaced / 2)).sum()) / (positives * negatives)
    caught, flagged = replaced.flip(0).cumsum(0), counts.sum(0).flip(0).cumsum(0)
    average_precision = float((replaced.flip(0) * caught / flagged.clamp(min=1)).sum()) / positives
    half = BINS // 2
    hits, alarms = float(replaced[half:].sum()), float(counts[:, half:].sum())
    return {
        **scores,
        "auc": auc,
        "average_precision": average_precision,
        "precision": hits / alarms if alarms else 0.0,
        "recall": hits / positives,
        "rtd_accuracy": (hits + float(original[:half].sum())) / (positives + negatives),
    }


def entropy(share: float) -> float:
    return -sum(p * math.log(p) for p in (share, 1 - share) if p > 0)
