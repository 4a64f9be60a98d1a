"""What was run so far, read back from the folder that `sweep` fills.

    OUTPUT/data/NAME/               shards, cut once for each vocabulary and length
    OUTPUT/runs/ARM-FINGERPRINT/    one pre-training, a run folder as `electra pretrain` writes it, shared by every
                                    trial with an arm of the same settings; in it tasks/TASK/ as `electra finetune` does
    OUTPUT/TRIAL-SCALE-BUDGET.json  what was asked for: each arm and seed, and the run folders it consists of
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from electra.trials.plan import Scale, Trial


@dataclass(frozen=True, kw_only=True)
class Score:
    """A task's result on one pre-trained network."""

    task: str
    metric: str
    value: float  # median over fine-tuning seeds; a share, not points
    trivial: float
    seeds: int


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One arm with one seed, as far as it has come. Sums go over its stages."""

    arm: str
    seed: int
    runs: tuple[Path, ...]
    done: bool  # pre-trained and scored on every task that was asked for
    steps: int  # taken
    wanted: int
    tokens: int
    minutes: float  # of training, evaluation on held-out rows and checkpoints left out
    operations: float  # by the standard convention
    official: float  # by the official script's
    journal: list[dict[str, Any]] = field(default_factory=list)  # metrics.jsonl of the stages in a row; steps, tokens,
    #                                               `operations` and `minutes` of each entry counted over stages
    scores: list[Score] = field(default_factory=list)
    made: dict[str, Any] = field(default_factory=dict)  # recipe, commit, versions, hardware, date


@dataclass(frozen=True, kw_only=True)
class Findings:
    """A trial at one scale and budget."""

    trial: Trial
    scale: Scale
    budget: str  # "1/256"
    tasks: tuple[str, ...]
    corpus: dict[str, Any]  # tokens, rows, vocabulary, length
    found: list[Finding]
