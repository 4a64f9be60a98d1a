"""Files and folders are replaced whole, survive a power cut, and follow no link."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from electra import atomic
from electra.config import UserError


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A file that is none of ours, beside the folder `given` that somebody else prepared."""
    (tmp_path / "given").mkdir()
    path = tmp_path / "precious"
    path.write_text("mine")
    return path


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that were flushed to the disk, in order."""
    paths: list[str] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    return paths


def test_half_a_surrogate_pair_is_kept_as_the_escape_that_json_has_for_it(tmp_path: Path) -> None:
    atomic.write_json(tmp_path / "a.json", {"q\ud83d": "é"})
    assert "q\\ud83d" in (content := (tmp_path / "a.json").read_text(encoding="utf8"))
    assert json.loads(content) == {"q\ud83d": "é"}


def test_a_file_is_written_through_no_link(precious: Path) -> None:
    path = precious.parent / "given" / "config.toml"
    for name in ("config.toml", ".config.toml.partial"):
        (path.parent / name).symlink_to(precious)
    atomic.write(path, "ours")
    assert precious.read_text() == "mine"
    assert path.read_text() == "ours"
    assert not path.is_symlink()
    assert os.listdir(path.parent) == ["config.toml"]


def test_a_leftover_of_a_killed_process_is_replaced(tmp_path: Path) -> None:
    (tmp_path / ".out.jsonl.partial").write_text("half of an earlier, longer text")
    atomic.write(tmp_path / "out.jsonl", "whole")
    assert (tmp_path / "out.jsonl").read_text() == "whole"


@pytest.mark.parametrize("name", ["model", ".model.partial", ".model.old"])
@pytest.mark.parametrize("dangling", [False, True])
def test_a_folder_that_is_a_link_is_replaced_and_its_target_kept(
    precious: Path, name: str, dangling: bool
) -> None:
    target, given = precious.parent / "archive", precious.parent / "given"
    if not dangling:
        target.mkdir()
        (target / "weights").write_text("mine")
    (given / name).symlink_to(target)
    with atomic.replace_folder(given / "model") as fresh:
        (fresh / "weights").write_text("ours")
    assert os.listdir(given) == ["model"]
    assert (given / "model" / "weights").read_text() == "ours"
    assert not (given / "model").is_symlink()
    assert dangling or (target / "weights").read_text() == "mine"


def test_only_the_link_is_removed_where_a_folder_is_one(tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "archive")
    atomic.remove_folder(tmp_path / "link")
    assert os.listdir(tmp_path) == ["archive"]


@pytest.mark.parametrize("nameless", [".", "/", ""])
def test_a_folder_without_a_name_is_where_it_is(nameless: str) -> None:
    assert atomic.resolve_folder(Path(nameless)) == Path(nameless)


def test_no_folder_is_made_through_a_link_inside_of_the_output_folder(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")  # the user named it: that is allowed
    atomic.make_folder(tmp_path / "run" / "seed-0", inside=tmp_path / "run")
    assert (tmp_path / "elsewhere" / "seed-0").is_dir()
    (tmp_path / "run" / "data").symlink_to(tmp_path)
    with pytest.raises(UserError) as caught:
        atomic.make_folder(tmp_path / "run" / "data" / "shards", inside=tmp_path / "run")
    assert f"{tmp_path / 'run' / 'data'} is a symbolic link to {tmp_path}" in str(caught.value)
    assert not (tmp_path / "shards").exists()


def test_the_name_of_a_file_is_on_the_disk_too(tmp_path: Path, synced: list[str]) -> None:
    with atomic.open_write(tmp_path / "out.jsonl") as stream:
        stream.write(b"{}")
    assert synced == [str(tmp_path / ".out.jsonl.partial"), str(tmp_path)]


def test_the_names_of_new_folders_are_on_the_disk_too(tmp_path: Path, synced: list[str]) -> None:
    atomic.make_folder(tmp_path / "runs" / "mine")
    assert synced == [str(tmp_path), str(tmp_path / "runs")]


def test_a_file_system_that_cannot_flush_folders_is_written_to_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(atomic, "sync", refuse)
    atomic.write(tmp_path / "file", "content")
    assert (tmp_path / "file").read_text() == "content"
