"""No single flipped bit of a run, shard or model folder changes a result unnoticed."""

from __future__ import annotations

import pytest
import torch

from benchmarks.bit_flips import flip_everything


@pytest.mark.slow
def test_a_flipped_bit_is_detected_or_without_effect() -> None:
    threads = torch.get_num_threads()
    try:
        rows = flip_everything(flips=2, seed=1)
    finally:
        torch.set_num_threads(threads)
    assert [row for row in rows if row["lost"]] == []
    newest = [row for row in rows if row["what"].startswith("run/checkpoint-4/")]
    assert len(newest) == 4
    assert all(row["detected"] == row["tried"] for row in newest)
