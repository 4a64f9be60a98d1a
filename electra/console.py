"""What the terminal is told: warnings, notes and progress bars."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

Stage = Callable[[str], Callable[[float], None]]  # name of the stage → what its progress is told to


@contextmanager
def progress_bars(*, quiet: bool = False) -> Iterator[tuple[Stage, Callable[[str], None]]]:
    """A bar for each stage of a longer piece of work, and a way to report what is worth knowing
    about it.
    """
    console = Console(stderr=True, quiet=quiet, highlight=False)
    bars = Progress(
        TextColumn("{task.description:<12}"),
        BarColumn(bar_width=20),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )

    def stage(name: str) -> Callable[[float], None]:
        if not console.is_terminal:
            console.print(f"{name} …")
        task = bars.add_task(name, total=1.0)
        return lambda fraction: bars.update(task, completed=fraction)

    with bars:
        yield (
            stage,
            lambda text: console.print(
                f"warning: {text}", soft_wrap=True, markup=False, style="yellow"
            ),
        )


@contextmanager
def redirect_warnings(say: Callable[[str], None]) -> Iterator[None]:
    """What readers warn of is said to the user, not printed with a line of source code."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_: say(f"warning: {message}")
        yield


def ignore(text: str) -> None:
    """Where nobody is to be told."""


def to_stderr(text: str) -> None:
    """What is worth knowing, where it is not taken for a prediction."""
    import sys

    print(text, file=sys.stderr)
