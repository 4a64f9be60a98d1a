"""A folder belongs to one run at a time, and to none once its process is gone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from electra.__main__ import main
from electra.config import UserError
from electra.engine.distributed import World
from electra.file_lock import LOCK
from electra.runs.lock import run_lock
from tests.wording import wording_of

wording = wording_of(__file__)

WORLD = World(0, 1, torch.device("cpu"))
HOLDER = """
import sys
from pathlib import Path
from electra.file_lock import acquire_lock
acquire_lock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def hold(folder: Path) -> subprocess.Popen:
    folder.mkdir(exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder / LOCK)],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_run_is_refused_by_name_until_the_first_is_gone_however_it_went(
    toy_shards, tmp_path, capsys
):
    """SIGKILL leaves the file behind, and not the lock."""
    process = hold(tmp_path / "run")
    words = [
        "pretrain",
        "tiny",
        "--data",
        str(toy_shards),
        "--output-dir",
        str(tmp_path / "run"),
        "--quiet",
    ]
    try:
        assert main(words) == 2
        said = capsys.readouterr().err
        assert (
            f"{tmp_path}/run is in use by another command (process {process.pid} on "
            f"{socket.gethostname()})" in said
        )
        assert (
            main(
                [
                    "finetune",
                    str(tmp_path),
                    "--task",
                    "glue/rte",
                    "--data",
                    str(tmp_path),
                    "--output-dir",
                    str(tmp_path / "run"),
                ]
            )
            == 2
        )
        assert "is in use by another command" in capsys.readouterr().err
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (tmp_path / "run" / LOCK).exists()
    with run_lock(tmp_path / "run", WORLD):
        assert (
            tmp_path / "run" / LOCK
        ).read_text() == f"process {os.getpid()} on {socket.gethostname()}"
    assert list((tmp_path / "run").iterdir()) == []


def test_two_runs_of_one_process_are_refused_like_those_of_two(tmp_path):
    with run_lock(tmp_path, WORLD):
        with (
            pytest.raises(
                UserError, match=wording("two_runs_of_one_process_are_refused_like_those_of_two")
            ),
            run_lock(tmp_path, WORLD),
        ):
            pass
        assert (tmp_path / LOCK).exists(), "who was refused does not take the other's lock away"
    with run_lock(tmp_path, WORLD):
        pass


def test_a_run_that_never_began_leaves_no_folder(tmp_path):
    with pytest.raises(ZeroDivisionError), run_lock(tmp_path / "new", WORLD):
        _ = 1 / 0
    assert not (tmp_path / "new").exists()


class SecondProcess:
    """A process that is not main, and that nobody has refused yet."""

    is_main = False

    def broadcast(self, value: object) -> object:
        return value


def test_a_process_whose_main_one_has_removed_the_folder_says_where_the_reason_stands(tmp_path):
    message = wording(
        "a_process_whose_main_one_has_removed_the_folder_says_where_the_reason_stands"
    )
    with (
        pytest.raises(UserError, match=message),
        run_lock(tmp_path / "gone", SecondProcess()),
    ):
        list((tmp_path / "gone").iterdir())
    with pytest.raises(FileNotFoundError), run_lock(tmp_path, SecondProcess()):
        (tmp_path / "gone").stat()
