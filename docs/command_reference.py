"""Print docs/commands.md, the reference of the command line: `make reference` writes it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
INTRODUCTION = """\
# Command line

This page is what `electra COMMAND --help` prints (`make reference` writes it). Settings of the
recipe are flags too; [settings.md](settings.md) lists them. `electra --version` prints the version.
With `--debug` an unexpected error is shown with its traceback.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | failed while running; the message says where, and what is kept |
| 2 | wrong use: a file, an option or a setting that you can correct; nothing was changed |
| 75 | stopped early by a signal, with a checkpoint; the same command continues |
| 130 | interrupted |
"""
# The order of a project from text to answers; other commands follow by name.
ORDER = (
    "quickstart vocab shard pretrain show describe finetune evaluate predict embed serve export "
    "push"
).split()


def commands_page() -> str:
    """Return the reference of all commands in Markdown."""
    import electra.__main__  # noqa: F401 (registers the commands)
    from electra.cli import app

    _, *sections = re.split(r"^## (?=electra )", app.generate_docs(), flags=re.MULTILINE)
    sections.sort(key=position)
    parts = [INTRODUCTION, *(f"## {tidy(section)}" for section in sections)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def position(section: str) -> tuple[int, str]:
    """Return the place of the section of a command."""
    name = section.split()[1]
    if name in ORDER:
        return ORDER.index(name), name
    return len(ORDER), name


def tidy(section: str) -> str:
    """Leave out what says nothing: that a flag is off by default, and its negations."""
    section = section.replace(" *[default: False]*", "").replace("```console", "```")
    return re.sub(r", --(?:no|empty)-[a-z-]+`", "`", section)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    print(commands_page(), end="")
