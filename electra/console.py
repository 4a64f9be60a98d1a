"""Print warnings, notes and progress bars to the terminal."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

Stage = Callable[[str], Callable[[float], None]]  # name of a stage → a function of its progress


@contextmanager
def progress_bars(*, quiet: bool = False) -> Iterator[tuple[Stage, Callable[[str], None]]]:
    """Yield a function that adds the progress bar of a stage, and one that prints a warning."""
    console = Console(stderr=True, quiet=quiet, highlight=False)
    bars = Progress(
        TextColumn("{task.description:<12}"),
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
        console.print(f"warning: {text}", soft_wrap=True, markup=False, style="yellow")

    with bars:
        yield add_stage, warn


@contextmanager
def redirect_warnings(say: Callable[[str], None]) -> Iterator[None]:
    """Pass warnings to `say`, without the line of source code that Python prints with them."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_: say(f"warning: {message}")
        yield


def ignore(text: str) -> None:
    """Print nothing."""


def to_stderr(text: str) -> None:
    """Print to standard error, which is not mistaken for predictions."""
    print(text, file=sys.stderr)
