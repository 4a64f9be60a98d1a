"""Where the message of a refusal appears: once, and in the summary of torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from electra.__main__ import main
from tests.engine.ranks import RENDEZVOUS, ROOT

REFUSED = ["pretrain", "small", "--data", "nowhere", "--output-dir", "run"]


@pytest.mark.parametrize(("local_rank", "printed"), [("0", 1), (None, 1), ("3", 0)])
def test_the_first_process_of_a_machine_prints_the_error_that_each_tells_torchrun(
    tmp_path, monkeypatch, capsys, local_rank, printed
):
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if local_rank:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    monkeypatch.chdir(tmp_path)

    assert main(REFUSED) == 2

    told = json.loads(path.read_text(encoding="utf8"))["message"]["message"]
    assert told.startswith("error: nowhere: no such folder")
    assert capsys.readouterr().err.splitlines().count(told) == printed


@pytest.mark.parametrize("place", ["", "no/such/folder/error.json"])
def test_every_process_prints_its_error_where_torchrun_cannot_be_told(
    tmp_path, monkeypatch, capsys, place
):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", place and str(tmp_path / place))
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.chdir(tmp_path)

    assert main(REFUSED) == 2

    assert "error: nowhere: no such folder" in capsys.readouterr().err


@pytest.mark.slow  # torchrun starts two processes
def test_the_last_lines_of_torchrun_are_the_error(tmp_path):
    launcher = [sys.executable, "-m", "torch.distributed.run", *RENDEZVOUS, "--nproc-per-node", "2"]
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}

    ended = subprocess.run(
        [*launcher, "-m", "electra", *REFUSED],
        cwd=tmp_path,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert ended.returncode == 1
    lines = ended.stderr.splitlines()
    # The first process prints it too, unless the second has ended so early that torchrun stops it.
    assert sum(line.startswith("error: nowhere: no such folder") for line in lines) <= 1
    assert any("error: nowhere: no such folder" in line for line in lines[-3:])
