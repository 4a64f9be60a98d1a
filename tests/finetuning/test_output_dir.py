"""The start of a fine-tuning is cut short at each of its file operations in turn: by a kill or an
I/O error. The same command continues.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from electra.engine.distributed import World
from electra.finetuning import output_dir as module
from electra.finetuning.options import FinetuneOptions
from electra.finetuning.output_dir import open_output_dir
from electra.finetuning.setup import FinetuneSetup, prepare_finetuning
from electra.runs import run_dir
from electra.runs.lock import run_lock
from electra.tasks import find_task
from tests.tasks.toys import keyword_rows, written

OPERATIONS = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree"}
FILES = ["config.toml", "environment.json", "run.json", "status.json"]
WORLD = World(0, 1, torch.device("cpu"))
FRESH = FinetuneOptions()
OVERWRITE = FinetuneOptions(resume="never", overwrite=True)


@pytest.fixture
def setup(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FinetuneSetup:
    monkeypatch.setattr(module, "environment", dict)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # no power is cut here
    data = written(tmp_path / "rows.csv", keyword_rows(8))
    options = FinetuneOptions(train=[data], dev=[data], dev_on_train=True, flags=["--length", "32"])
    return prepare_finetuning(tiny, find_task("classify"), options, say=lambda text: None)


def start(setup: FinetuneSetup, folder: Path, options: FinetuneOptions) -> None:
    with run_lock(folder, WORLD):
        open_output_dir(setup, folder, options, WORLD)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def io_error() -> None:
    raise OSError(errno.EIO, "Input/output error")


def is_cut_short(work: Callable[[], None], inject: Callable[[], None], number: int) -> bool:
    """Do the work in a child process and cut short its file operation of this number; return
    whether there were so many.
    """
    child = os.fork()
    if child == 0:
        count = 0

        def watch(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal count
            if event in OPERATIONS:
                count += 1
                if count == number:
                    inject()

        sys.addaudithook(watch)
        try:
            work()
        except Exception:
            os._exit(1)
        os._exit(int(count >= number))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0


@pytest.mark.parametrize("inject", [kill, io_error])
def test_a_start_cut_short_at_any_file_operation_is_repeated_by_the_same_command(
    setup: FinetuneSetup, tmp_path: Path, inject: Callable[[], None]
) -> None:
    number, was_cut_short = 0, True
    while was_cut_short:
        number += 1
        folder = tmp_path / str(number)
        was_cut_short = is_cut_short(lambda at=folder: start(setup, at, FRESH), inject, number)
        start(setup, folder, FRESH)
        assert sorted(path.name for path in folder.iterdir()) == FILES
        assert run_dir.get_status(folder)["status"] == "running"
    assert number > 8


@pytest.mark.parametrize("inject", [kill, pytest.param(io_error, marks=pytest.mark.slow)])
def test_starting_over_cut_short_at_any_file_operation_leaves_no_seed_that_seems_finished(
    setup: FinetuneSetup, tmp_path: Path, inject: Callable[[], None]
) -> None:
    number, was_cut_short = 0, True
    while was_cut_short:
        number += 1
        folder, seed = tmp_path / str(number), tmp_path / str(number) / "seed-0"
        start(setup, folder, FRESH)
        seed.mkdir()
        for name in ("1", "2", "3", "result.json", "4", "5", "6"):
            written(seed / name, "{}")
        written(folder / "notes.txt", "mine")
        was_cut_short = is_cut_short(lambda at=folder: start(setup, at, OVERWRITE), inject, number)
        if (seed / "result.json").exists():
            assert len(list(seed.iterdir())) == 7
        start(setup, folder, OVERWRITE)
        assert sorted(path.name for path in folder.iterdir()) == sorted([*FILES, "notes.txt"])
    assert number > 12
