"""Run a script in several processes, as torchrun does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
RENDEZVOUS = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")


def run_as_ranks(source: str, folder: Path, *arguments: Path | str, processes: int) -> None:
    """Run this source, without a GPU, in so many processes; fail if one of them fails."""
    script = folder / "worker.py"
    script.write_text(source, encoding="utf8")
    launcher = ("-m", "torch.distributed.run", *RENDEZVOUS, "--nproc-per-node", str(processes))
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run(
        [sys.executable, *launcher, script, *arguments],
        check=True,
        env=os.environ | environment,
        timeout=240,
    )
