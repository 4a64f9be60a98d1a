"""Print to the terminal: text, data, tables, warnings and progress bars.

Nothing else prints, since text may quote what others wrote: it must not control the terminal.
"""

from __future__ import annotations

import errno
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, TypeVar, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from electra.escape import printable, reword

Stage = Callable[[str], Callable[[float], None]]  # name of a stage → a function of its progress
NOBODY_READS = {errno.EPIPE, errno.EIO}  # a pipe that was closed, a terminal that is gone
PIPE_WIDTH = 160  # of a table that is not printed on a terminal
PROGRESS_SECONDS = 30.0  # between two lines about a long job

Item = TypeVar("Item")


class Terminal(Console):
    """A console that shows text as it is: no markup, no emoji names, control characters visible.

    A cell of a table that is too wide is folded, where rich by itself cuts it.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return the text of a string. Columns are as wide as what is shown."""
        return super().render_str(printable(reword.get()(text)), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Yield what is printed; the codes for colours are not yet part of it."""
        if isinstance(renderable, Table):
            for column in renderable.columns:
                column.overflow = "fold"
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)


def wide_terminal() -> Terminal:
    """Return a console as wide as the terminal, or wide enough for a table in a pipe."""
    terminal = Terminal()
    if terminal.is_terminal:
        return terminal
    return Terminal(width=PIPE_WIDTH)


@contextmanager
def progress_bars(*, quiet: bool = False) -> Iterator[tuple[Stage, Callable[[str], None]]]:
    """Yield a function that adds the progress bar of a stage, and one that prints a warning."""
    console = Terminal(stderr=True, quiet=quiet, highlight=False)
    bars = Progress(
        TextColumn("{task.description:<12}", markup=False),
        BarColumn(bar_width=20),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )

    def add_stage(name: str) -> Callable[[float], None]:
        if not console.is_terminal:
            console.print(f"{name} …")
        task = bars.add_task(name, total=1.0)
        return lambda fraction: bars.update(task, completed=fraction)

    def warn(text: str) -> None:
        console.print(f"warning: {text}", soft_wrap=True, style="yellow")

    with bars:
        try:
            yield add_stage, warn
        finally:  # a stage that was refused, or was done already, leaves no empty bar
            for task in bars.tasks:
                bars.update(task.id, visible=task.completed > 0)


def count_items(items: Iterable[Item], what: str, *, of: int | None = None) -> Iterator[Item]:
    """Yield items, and print from time to time how many there were so far."""
    total = ""
    if of is not None:
        total = f" of {of:,}"
    shown = time.monotonic()
    for count, item in enumerate(items, start=1):
        yield item
        if time.monotonic() - shown >= PROGRESS_SECONDS:
            shown = time.monotonic()
            to_stderr(f"{count:,}{total} {what}")


@contextmanager
def redirect_warnings(say: Callable[[str], None]) -> Iterator[None]:
    """Pass warnings to `say`, without the line of source code that Python prints with them."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_: say(f"warning: {message}")
        yield


def print_warnings_plainly() -> None:
    """Print the warnings that nobody redirects without their line of source code."""
    warnings.formatwarning = lambda message, *_, **__: f"warning: {printable(str(message))}\n"


def ignore(text: str) -> None:
    """Print nothing."""


def to_stderr(text: str) -> None:
    """Print to standard error, which is not mistaken for predictions."""
    print(printable(text), file=sys.stderr, flush=True)


def to_stdout(text: str) -> None:
    """Print a line that is not data."""
    print(printable(text))


def print_data(text: str) -> None:
    """Print data: unchanged to a file or a pipe, with control characters visible on a terminal."""
    if sys.stdout.isatty():
        text = printable(text)
    print(text)


# ---- output that nobody reads --------------------------------------------------------------------


@contextmanager
def without_readers() -> Iterator[None]:
    """Let the block continue silently once nobody reads what it prints.

    `electra pretrain … 2>&1 | head`, or a terminal that is closed, must not end a run of days.
    """
    before = sys.stdout, sys.stderr
    if any(stream is None or isinstance(stream, OptionalOutput) for stream in before):
        yield
        return
    sys.stdout, sys.stderr = (cast(TextIO, OptionalOutput(stream)) for stream in before)
    try:
        yield
    finally:
        for stream in before:
            with suppress(OSError):  # of a full disk: reported by whoever flushes next
                OptionalOutput(stream).flush()  # what is left would fail when Python ends
        sys.stdout, sys.stderr = before


class OptionalOutput:
    """A text stream that drops what it is given once nobody reads it."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        with self.expect_no_reader():
            self.stream.write(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        with self.expect_no_reader():
            self.stream.flush()

    @contextmanager
    def expect_no_reader(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in NOBODY_READS:
                raise
            write_to_nowhere(self.stream)


def write_to_nowhere(stream: TextIO) -> None:
    """Send a stream's output, and what its buffer still holds, to the null device."""
    with suppress(OSError):  # a stream of Python alone has no descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(null, stream.fileno())
        finally:
            os.close(null)
