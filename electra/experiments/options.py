"""What `electra trials run` can be asked for, on the command line and in Python. No torch, no
numpy: the command line imports it to print help.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from electra.config import UserError

SMOKE = "smoke"  # as a budget: all of the scale of this name


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """The options of a sweep, as a user writes them."""

    output_dir: Path
    """Where shards, runs and results go; `electra trials report` reads them there."""
    corpus: Sequence[str] | None = None
    """Text to train on: files, folders, globs or hub names."""
    data: Path | None = None
    """Shards from `electra shard`, instead of a corpus."""
    glue: str | None = None
    """Folder with the GLUE tasks to score on. Without it, networks are only measured on held-out
    text."""
    squad: str | None = None
    """Folder with the official SQuAD files."""
    scale: str | None = None
    """What the paper's networks become: paper (the default), trial, smoke, or a TOML file."""
    budget: str = "1"
    """Share of the scale's steps: 1/256 or 0.01; smoke is short for --scale smoke --budget 1."""
    seeds: int = 1
    """Pre-training runs of each arm."""
    seed: int = 0
    """The first seed."""
    tasks: Sequence[str] | None = None
    """Tasks to score on, instead of the trial's: glue, glue/NAME, squad-1.1, squad-2.0."""
    arms: Sequence[str] | None = None
    """Run only these arms."""
    at_once: int = 1
    """Runs at a time on this machine, each in its own process, spread over its GPUs."""
    quiet: bool = False
    """Show no progress."""

    def __post_init__(self) -> None:
        if self.at_once < 1:
            raise UserError(f"--at-once {self.at_once}: at least one run at a time")
        if self.output_dir.is_file():
            raise UserError(f"--output-dir {self.output_dir} is a file; name a folder")
        if self.budget == SMOKE and self.scale not in (None, SMOKE):
            raise UserError(
                f"--budget {SMOKE} is short for --scale {SMOKE} --budget 1; found --scale "
                f"{self.scale} too"
            )
