"""`python -m electra`, and the `electra` command: run one command, and say in one line what went
wrong.
"""

from __future__ import annotations

import os
import sys

from cyclopts import CycloptsError

import electra.cli.finetuning
import electra.cli.inference
import electra.cli.pretraining
import electra.cli.trials  # noqa: F401 (to import a command is to have it)
from electra.cli import DONE, FAILED, INTERRUPTED, WRONG_USE, app
from electra.config import RunFailed, UserError

MESSAGE_CHARACTERS = 4000


def main(arguments: list[str] | None = None) -> int:
    """Run one command: 0 done, 1 failed, 2 wrong use, 75 stopped early with a checkpoint, 130
    interrupted.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        return int(
            app(words, exit_on_error=False, print_error=False, result_action="return_value") or DONE
        )
    except (CycloptsError, UserError) as error:
        return complain(error, WRONG_USE, debug)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `electra describe small | head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except Exception as error:
        return complain(error, FAILED, debug)


def complain(error: Exception, code: int, debug: bool) -> int:
    """One clear message; where the error came from only when asked."""
    if debug:
        raise error
    expected = isinstance(error, (CycloptsError, UserError, RunFailed, OSError))
    text = str(error) if expected else f"{type(error).__name__}: {error} (--debug shows where)"
    print(f"error: {tame(text)}", file=sys.stderr)
    return code


def tame(text: str) -> str:
    """A message that quotes a hostile file, or its name, neither fills the terminal nor steers it."""
    if len(text) > MESSAGE_CHARACTERS:  # its beginning says where, its end what to do
        text = f"{text[: MESSAGE_CHARACTERS // 2]} […] {text[-MESSAGE_CHARACTERS // 2 :]}"
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )


if __name__ == "__main__":
    sys.exit(main())
