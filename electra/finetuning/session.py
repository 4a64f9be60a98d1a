"""What all trainings of one command share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from electra.engine.distributed import World
from electra.finetuning.setup import FinetuneSetup
from electra.runs.progress import OverallProgress


@dataclass
class Session:
    """The process group of a command, whether it was asked to stop, and its progress."""

    world: World
    interrupted: Callable[[], bool]
    overall: OverallProgress = field(default_factory=OverallProgress)
    task: str = ""  # of several: "rte 2/9"

    def begin(self, setup: FinetuneSetup, label: str) -> None:
        """Begin the next training of this command."""
        label = ", ".join(part for part in (self.task, label) if part)
        self.overall.begin(label, batch_size=setup.config.batch_size)


def examples_per_seed(setup: FinetuneSetup) -> int:
    """Return how many examples the training of one seed reads, those read again included."""
    return setup.config.steps(len(setup.train)) * setup.config.batch_size
