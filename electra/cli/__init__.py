"""The command line: every command parses, calls and prints, and decides nothing. What a command
needs is imported where it is used, so that help is quick.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter, Token

from electra import __version__
from electra.config import UserError
from electra.settings import parse_flags

app = App(
    name="electra",
    version=__version__,
    help="Pre-train a text encoder by replaced token detection (ELECTRA), and use it.",
    default_parameter=Parameter(negative=""),
)


def whole_number(wanted: type, tokens: Sequence[Token]) -> int:
    """Left to itself, the parser rounds 2.7 to 3 and says nothing."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value!r} is not a whole number") from None


Whole = Annotated[int, Parameter(converter=whole_number)]
Settings = Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]
Several = Annotated[list[str] | None, Parameter(consume_multiple=True)]
Files = Annotated[list[Path] | None, Parameter(consume_multiple=True)]
DONE, FAILED, WRONG_USE, STOPPED_EARLY, INTERRUPTED = 0, 1, 2, 75, 130


def check_flags(settings: Sequence[str], command: str, known: type) -> None:
    """A misspelt flag may have meant a setting or an option of the command, and only the parser
    knows those.
    """
    options = [
        name for argument in app[command].assemble_argument_collection() for name in argument.names
    ]
    parse_flags(settings, known, other_flags=[name.removeprefix("--") for name in options])


def folder(output_dir: Path) -> Path:
    if output_dir.is_file():
        raise UserError(f"--output-dir {output_dir} is a file; name a folder")
    return output_dir


def needed(corpus: Sequence[str]) -> Sequence[str]:
    if not corpus:
        raise UserError("name at least one file, folder or glob of text")
    return corpus
