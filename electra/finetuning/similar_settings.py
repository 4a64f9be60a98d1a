"""The settings of `finetune --task similar`: columns of the data and of the training. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from electra.config import SettingError
from electra.finetuning.recipe import given_settings
from electra.settings import build_layers


@dataclass(frozen=True, kw_only=True, slots=True)
class SimilarConfig:
    """The settings of a training that brings vectors of similar texts together."""

    text: str = "text"  # column of the first text
    text_pair: str = "text_pair"  # column of a text that is similar to it; or positive
    negative: str = "negative"  # column, if there is one, of a text that is not
    score: str = "score"  # column, if there is one, of how similar the pair is: 0 to 1
    learning_rate: float = 5e-5  # at the end of warm-up
    warmup_ratio: float = 0.1  # share of the steps in which the rate rises from zero
    weight_decay: float = 0.0  # of weight matrices; biases and norms have none
    epochs: float = 3.0  # passes over the training data
    max_steps: int | None = None  # instead of epochs
    # Pairs in a step. Without scores, the other pairs of a step are what a text is told apart from.
    batch_size: int = 64
    length: int = 128  # tokens of a text
    pooling: Literal["mean", "cls"] = "mean"  # the vector of a text: mean of its tokens, or [CLS]
    normalize: bool = True  # vectors of length 1
    dev_share: float | None = None  # of the training data to score on instead of dev data

    def __post_init__(self) -> None:
        for name in ("max_steps", "length"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingError(name, "must be at least 1", self)
        if self.batch_size < 2:
            raise SettingError(
                "batch_size", "leaves nothing to tell a pair from; use 2 or more", self
            )
        if self.learning_rate <= 0 or self.epochs <= 0:
            raise SettingError("learning_rate", "and epochs must be above 0", self)
        if not 0 <= self.warmup_ratio <= 1:
            raise SettingError("warmup_ratio", "must be in [0, 1]", self)
        if self.dev_share is not None and not 0 < self.dev_share <= 0.5:
            raise SettingError("dev_share", "must be in (0, 0.5]", self)

    def steps(self, pairs: int) -> int:
        """Return the number of steps for so many training pairs."""
        return self.max_steps or max(1, round(self.epochs * -(-pairs // self.batch_size)))


def load_similar_config(files: Sequence[str | Path], flags: Sequence[str]) -> SimilarConfig:
    """Return the defaults, changed by TOML files, the environment and flags."""
    return build_layers(SimilarConfig, given_settings(files, flags, SimilarConfig))
