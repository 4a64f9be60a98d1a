"""A folder belongs to one command at a time, and its lock is no way to write elsewhere."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from electra import file_lock
from electra.config import UserError
from electra.file_lock import LOCK, folder_lock, seems_locked, wait_for_lock
from tests.wording import wording_of

wording = wording_of(__file__)


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    path = tmp_path / "precious"
    path.write_text("mine")
    return path


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_lock_that_is_a_link_is_refused_and_its_target_kept(
    tmp_path: Path, precious: Path, link
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    link(precious, run / LOCK)
    link(precious, tmp_path / ".run.lock")
    for lock in (folder_lock, wait_for_lock):
        with (
            pytest.raises(UserError, match=wording("a_lock_that_is_a_link_is_refused")),
            lock(run),
        ):
            pass
    assert precious.read_text() == "mine"


def test_a_lock_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / LOCK)
    with (
        pytest.raises(UserError, match=wording("a_lock_that_is_a_link_is_refused")),
        folder_lock(tmp_path),
    ):
        pass


def test_a_folder_that_is_in_use_names_its_holder(tmp_path: Path) -> None:
    with folder_lock(tmp_path):
        with pytest.raises(UserError) as caught, folder_lock(tmp_path):
            pass
        holder = f"(process {os.getpid()} on {socket.gethostname()})"
        assert f"{tmp_path} is in use by another command {holder}" in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_a_folder_seems_locked_while_its_process_lives(tmp_path: Path) -> None:
    assert not seems_locked(tmp_path)
    with folder_lock(tmp_path):
        assert seems_locked(tmp_path)
    assert not seems_locked(tmp_path)
    (tmp_path / LOCK).write_text(f"process 4999999 on {socket.gethostname()}")
    assert not seems_locked(tmp_path)
    (tmp_path / LOCK).write_text("process 4999999 on another-machine")
    assert seems_locked(tmp_path)
    (tmp_path / LOCK).unlink()
    os.mkfifo(tmp_path / LOCK)
    assert not seems_locked(tmp_path)


def test_a_file_system_without_locks_is_said_once_and_the_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    monkeypatch.setattr(file_lock, "told_devices", set())
    with wait_for_lock(tmp_path / "run") as is_ours, folder_lock(tmp_path / "run"):
        assert is_ours
    said = capsys.readouterr().err
    assert said.count("warning: ") == 1
    assert f"{tmp_path}: this file system has no locks" in said
