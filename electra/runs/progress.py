"""The progress of a command that trains once or several times: seeds, tasks, folds, trials."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from electra.console import Terminal


@dataclass
class OverallProgress:
    """How far all trainings of a command are, of which a journal shows one at a time.

    Progress is counted in examples: steps of different batch sizes take different time.
    """

    trainings: int = 1
    planned: dict[str, float] = field(default_factory=dict)  # examples, by part of the command
    part: str = ""  # the part of the command that runs now: a task of GLUE, the search
    label: str = ""  # of the training that runs now: "seed 2/3"
    batch_size: int = 1  # of the training that runs now
    finished: float = 0.0  # examples of the trainings that are over
    current: float = 0.0  # examples of the training that runs now
    before: float = 0.0  # examples that this command found done
    start_time: float = field(default_factory=lambda: time.monotonic())

    def plan(self, part: str, examples: float) -> None:
        """Set how many examples the trainings of a part take, once this is known better."""
        self.planned[part] = examples
        self.part = part

    def begin(self, label: str, *, batch_size: int) -> None:
        """Begin the next training."""
        self.label, self.batch_size, self.current = label, batch_size, 0.0

    def resume(self, step: int) -> None:
        """Count the steps of a training that continues from a checkpoint as done before."""
        self.advance(step)
        self.before += self.current

    def advance(self, step: int) -> None:
        """Set the step of the training that runs now."""
        self.current = float(step * self.batch_size)

    def end(self, *, planned: int, steps: int, was_done: bool = False) -> None:
        """End a training. It may have had fewer steps than planned, or have been done before."""
        if self.part in self.planned:
            self.planned[self.part] -= (planned - steps) * self.batch_size
        self.finished += steps * self.batch_size
        self.current = 0.0
        if was_done:
            self.before += steps * self.batch_size

    def seconds_left(self) -> float | None:
        """Estimate the time that all trainings still take; None before the first step."""
        done = self.finished + self.current
        if done <= self.before:
            return None
        elapsed = time.monotonic() - self.start_time
        return elapsed / (done - self.before) * max(0.0, sum(self.planned.values()) - done)

    @property
    def prefix(self) -> str:
        """The beginning of a line about the training that runs, where there are several."""
        if self.trainings == 1:
            return ""
        return f"{self.label}  "


def format_duration(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{seconds:02}s"


# ---- the progress bar ----------------------------------------------------------------------------


class StepColumn(ProgressColumn):
    """Shows which training of the command runs, and its step."""

    def render(self, task: Task) -> Text:
        """Return, for instance, "seed 2/3  step 40/120"."""
        overall: OverallProgress = task.fields["overall"]
        return Text(f"{overall.prefix}step {task.completed:,.0f}/{task.total or 0:,.0f}")


class TimeLeftColumn(TimeRemainingColumn):
    """Shows the time that the training still takes, or all of them where there are several."""

    max_refresh = 0.0  # the estimate for all trainings does not come from this bar

    def render(self, task: Task) -> Text:
        """Return, for instance, "in all 1h05m"."""
        overall: OverallProgress = task.fields["overall"]
        seconds = overall.seconds_left()
        if overall.trainings == 1 or seconds is None:
            return super().render(task)
        return Text(f"in all {format_duration(seconds)}", style="progress.remaining")


def progress_bar(console: Terminal) -> Progress:
    """Return the progress bar of a run. Metrics that do not fit beside it continue below."""
    whole = Column(no_wrap=True)
    return Progress(
        StepColumn(),
        BarColumn(bar_width=min(20, console.width // 8), table_column=whole),
        TextColumn("{task.description}", markup=False, table_column=Column()),
        TimeLeftColumn(table_column=whole),
        console=console,
    )
