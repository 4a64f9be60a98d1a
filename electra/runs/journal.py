"""The journal of a run: metrics.jsonl, a progress bar or plain lines, and trackers."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from electra import atomic
from electra.config import UserError
from electra.console import PROGRESS_SECONDS, Terminal
from electra.files import parse_json, read_bounded_bytes
from electra.runs.progress import OverallProgress, format_duration, progress_bar
from electra.runs.trackers import NO_TRACKING, Tracker, Tracking, open_trackers

if TYPE_CHECKING:
    from torch import Tensor

Item = TypeVar("Item")
FAILED, STOPPED_EARLY = 1, 75  # exit codes, as trackers are told them
MAX_VALUE = 1e30  # sums of values below it stay finite

# What an entry of training holds besides the parts of the loss.
NOT_LOSSES = {
    "step",
    "time",
    "loss",
    "tokens_per_second",
    "examples_per_second",
    "data_wait",
    "mfu",
    "not_finite",
    "learning_rate",
    "grad_norm",
    "grad_norm_max",
    "tokens_seen",
    "epoch",
}
LOSS_FORMATS = {
    "mlm": "mlm {:.3f}",
    "rtd": "rtd {:.4f}",
    "restore": "restore {:.3f}",
    "lm": "lm {:.3f}",
    "nsp": "nsp {:.3f}",
    "reward": "reward {:.3f}",
    "baseline": "",  # the error of an adversary's expected reward: no place on the line
}
DISPLAY_FORMATS = {
    "auc": "auc {:.3f}",
    "examples_per_second": "{:,.0f} examples/s",
    "tokens_per_second": "{:,.0f} tok/s",
    "mfu": "MFU {:.1%}",
    "data_wait": "wait {:.1%}",
}


class Journal:
    """Records the metrics of a run and prints its messages.

    Only the main process passes a path; the journals of the others neither write nor print.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        max_steps: int,
        after: int = 0,
        tracking: Tracking = NO_TRACKING,
        overall: OverallProgress | None = None,
        quiet: bool = False,
    ) -> None:
        self.max_steps = max_steps
        self.overall = overall or OverallProgress()
        self.overall.resume(after)
        self.first_step = after
        # The work of the first steps together; steps are equal unless the batch grows.
        self.work_after: Callable[[int], float] = float
        self.start_time = time.monotonic()
        self.is_silent = path is None
        self.latest: dict[str, float] = {}
        self.losses: list[str] = []  # the names of the parts of the loss
        self.console = Terminal(stderr=True, quiet=quiet or self.is_silent, highlight=False)
        self.file: TextIO | None = None
        self.trackers: dict[str, Tracker] = {}
        self.exit_code = 0  # of a run that ends without an error: 0, or that of an early stop
        if path is not None:
            drop_after(path, after)
            self.file = path.open("a", encoding="utf8")
            self.trackers = open_trackers(tracking, path.parent, after=after)
        self.progress = progress_bar(self.console)
        self.task = self.progress.add_task(
            "", total=max_steps, completed=after, overall=self.overall
        )
        self.is_live = self.console.is_terminal and not self.console.quiet

    def __enter__(self) -> Journal:
        if self.is_live:
            self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.is_live:
            self.progress.stop()
        if self.file is not None:
            # Every line was flushed, and a flush that failed was reported then.
            with suppress(OSError):
                self.file.close()
        exit_code = self.exit_code
        if kind is not None:
            exit_code = FAILED
        for name in list(self.trackers):
            self.call_tracker(name, lambda tracker: tracker.finish(exit_code))

    def call_tracker(self, name: str, call: Callable[[Tracker], None]) -> None:
        """Call a tracker; one that fails is warned of once, and left out from then on."""
        try:
            call(self.trackers[name])
        except Exception as error:
            del self.trackers[name]
            # Not its text: it may quote a key.
            self.warn(f"{name} failed ({type(error).__name__}); the run continues without it")

    def advance(self, step: int) -> None:
        """Move the progress bar to a step and show the latest metrics beside it."""
        self.overall.advance(step)
        if self.is_live:
            description = format_metrics(self.latest, self.losses)
            self.progress.update(self.task, completed=step, description=description)

    def track(self, batches: Sequence[Item], name: str) -> Iterator[Item]:
        """Yield batches, and show how many are done: on the progress bar, or as lines."""
        shown = time.monotonic()
        for done, batch in enumerate(batches, start=1):
            yield batch
            progress = f"{name}: {done:,} of {len(batches):,} batches"
            if self.is_live:
                self.progress.update(self.task, description=progress)
            elif time.monotonic() - shown >= PROGRESS_SECONDS:
                shown = time.monotonic()
                self.info(progress)

    def record(
        self, step: int, values: Mapping[str, float], *, prefix: str = "", shown: str = ""
    ) -> None:
        """Append one line to metrics.jsonl, and print it where there is no progress bar.

        What is `shown` in place of the values is printed above a progress bar, too.
        """
        self.latest.update(values)
        losses = []
        if not prefix:
            losses = self.losses = [name for name in values if name not in NOT_LOSSES]
        named = {prefix + name: value for name, value in values.items()}
        if self.file is not None:
            self.append_line(step, named)
        for name in list(self.trackers):
            self.call_tracker(name, lambda tracker: tracker.log(step, named))
        self.overall.advance(step)
        text = shown or format_metrics(values, losses)
        if text and (shown or not self.is_live) and not self.is_silent:
            left = format_duration(self.seconds_left(step))
            in_all = self.overall.seconds_left()
            if self.overall.trainings > 1 and in_all is not None:
                left += f", in all {format_duration(in_all)}"
            self.info(f"{self.overall.prefix}step {step}/{self.max_steps}  {text}  left {left}")

    def append_line(self, step: int, values: Mapping[str, float]) -> None:
        """Write one entry; a number that is not finite becomes null, since JSON cannot hold it."""
        assert self.file is not None
        entry: dict[str, float | None] = {"step": step, "time": round(time.time(), 3)}
        for name, value in values.items():
            entry[name] = finite_or_none(value)
        try:
            self.file.write(json.dumps(entry) + "\n")
            self.file.flush()
        except OSError as error:
            raise OSError(f"{self.file.name}: cannot be written: {error.strerror}") from error

    def seconds_left(self, step: int) -> float:
        """Estimate the rest of the run from the time that its work took since this start."""
        elapsed, done = time.monotonic() - self.start_time, self.work_after(step)
        left = self.work_after(self.max_steps) - done
        return elapsed / max(1, done - self.work_after(self.first_step)) * left

    def info(self, text: str) -> None:
        """Print a message, unless the journal is quiet or silent."""
        self.console.print(text, soft_wrap=True)

    def warn(self, text: str, *, even_if_quiet: bool = False) -> None:
        """Print a warning; `even_if_quiet` is for those that report a loss and not advice."""
        console = self.console
        if even_if_quiet and not self.is_silent:
            console = Terminal(stderr=True, highlight=False)
        console.print(f"warning: {text}", soft_wrap=True, style="yellow")


