"""The state of a pre-training run in one process."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from electra.data.dataloader import DataLoader
from electra.data.shards import Shards
from electra.engine.distributed import World
from electra.engine.train_step import TrainStep
from electra.model.card_content import CardContent
from electra.objectives.objective import Objective
from electra.pretraining.origin import Origin
from electra.pretraining.recipe import Recipe
from electra.runs import checkpoint, run_dir

FIX = "Once that is fixed"


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
    was_finished: bool = False  # before this start, which trains no further
    left_plateau: dict[str, int] = field(default_factory=dict)  # a network's loss → step
    warnings: list[str] = field(default_factory=list)  # about its start
    messages: list[str] = field(default_factory=list)  # about its start
    start_flags: str = ""  # of a fresh start; the command continues without them
    card: CardContent = field(default_factory=CardContent)  # of its models
    origin: Origin | None = None  # None: begun by a version that did not keep it
    checkpoint: str | None = None  # the folder of the newest one
    status_time: float = 0.0  # when status.json was written, by the monotonic clock
    # The thread that writes checkpoints writes status.json, too.
    status_lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def micro_batch_size(self) -> int:
        assert self.recipe.training.micro_batch_size is not None
        return self.recipe.training.micro_batch_size

    def train_loader(self) -> DataLoader:
        """Return the data loader of the training rows."""
        return DataLoader(
            self.shards.train,
            batches=self.recipe.training.batch_schedule,
            micro_batch_size=self.micro_batch_size,
            seed=self.recipe.training.seed,
        )

    def my_micro_batches(self, step: int) -> range:
        """Return the numbers of the micro-batches of a step that this process trains on."""
        rows = self.recipe.training.batch_schedule.size_at(step)
        return self.world.my_micro_batches(rows // self.micro_batch_size)

    def set_status(self, status: run_dir.Status, **facts: Any) -> None:
        """Write how the run stands now to status.json."""
        with self.status_lock:
            self.status_time = time.monotonic()
            run_dir.set_status(
                self.output_dir,
                status,
                step=self.step,
                max_steps=self.recipe.training.max_steps,
                tokens_seen=self.tokens_seen,
                checkpoint=self.checkpoint,
                **facts,
            )

    def update_status(self) -> None:
        """Write status.json again where the last one is no longer current."""
        if self.world.is_main and time.monotonic() - self.status_time >= run_dir.STATUS_SECONDS:
            self.set_status("running")

    @property
    def same_command(self) -> str:
        """Which command continues this run."""
        if self.start_flags:
            return f"the same command without {self.start_flags}"
        return "the same command"

    def failure_message(self, failure: Exception | str, remedy: str = FIX) -> str:
        """Return what happened, what is safe and what to do, and write it to status.json."""
        return f"after step {self.step}: {failure}; {self.record_failure(str(failure), remedy)}"

    def record_failure(self, failure: str, remedy: str = FIX) -> str:
        """Write a failure to status.json, and return what is safe and what to do."""
        last = checkpoint.latest(self.output_dir)
        self.checkpoint, safe = None, "no checkpoint had been written yet"
        then = "starts over"
        if last is not None:
            self.checkpoint, safe = last.folder.name, f"the last good checkpoint is {last.folder}"
            then = "continues from there"
        if self.world.is_main:
            with contextlib.suppress(OSError):
                self.set_status("failed", message=failure)
        return f"{safe}. {remedy}, {self.same_command} {then}."
