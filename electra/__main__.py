"""Run one command of `electra` or `python -m electra`, and print an error as one line."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from cyclopts import CycloptsError

import electra.cli.exporting
import electra.cli.finetuning
import electra.cli.inference
import electra.cli.pretraining
import electra.cli.serve
import electra.cli.settings
import electra.cli.trials  # noqa: F401 (importing a module registers its commands)
from electra import atomic
from electra.cli import DONE, FAILED, INTERRUPTED, WRONG_USE, app
from electra.config import RunFailed, UserError
from electra.console import (
    print_warnings_plainly,
    to_stderr,
    without_readers,
    write_to_nowhere,
)

MAX_CHARACTERS = 4000  # of a message


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code.

    0 is done, 1 failed, 2 wrong use, 75 stopped early with a checkpoint, 130 interrupted.
    """
    if argv is None:
        argv = sys.argv[1:]
    print_warnings_plainly()
    with without_readers():
        code = run_command(argv)
        try:
            sys.stdout.flush()
        except OSError as error:  # a full disk
            write_to_nowhere(sys.stdout)  # Python would fail with it again when it ends
            return code or print_error(error, FAILED, debug=False)
        return code


def run_command(argv: list[str]) -> int:
    """Run one command; turn what it raises into a message and an exit code."""
    debug = "--debug" in argv
    argv = [argument for argument in argv if argument != "--debug"]
    try:
        code = app(argv, exit_on_error=False, print_error=False, result_action="return_value")
        return int(code or DONE)
    except (CycloptsError, UserError) as error:
        return print_error(error, WRONG_USE, debug)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `head` has closed the pipe of `electra predict … | head`
        write_to_nowhere(sys.stdout)
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
    text = "; ".join([text, *getattr(error, "__notes__", ())])
    message = f"error: {shorten(text)}"
    if not tell_torchrun(message) or os.environ.get("LOCAL_RANK", "0") == "0":
        to_stderr(message)
    return code


def tell_torchrun(message: str) -> bool:
    """Write a message where torchrun reads it for the summary that it ends with; return whether it
    does. The first process of a machine prints it too: others would repeat it.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return False
    content = {"message": message, "extraInfo": {"timestamp": str(int(time.time()))}}
    try:
        atomic.write_json(Path(path), {"message": content})
    except OSError:
        return False
    return True


def shorten(text: str) -> str:
    """Shorten a message: it may quote a hostile file, which must not fill the terminal."""
    if len(text) <= MAX_CHARACTERS:
        return text
    half = MAX_CHARACTERS // 2  # the beginning names the place, the end the remedy
    return f"{text[:half]} […] {text[-half:]}"


if __name__ == "__main__":
    sys.exit(main())