def finite_or_none(value: float) -> float | None:
    if math.isfinite(value):
        return value
    return None


def format_metrics(values: Mapping[str, float], losses: Sequence[str]) -> str:
    """Return the metrics that are worth a place on the line, in a fixed order.

    The sum of the losses says little beside them; a loss without parts is all there is.
    """
    forms = {"loss": "loss {:.4f}"}
    if losses:
        forms = {name: form for name, form in LOSS_FORMATS.items() if name in losses}
    texts = [form.format(values[name]) for name, form in forms.items() if name in values and form]
    own = [name for name in losses if name not in LOSS_FORMATS]  # of a user's objective
    texts += [f"{name} {values[name]:.4f}" for name in own]
    for name, form in DISPLAY_FORMATS.items():
        is_second = name == "tokens_per_second" and "examples_per_second" in values
        if name in values and not is_second:
            texts.append(form.format(values[name]))
    return "  ".join(texts)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the whole lines of metrics.jsonl; a run that was killed may have left torn ones."""
    if not path.is_file():
        return []
    try:
        content = read_bounded_bytes(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}; copy it again, or remove it") from None
    entries = []
    for line in content.decode(errors="replace").splitlines():
        try:
            entry = parse_json(line)
        except ValueError:
            continue
        if is_entry(entry):
            entries.append(entry)
    return entries


def is_entry(entry: object) -> bool:
    """Return whether this is an entry: an integer step, and numbers or nulls."""
    if not isinstance(entry, dict) or type(entry.get("step")) is not int:
        return False
    return all(is_value(value) for value in entry.values())


def is_value(value: object) -> bool:
    """Return whether a metric may have this value: a number, or null where it was not finite."""
    return value is None or (isinstance(value, (int, float)) and abs(value) < MAX_VALUE)


def drop_after(path: Path, step: int) -> None:
    """Drop the entries after a step, which a resumed run takes again."""
    entries = [entry for entry in read_metrics(path) if entry["step"] <= step]
    atomic.write(path, "".join(json.dumps(entry) + "\n" for entry in entries))


def draw_chart(values: Sequence[float], *, width: int = 60, height: int = 8) -> str:
    """Draw a curve in characters; each column is the mean of its part of the values."""
    columns = min(width, len(values))
    edges = [column * len(values) // columns for column in range(columns + 1)]
    means = []
    for begin, end in pairwise(edges):
        means.append(sum(values[begin:end]) / (end - begin))
    low, high = min(means), max(means)
    eighths = [round((mean - low) / ((high - low) or 1.0) * (height * 8 - 1)) + 1 for mean in means]
    labels = [" " * 9 + "│"] * height
    labels[0] = f"{low:8.3f} ┤"
    labels[-1] = f"{high:8.3f} ┤"
    rows = []
    for row in reversed(range(height)):
        marks = (" ▁▂▃▄▅▆▇█"[min(8, max(0, level - row * 8))] for level in eighths)
        rows.append(labels[row] + "".join(marks))
    return "\n".join(rows)


class MetricsWindow:
    """The steps since the last journal entry: mean losses, speed, and waiting time for data."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.steps = 0
        self.tokens = 0
        self.wait_seconds = 0.0
        self.start_time = time.monotonic()

    def next_batch(self, stream: Iterator[Item]) -> Item:
        """Return the next item of a stream and count the time as waiting for data."""
        before = time.monotonic()
        item = next(stream)
        self.wait_seconds += time.monotonic() - before
        return item

    @contextmanager
    def pause(self, synchronize: Callable[[], object]) -> Iterator[None]:
        """Leave the time of the block, such as an evaluation, out of the training time, but not
        that of steps which a GPU has still to compute.
        """
        synchronize()
        before = time.monotonic()
        yield
        self.start_time += time.monotonic() - before

    def add(self, losses: Mapping[str, Tensor], tokens: int) -> None:
        """Add one step. Its losses stay on the device until `close`, so no step waits for them."""
        for name, loss in losses.items():
            if name in self.sums:
                loss = self.sums[name] + loss
            self.sums[name] = loss
        self.steps += 1
        self.tokens += tokens

    def close(self, all_reduce_sum: Callable[[Iterable[Tensor]], None]) -> dict[str, float]:
        """Return the metrics of the window and begin a new one."""
        all_reduce_sum(self.sums.values())
        values = {name: float(total) / self.steps for name, total in self.sums.items()}
        elapsed = time.monotonic() - self.start_time
        values["tokens_per_second"] = self.tokens / elapsed
        values["data_wait"] = self.wait_seconds / elapsed
        self.__init__()  # type: ignore[misc]
        return values
