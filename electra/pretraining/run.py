"""The state of a pre-training run in one process."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

import torch

from electra.data.dataloader import DataLoader
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
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    # Built last: FusedTrainStep moves restored weights and optimizer state into flat buffers.
    train_step: TrainStep = field(init=False)
    step: int = 0
    tokens_seen: int = 0
    scores: dict[str, float] = field(default_factory=dict)
    evaluation_due: bool = False  # the one of this step was interrupted
    warnings: list[str] = field(default_factory=list)  # about its start
    messages: list[str] = field(default_factory=list)  # about its start
    advice: str = "The same command goes on from there once that is put right."

    @property
    def micro_batch_size(self) -> int:
        assert self.recipe.training.micro_batch_size is not None
        return self.recipe.training.micro_batch_size

    def train_loader(self) -> DataLoader:
        """Return the data loader of the training rows."""
        return DataLoader(
            self.shards.train,
            batch_size=self.recipe.training.batch_size,
            micro_batch_size=self.micro_batch_size,
            seed=self.recipe.training.seed,
        )

    def failure_message(self, failure: Exception | str) -> str:
        """Return what happened, what is safe and what to do, and write it to status.json."""
        last = checkpoint.latest(self.output_dir)
        name, safe = None, "no checkpoint had been written yet"
        if last is not None:
            name, safe = last.folder.name, f"the last good checkpoint is {last.folder}"
        if self.world.is_main:
            with contextlib.suppress(OSError):
                run_dir.set_status(
                    self.output_dir,
                    "failed",
                    step=self.step,
                    message=str(failure),
                    checkpoint=name,
                )
        return f"after step {self.step}: {failure}; {safe}. {self.advice}"
