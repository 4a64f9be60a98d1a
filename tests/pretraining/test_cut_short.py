"""Writing a checkpoint is interrupted at each of its file operations in turn: by a kill, an I/O
error, a full disk. The run is never lost.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from electra.engine.async_checkpoint import AsyncCheckpointer
from electra.engine.training_state import restore
from electra.pretraining import loop, pretrain, resume
from electra.pretraining.recipe import load_recipe
from electra.pretraining.run import Run
from electra.runs import checkpoint, run_dir

OPERATIONS = {
    "open",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.mkdir",
    "shutil.rmtree",
    "test.half",
    "test.sync",
}
RECIPE = load_recipe("tiny", flags=["--save-total-limit", "1"])


def run_at_step(step: int, output_dir: Path) -> Run:
    """The parts of a run that saving reads; its weights equal the step."""
    module = nn.Linear(3, 2)
    nn.init.constant_(module.weight, step)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.0)
    module(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    run = Run(
        recipe=RECIPE,
        shards=SimpleNamespace(fingerprint=""),
        world=SimpleNamespace(is_main=True, report_progress=lambda *_: None),
        output_dir=output_dir,
        objective=module,
        optimizer=optimizer,
        scaler=torch.amp.GradScaler("cpu", enabled=False),
        step=step,
    )
    run.train_step = SimpleNamespace(
        synchronize=lambda: 0.0, skipped=0, skip_budget=SimpleNamespace(used=0)
    )
    return run


def save(run: Run) -> None:
    with AsyncCheckpointer() as writer:
        loop.save(run, writer)


def kill(event: str, arguments: tuple[object, ...]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def io_error(event: str, arguments: tuple[object, ...]) -> None:
    raise OSError(errno.EIO, "Input/output error")


def disk_full(event: str, arguments: tuple[object, ...]) -> None:
    """Refuse what needs space, from here on; removing and renaming still work."""
    writes = event == "open" and int(str(arguments[2])) & (os.O_WRONLY | os.O_RDWR)
    if writes or event in ("os.mkdir", "test.half"):
        raise OSError(errno.ENOSPC, "No space left on device")


def interrupt_save(run: Run, inject, number: int) -> bool:
    """Save in a child process and interrupt its file operation of this number (with a full disk
    also those after it); return whether there were so many.
    """
    child = os.fork()
    if child == 0:
        count = 0

        def watch(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal count
            if event in OPERATIONS:
                count += 1
                if count == number or (count > number and inject is disk_full):
                    inject(event, arguments)

        sys.addaudithook(watch)
        try:
            save(run)
        except (OSError, pretrain.RunFailed):
            os._exit(1)
        except BaseException:
            os._exit(2)
        os._exit(0 if count < number else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 1, -signal.SIGKILL)
    return status != 0


@pytest.mark.parametrize(
    "inject",
    [kill, *(pytest.param(injected, marks=pytest.mark.slow) for injected in (io_error, disk_full))],
)
def test_a_write_interrupted_at_any_file_operation_leaves_a_whole_checkpoint_and_the_next_succeeds(
    tmp_path, monkeypatch, inject
):
    save_file = checkpoint.save_file

    def half_first(
        tensors, path
    ):  # what safetensors does is not Python's, and not seen by the hook
        save_file(tensors, path)
        os.truncate(path, path.stat().st_size // 2)
        sys.audit("test.half")
        save_file(tensors, path)

    monkeypatch.setattr(checkpoint, "save_file", half_first)
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: sys.audit("test.sync")
    )  # no power is cut here
    number, was_interrupted = 0, True
    while was_interrupted:
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        save(run_at_step(4, folder))
        was_interrupted = interrupt_save(run_at_step(8, folder), inject, number)
        newest = resume.newest_checkpoint(folder)
        assert newest.step in (4, 8)
        module = nn.Linear(3, 2)
        restore(
            newest.tensors(),
            module=module,
            optimizer=torch.optim.AdamW(module.parameters()),
            updates=1,
        )
        assert (module.weight == newest.step).all()
        assert json.loads((folder / run_dir.STATUS).read_text())["step"] in (4, 8)
        save(run_at_step(12, folder))
        assert resume.newest_checkpoint(folder).step == 12
    assert number > 20
