"""A pre-training run as one process holds it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

import torch

from electra.data.shards import Shards
from electra.engine.distributed import World
from electra.engine.train_step import TrainStep
from electra.objectives.objective import Objective
from electra.pretraining.recipe import Recipe
from electra.runs import checkpoint, run_dir


@dataclass
class Run:
    """Everything that one process needs to take a step."""

    recipe: Recipe
    shards: Shards
    world: World
    output_dir: Path
    objective: Objective
    optimizer: torch.optim.AdamW
    scaler: torch.amp.GradScaler
    steps: TrainStep = field(init=False)  # built when weights and slots are what they were
    step: int = 0
    tokens_seen: int = 0
    scores: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)  # about its start
    advice: str = "The same command goes on from there once that is put right."

    @property
    def micro_batch_size(self) -> int:
        assert self.recipe.training.micro_batch_size is not None
        return self.recipe.training.micro_batch_size

    def failure_message(self, failure: Exception | str) -> str:
        """What happened, what is safe, what to do; also written to the status."""
        last = checkpoint.newest(self.output_dir)
        if self.world.is_main:
            with contextlib.suppress(OSError):
                run_dir.set_status(
                    self.output_dir,
                    "failed",
                    step=self.step,
                    message=str(failure),
                    checkpoint=last.folder.name if last else None,
                )
        safe = (
            f"the last good checkpoint is {last.folder}"
            if last
            else "no checkpoint had been written yet"
        )
        return f"after step {self.step}: {failure}; {safe}. {self.advice}"
