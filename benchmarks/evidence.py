"""A result worth keeping says how it was made: command, commit, versions, hardware, date. Not where
files lay.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from electra.config import RunFailed, UserError


def check_counts(parser: argparse.ArgumentParser, options: argparse.Namespace, *names: str) -> None:
    """Refuse what would be found out after minutes of work."""
    for name in names:
        if (asked := getattr(options, name)) < 1:
            parser.error(f"--{name.replace('_', '-')} {asked}: at least 1 is needed")


def as_command(main: Callable[[], None]) -> None:
    """A benchmark as a command: what its user can put right is said in one line, with exit code 2."""
    try:
        main()
    except (UserError, RunFailed, OSError) as error:
        problem = str(error)
    except subprocess.CalledProcessError as error:
        said = (
            str(error.stderr).strip().splitlines()[-1:]
            if error.stderr
            else ["what it said stands above"]
        )
        problem = f"`{shlex.join(map(str, error.cmd))}` ended with exit code {error.returncode}: {''.join(said)}"
    else:
        return
    print(f"error: {problem}", file=sys.stderr)
    sys.exit(2)


def keep(path: str | Path, values: dict[str, Any]) -> None:
    from electra.provenance import (
        environment,
    )  # late: it brings torch, which would weigh on measured memory

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    made = {"date": time.strftime("%Y-%m-%d"), "processor": platform.machine(), **environment()}
    made["command"] = [re.sub(r"(^|=)/.*/", r"\1", word) for word in made["command"]]
    path.write_text(json.dumps({**values, "made": made}, indent=1) + "\n", encoding="utf8")
    print(f"kept in {path}")


def provenance() -> dict[str, Any]:
    """Of one part, where parts of a file may come from several runs and machines."""
    import torch

    from electra.provenance import commit

    hardware = (
        torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.machine()} CPU"
    )
    return {
        "hardware": hardware,
        "torch": torch.__version__,
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
    }
