"""The held-out numbers that objectives report, each beside its baseline. No torch.

A baseline is what an answer that ignores the context would score: it knows how frequent each word
is, copies what it reads, or always says the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

# A network has left the plateau when its held-out loss is below this fraction of its baseline's.
PLATEAU_RATIO = 0.97
# Of a masked LM. On the plateau its loss goes on falling, to 0.905 of the baseline's in 62,500
# steps, while it predicts 1.4 points more words than the baseline (docs/log.md).
MLM_PLATEAU_RATIO = 0.88
# Logits with a smaller standard deviation are one answer for all tokens, if their AUC is at most so
# far from chance: equal ones are counted in at most two bins, which gives 0.004. Of a network that
# learns the deviation is about one, of one that has not begun some hundredths. At a rate of 3e-3
# one was below the limit for some steps, with an AUC of 0.68, and came back.
COLLAPSED_STD = 0.005
COLLAPSED_AUC = 0.05
# The training losses that objectives report, by their keys in metrics.jsonl.
LOSS_TITLES = {
    "mlm": "generator loss",
    "rtd": "discriminator loss",
    "restore": "encoder loss",
    "lm": "next-word loss",
    "nsp": "next-sentence loss",
    "reward": "generator reward",
    "baseline": "error of the expected reward",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One held-out number of a network."""

    name: str  # its key in metrics.jsonl, after the prefix eval_
    title: str
    network: str  # the network whose number it is
    baseline: str | float  # the key of its baseline, or the baseline itself
    form: str = "{:.3f}"
    # A loss not below this fraction of its baseline: the network has learned little or nothing.
    plateau_ratio: float | None = None
    predicts: str = ""  # what a network with such a loss predicts
    plateau_meaning: str = ""  # what the network does there
    baseline_answer: str = "without looking at the context"  # how the baseline answers
    spread: str = ""  # the key of how much the network's answers differ from token to token
    is_shown: bool = True  # in the terminal, while a run trains

    def baseline_in(self, scores: Mapping[str, float]) -> float | None:
        """Return the baseline's value, None where `scores` lack it."""
        if isinstance(self.baseline, str):
            return scores.get(self.baseline)
        return self.baseline

    def is_at_baseline(self, scores: Mapping[str, float]) -> bool:
        """Return whether the network has learned nothing by this metric."""
        baseline = self.baseline_in(scores)
        if self.plateau_ratio is None or baseline is None or self.name not in scores:
            return False
        return not scores[self.name] < self.plateau_ratio * baseline

    def has_collapsed(self, scores: Mapping[str, float]) -> bool:
        """Return whether the network gives all tokens one answer."""
        if not math.isfinite(scores.get(self.name, math.nan)):
            return False
        is_chance = abs(scores.get("auc", 0.5) - 0.5) < COLLAPSED_AUC
        return is_chance and scores.get(self.spread, 1.0) < COLLAPSED_STD

    def explain_baseline(self, scores: Mapping[str, float]) -> str:
        """Return what a network that has learned nothing by this metric does.

        One whose loss is clearly above the baseline does not even know what that knows.
        """
        if self.has_collapsed(scores):
            return f"the {self.network} has collapsed: it gives all tokens one answer"
        baseline = self.baseline_in(scores)
        assert baseline is not None
        if scores[self.name] * PLATEAU_RATIO > baseline:
            return f"the {self.network} is worse than its baseline"
        return self.plateau_meaning


def mlm_metrics(network: str, *, is_trained_by_it: bool = True) -> tuple[Metric, ...]:
    """Return loss and accuracy at masked positions.

    Of a generator that another loss trains, or none, this loss is an observation and no plateau.
    """
    ratio = None
    if is_trained_by_it:
        ratio = MLM_PLATEAU_RATIO
    return (
        Metric(
            name="mlm_loss",
            title="masked words, loss",
            network=network,
            baseline="baseline_mlm_loss",
            plateau_ratio=ratio,
            predicts="masked words",
            plateau_meaning=f"the {network} knows hardly more than how frequent words are",
        ),
        Metric(
            name="mlm_accuracy",
            title="masked words, accuracy",
            network=network,
            baseline="baseline_mlm_accuracy",
            form="{:.1%}",
        ),
    )


CONSTANT = "with one answer for all tokens"
RTD_METRICS = (
    Metric(
        name="rtd_loss",
        title="loss",
        network="discriminator",
        baseline="baseline_rtd_loss",
        form="{:.4f}",
        plateau_ratio=PLATEAU_RATIO,
        predicts="replaced or original",
        plateau_meaning="the discriminator is hardly better than one answer for all tokens",
        baseline_answer=CONSTANT,
        spread="logit_std",
    ),
    Metric(
        name="auc",
        title="AUC",
        network="discriminator",
        baseline=0.5,
        baseline_answer=CONSTANT,
    ),
    Metric(
        name="average_precision",
        title="average precision",
        network="discriminator",
        baseline="replaced_fraction",
        is_shown=False,
    ),
    Metric(
        name="rtd_accuracy",
        title="accuracy",
        network="discriminator",
        baseline="baseline_accuracy",
        form="{:.1%}",
        is_shown=False,
    ),
    Metric(
        name="precision",
        title="precision at ½",
        network="discriminator",
        baseline="replaced_fraction",
        form="{:.1%}",
        is_shown=False,
    ),
    Metric(
        name="recall",
        title="recall at ½",
        network="discriminator",
        baseline=0.0,
        form="{:.1%}",
        is_shown=False,
    ),
)

RESTORE_METRICS = (
    Metric(
        name="restore_loss",
        title="loss",
        network="encoder",
        baseline="baseline_restore_loss",
        plateau_ratio=PLATEAU_RATIO,
        predicts="original words",
        plateau_meaning="the encoder does hardly more than copy the tokens it reads",
    ),
    Metric(
        name="restore_accuracy",
        title="accuracy",
        network="encoder",
        baseline="baseline_restore_accuracy",
        form="{:.1%}",
    ),
)

NEXT_SENTENCE_METRICS = (
    Metric(
        name="nsp_accuracy",
        title="next sentence, accuracy",
        network="encoder",
        baseline="baseline_nsp_accuracy",
        form="{:.1%}",
    ),
)

LEFT_TO_RIGHT_METRICS = (
    Metric(
        name="lm_loss",
        title="next word, loss",
        network="encoder",
        baseline="baseline_lm_loss",
        plateau_ratio=PLATEAU_RATIO,
        predicts="next words",
        plateau_meaning="the left-to-right LM only knows how frequent words are",
    ),
    Metric(
        name="lm_accuracy",
        title="next word, accuracy",
        network="encoder",
        baseline="baseline_lm_accuracy",
        form="{:.1%}",
    ),
)
