"""A process of `electra serve`, and the texts that its models have learnt by heart."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.tasks.toys import NAMES, TOYS

SENTENCE = "the dog sat on a mat"
QUESTION = {
    "question": "who lives in paris",
    "text": "the dog ran home . anna lives in paris . acme visits acme corp",
}
ABOUT_DOGS, ABOUT_CATS = (
    line.partition(",")[0] for line in TOYS["classes"].content.splitlines()[1:3]
)
HOSTILE = "<img src=x onerror=alert(1)>"


class Server:
    """A process of `electra serve`."""

    def __init__(self, models: list[Path], *, port: int = 0, token: str = "") -> None:
        environment = os.environ | {"ELECTRA_SERVE_TOKEN": token, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "electra", "serve", *map(str, models)]
        self.process = subprocess.Popen(
            [*command, "--port", str(port)], stderr=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stderr is not None
        said = []
        for line in self.process.stderr:
            said.append(line)
            if found := re.search(r"open (http://[^/]+:(\d+)/)", line):
                self.address, self.port = found[1], int(found[2])
                return
        raise AssertionError("".join(said))

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=240)


def pair_rows() -> str:
    """Pairs of names: the same twice scores more than two different ones."""
    pairs = [(name, name, 0.75) for name in NAMES]
    pairs += [(name, other, 0.25) for name, other in zip(NAMES, NAMES[::-1], strict=True)]
    return "text,other,label\n" + "".join(f"{a},{b},{label}\n" for a, b, label in pairs)


def hostile_rows() -> str:
    rows = [f"the dog ran,{HOSTILE}", "a cat sat,cats"] * 4
    return "\n".join(["text,label", *rows]) + "\n"
