"""Checksums of files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from electra.checksums import hash_file
from electra.config import UserError
from electra.data.records import checksum_file


def test_the_checksum_of_a_pipe_or_a_device_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        with pytest.raises(UserError, match=f"{name}: a folder, a pipe or a device"):
            checksum_file(tmp_path / name)
        with pytest.raises(UserError, match=f"{name}: a folder, a pipe or a device"):
            hash_file(tmp_path / name)
