"""The commands. A command parses, calls and prints.

pretraining                     vocab, shard, pretrain, describe, show, quickstart
finetuning, inference           finetune; evaluate, predict, embed, models
exporting, serve, trials        export, push; serve; trials list, run, report
settings                        settings
describe, describe_finetuned, show, quickstart
                                what the commands of these names print
comparison                      the bars of the quickstart

This module has what they share: the app, types of parameters, exit codes and checks. A command
imports what it needs where it uses it, so that help is quick.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter, Token, convert

from electra import __version__
from electra.config import UserError
from electra.console import to_stderr
from electra.settings import parse_flags


def parse_int(_: type, tokens: Sequence[Token]) -> int:
    """Parse a whole number strictly: the parser by itself rounds 2.7 to 3 without a warning."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value!r} is not a whole number") from None


def parse_value(hint: Any, tokens: Sequence[Token]) -> Any:
    """Parse the value of any option, integers strictly."""
    if hint in (int, int | None):
        return parse_int(hint, tokens)
    return convert(hint, tokens)


app = App(
    name="electra",
    version=__version__,
    help="Pre-train a text encoder by replaced token detection (ELECTRA), and use it.",
    default_parameter=Parameter(negative="", converter=parse_value),
)
Integer = Annotated[int, Parameter(converter=parse_int)]
Settings = Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]
StringList = Annotated[list[str] | None, Parameter(consume_multiple=True)]
PathList = Annotated[list[Path] | None, Parameter(consume_multiple=True)]
DONE, FAILED, WRONG_USE, STOPPED_EARLY, INTERRUPTED = 0, 1, 2, 75, 130


def check_flags(settings: Sequence[str], command: str, known: type) -> None:
    """Raise for a misspelt flag, with the setting or the option of the command that was meant.

    Only the parser knows the options of a command.
    """
    options: list[str] = []
    for argument in app[command].assemble_argument_collection():
        if argument.parse:  # FinetuneOptions.flags is for Python alone
            options += [name.removeprefix("--") for name in argument.names]
    parse_flags(settings, known, other_flags=options)


def check_output_dir(output_dir: Path) -> Path:
    """Return the folder to write to; raise UserError where it is a file."""
    if output_dir.is_file():
        raise UserError(f"--output-dir {output_dir} is a file; name a folder")
    return output_dir


def is_main_rank() -> bool:
    """Return whether this process prints: torchrun starts a command in every process."""
    return os.environ.get("RANK", "0") == "0"


def print_next_commands(*commands: Sequence[str | Path]) -> None:
    """Print commands that use what a command has made, as they are typed into a shell."""
    to_stderr("next, for example:")
    for words in commands:
        to_stderr(f"  {shlex.join(['electra', *map(str, words)])}")


def beside(folder: Path, name: str) -> Path:
    """Return a path beside a folder, which may be `.`."""
    if not folder.name:
        folder = folder.resolve()
    return folder.with_name(name)


def print_next_pretraining(shards: Path, length: int) -> None:
    """Print a command that trains on shards with rows of this length."""
    from electra.pretraining.recipe import load_recipe

    command: list[str | Path] = ["pretrain", "modern-small"]
    command += ["--data", shards, "--output-dir", beside(shards, "run")]
    recipe = load_recipe("modern-small")
    if length != recipe.data.length:
        command += ["--data.length", str(length)]
    if length > recipe.encoder.positions:
        command += ["--encoder.positions", str(length)]
    print_next_commands(command)


def require_corpus(corpus: Sequence[str]) -> Sequence[str]:
    """Return the names of the corpus; raise UserError where there are none."""
    if not corpus:
        raise UserError("name at least one file, folder or glob of text")
    return corpus
