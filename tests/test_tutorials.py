"""The tutorials run as they are written, on small data.

A block of `sh` or `python` is run; a block with `title="FILE"` is written to that file. The lines
of the `text` block after it must be printed, in order; … stands for anything. A comment
`<!-- test: FLAGS -->` before a block gives what the test adds to its last command, or
`<!-- test: NAME=VALUE -->` to the environment of the block, which makes it shorter;
`<!-- test: runs until the end -->` leaves it running. Nothing else differs from what a reader
types.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import pytest

from tests import tutorial_data

ROOT = Path(__file__).parents[1]
TUTORIALS = ROOT / "docs" / "tutorials"
BLOCK = re.compile(
    r"(?:^<!-- test: (?P<comment>.*?) -->\n+)?"
    r'^```(?P<language>\w+)(?: title="(?P<file>[^"]+)")?\n(?P<text>.*?)^```$',
    flags=re.DOTALL | re.MULTILINE,
)
SERVING = "runs until the end"
COMMANDS = {"electra": "-m electra", "torchrun": "-m torch.distributed.run", "python": ""}


@dataclass
class Reader:
    """Somebody who follows a tutorial in a folder."""

    folder: Path
    output: str = ""  # of the last block
    servers: list[subprocess.Popen[str]] = field(default_factory=list)

    def environment(self) -> dict[str, str]:
        return os.environ | {
            "PATH": f"{self.folder / '.bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }

    def install_commands(self) -> None:
        """Put the commands of this environment on the path, whether it is activated or not."""
        (self.folder / ".bin").mkdir()
        for name, module in COMMANDS.items():
            command = self.folder / ".bin" / name
            command.write_text(
                f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {module} "$@"\n', encoding="utf8"
            )
            command.chmod(0o755)

    def follow(self, block: re.Match[str]) -> None:
        """Do what a block says."""
        if block["language"] == "text":
            self.compare(block["text"])
        elif block["file"]:
            (self.folder / block["file"]).write_text(block["text"], encoding="utf8")
        elif block["language"] == "python":
            self.run([sys.executable, "-c", block["text"]])
        elif block["language"] == "sh" and block["comment"] == SERVING:
            self.serve(block["text"])
        elif block["language"] == "sh":
            self.run_commands(block["text"].strip(), block["comment"] or "")

    def run_commands(self, commands: str, reduction: str) -> None:
        name, _, value = reduction.partition("=")
        if name.isupper():
            self.run(["bash", "-euc", commands], {name: value})
        else:
            self.run(["bash", "-euc", f"{commands} {reduction}"])

    def run(self, argv: list[str], more: Mapping[str, str] = MappingProxyType({})) -> None:
        done = subprocess.run(
            argv,
            cwd=self.folder,
            env=self.environment() | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=280,
            check=False,
        )
        self.output = done.stdout
        assert done.returncode == 0, f"{argv[-1]}\n{done.stdout}"

    def serve(self, command: str) -> None:
        """Start a server and wait until it answers."""
        process = subprocess.Popen(
            ["bash", "-euc", f"exec {command.strip()}"],
            cwd=self.folder,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.servers.append(process)
        port = int(command.split("--port")[1].split()[0])
        for _ in range(600):
            assert process.poll() is None, process.communicate()[0]
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.1)
        raise AssertionError(f"{command}: nobody answers")

    def compare(self, expected: str) -> None:
        """Compare what was printed with what the tutorial shows."""
        parts = [re.escape(part.strip()) for part in re.split(r"[…\n]", expected)]
        found = re.search(".*?".join(parts), self.output, flags=re.DOTALL)
        assert found, f"{expected}\nis not in\n{self.output}"


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    reader.install_commands()
    yield reader
    for server in reader.servers:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=240)


def follow(reader: Reader, name: str) -> None:
    text = (TUTORIALS / name).read_text(encoding="utf8")
    for block in BLOCK.finditer(text):
        reader.follow(block)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted(path.name for path in TUTORIALS.glob("*.md")))
def test_a_tutorial_runs_as_written(reader: Reader, name: str) -> None:
    prepare: dict[str, Callable[[Path], None]] = tutorial_data.PREPARE
    prepare[name](reader.folder)
    follow(reader, name)


def test_every_tutorial_has_data_and_is_short() -> None:
    documents = {path.name: path for path in TUTORIALS.glob("*.md")}
    assert documents.keys() == tutorial_data.PREPARE.keys()
    for path in documents.values():
        assert 60 <= len(path.read_text(encoding="utf8").splitlines()) <= 150, path.name
