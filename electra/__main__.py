"""Run one command of `electra` or `python -m electra`, and print an error as one line."""

from __future__ import annotations

import os
import sys

from cyclopts import CycloptsError

import electra.cli.finetuning
import electra.cli.inference
import electra.cli.pretraining
import electra.cli.trials  # noqa: F401 (importing a module registers its commands)
from electra.cli import DONE, FAILED, INTERRUPTED, WRONG_USE, app
from electra.config import RunFailed, UserError

MAX_CHARACTERS = 4000  # of a message


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code.

    0 is done, 1 failed, 2 wrong use, 75 stopped early with a checkpoint, 130 interrupted.
    """
    if argv is None:
        argv = sys.argv[1:]
    debug = "--debug" in argv
    argv = [argument for argument in argv if argument != "--debug"]
    try:
        code = app(argv, exit_on_error=False, print_error=False, result_action="return_value")
        return int(code or DONE)
    except (CycloptsError, UserError) as error:
        return print_error(error, WRONG_USE, debug)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `head` closes the pipe of `electra describe small | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except Exception as error:
        return print_error(error, FAILED, debug)


def print_error(error: Exception, code: int, debug: bool) -> int:
    """Print the message of an error and return the exit code; raise the error with --debug."""
    if debug:
        raise error
    text = str(error)
    if not isinstance(error, (CycloptsError, UserError, RunFailed, OSError)):
        text = f"{type(error).__name__}: {text} (--debug shows where)"
    print(f"error: {printable(text)}", file=sys.stderr)
    return code


def printable(text: str) -> str:
    """Shorten a message and escape its control characters.

    It may quote a hostile file, or its name, which must neither fill the terminal nor control it.
    """
    if len(text) > MAX_CHARACTERS:  # the beginning names the place, the end the remedy
        half = MAX_CHARACTERS // 2
        text = f"{text[:half]} […] {text[-half:]}"
    return "".join(map(printable_character, text))


def printable_character(character: str) -> str:
    """Return a character, or its escape sequence if it controls the terminal."""
    if character.isprintable() or character == "\n":
        return character
    return character.encode("unicode_escape").decode()


if __name__ == "__main__":
    sys.exit(main())
