"""What a run says: metrics.jsonl always, one live line on a terminal, plain lines elsewhere,
TensorBoard when asked.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from electra import atomic
from electra.config import UserError
from electra.files import parse_json, read_bounded_bytes

if TYPE_CHECKING:
    from torch import Tensor

Portion = TypeVar("Portion")
MOST = 1e30  # sums of what a journal may say stay finite

SHOWN = {
    "loss": "loss {:.4f}",
    "mlm": "mlm {:.3f}",
    "rtd": "rtd {:.4f}",
    "restore": "restore {:.3f}",
    "reward": "reward {:.3f}",
    "auc": "auc {:.3f}",
    "tokens_per_second": "{:,.0f} tok/s",
    "mfu": "MFU {:.1%}",
    "data_wait": "wait {:.1%}",
}


class Journal:
    """One run's voice. Only the leading process has one; the others are given a silent journal."""

    def __init__(
        self,
        path: Path | None,
        *,
        max_steps: int,
        after: int = 0,
        tensorboard: bool = False,
        quiet: bool = False,
    ) -> None:
        self.max_steps, self.silent = max_steps, path is None
        self.latest: dict[str, float] = {}
        self.console = Console(stderr=True, quiet=quiet or self.silent, highlight=False)
        self.file: TextIO | None = None
        if path is not None:
            forget_after(path, after)
            self.file = path.open("a", encoding="utf8")
        self.writer = (
            summary_writer(path.parent, after) if tensorboard and path is not None else None
        )
        self.progress = Progress(
            TextColumn("step {task.completed:,.0f}/{task.total:,.0f}"),
            BarColumn(bar_width=20),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=self.console,
        )
        self.task = self.progress.add_task("", total=max_steps, completed=after)
        self.lively = self.console.is_terminal and not self.console.quiet
        self.started, self.first = time.monotonic(), after

    def __enter__(self) -> Journal:
        if self.lively:
            self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.lively:
            self.progress.stop()
        if self.file is not None:
            with suppress(
                OSError
            ):  # every line was flushed; one that could not be was told of then
                self.file.close()
        if self.writer is not None:
            self.writer.close()

    def advance(self, step: int) -> None:
        """The live line moves at every step, its numbers when there are new ones."""
        if self.lively:
            self.progress.update(self.task, completed=step, description=line(self.latest))

    def record(self, step: int, values: Mapping[str, float], *, prefix: str = "") -> None:
        """One line of metrics.jsonl; a number that is not finite becomes null, since JSON has no
        word for it.
        """
        self.latest.update(values)
        if self.file is not None:
            entry = {
                prefix + name: value if math.isfinite(value) else None
                for name, value in values.items()
            }
            try:
                self.file.write(
                    json.dumps({"step": step, "time": round(time.time(), 3), **entry}) + "\n"
                )
                self.file.flush()
            except OSError as error:
                raise OSError(f"{self.file.name}: cannot be written: {error.strerror}") from error
        if self.writer is not None:
            for name, value in values.items():
                self.writer.add_scalar(prefix + name, value, step)
        if not self.lively and not self.silent and line(values):
            left = (
                (time.monotonic() - self.started)
                / max(1, step - self.first)
                * (self.max_steps - step)
            )
            self.say(f"step {step}/{self.max_steps}  {line(values)}  left {duration(left)}")

    def say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, markup=False)

    def warn(self, text: str, *, even_if_quiet: bool = False) -> None:
        """Advice goes with progress; what was lost or left out is said in any case."""
        console = (
            Console(stderr=True, highlight=False)
            if even_if_quiet and not self.silent
            else self.console
        )
        console.print(f"warning: {text}", soft_wrap=True, markup=False, style="yellow")


def line(values: Mapping[str, float]) -> str:
    hidden = (
        {"loss"} if "mlm" in values else set()
    )  # of two losses the sum says little; of one it is all there is
    return "  ".join(
        form.format(values[name])
        for name, form in SHOWN.items()
        if name in values and name not in hidden
    )


def duration(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{seconds:02}s"


def read(path: Path) -> list[dict[str, Any]]:
    """Every whole line of a journal; a run that was killed or lost its power may have torn some."""
    entries = []
    for text in (
        read_bounded_bytes(path).decode(errors="replace").splitlines() if path.is_file() else []
    ):
        try:
            entry = parse_json(text)
        except ValueError:
            continue
        if (
            isinstance(entry, dict)
            and type(entry.get("step")) is int
            and all(map(is_value, entry.values()))
        ):
            entries.append(entry)
    return entries


def is_value(found: object) -> bool:
    """Whether a journal may say this of a step: a number, or nothing where it was not finite."""
    return found is None or (isinstance(found, (int, float)) and abs(found) < MOST)


def forget_after(path: Path, step: int) -> None:
    """Drop what an interrupted run said of steps that are now taken again."""
    kept = [entry for entry in read(path) if entry["step"] <= step]
    atomic.write(path, "".join(json.dumps(entry) + "\n" for entry in kept))


def summary_writer(run: Path, after: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError(
            "training.report_to='tensorboard' needs: pip install 'electra[tensorboard]'"
        ) from None
    return SummaryWriter(run / "tensorboard", purge_step=after + 1)


def chart(values: Sequence[float], *, width: int = 60, height: int = 8) -> str:
    """A curve in characters, for a terminal: each column is the mean of its share of the values."""
    columns = min(width, len(values))
    means = [
        sum(part) / len(part)
        for i in range(columns)
        if (part := values[i * len(values) // columns : (i + 1) * len(values) // columns])
    ]
    low, high = min(means), max(means)
    eighths = [round((mean - low) / ((high - low) or 1.0) * (height * 8 - 1)) + 1 for mean in means]
    rows = []
    for row in reversed(range(height)):
        label = (
            f"{high:8.3f} ┤"
            if row == height - 1
            else f"{low:8.3f} ┤"
            if row == 0
            else " " * 9 + "│"
        )
        rows.append(
            label + "".join(" ▁▂▃▄▅▆▇█"[min(8, max(0, level - row * 8))] for level in eighths)
        )
    return "\n".join(rows)


class Window:
    """What happened since the last line: mean losses, speed, and the share of time spent waiting
    for data.
    """

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.steps, self.tokens, self.waited, self.began = 0, 0, 0.0, time.monotonic()

    def waiting(self, stream: Iterator[Portion]) -> Portion:
        """The next of the stream; the time it takes counts as waiting."""
        before = time.monotonic()
        portion = next(stream)
        self.waited += time.monotonic() - before
        return portion

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What is done in here is no training, and its time does not count."""
        before = time.monotonic()
        yield
        self.began += time.monotonic() - before

    def add(self, losses: Mapping[str, Tensor], tokens: int) -> None:
        for name, loss in losses.items():
            self.sums[name] = self.sums[name] + loss if name in self.sums else loss
        self.steps, self.tokens = self.steps + 1, self.tokens + tokens

    def close(self, sum_over_processes: Callable[[Iterable[Tensor]], None]) -> dict[str, float]:
        """The window's numbers; a new one begins. Losses stay on the device until here, so no step
        waits for them.
        """
        sum_over_processes(self.sums.values())
        values = {name: float(total) / self.steps for name, total in self.sums.items()}
        elapsed = time.monotonic() - self.began
        values |= {"tokens_per_second": self.tokens / elapsed, "data_wait": self.waited / elapsed}
        self.__init__()  # type: ignore[misc]
        return values
