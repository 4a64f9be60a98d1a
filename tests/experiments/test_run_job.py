"""What of a job is done, and what its next start does again."""

from __future__ import annotations

import json

import pytest

from electra.experiments.run_job import is_scored
from electra.experiments.scoring import Scoring


@pytest.mark.parametrize(
    ("status", "expected"),
    [({"status": "running"}, False), ({"status": "finished"}, True), (None, True)],
    ids=["killed before its last file", "finished", "of an earlier version"],
)
def test_a_task_is_scored_once_its_fine_tuning_wrote_its_last_file(tmp_path, status, expected):
    result = {"metric": "accuracy", "baseline": 0.5, "runs": [{"score": 0.6, "seed": 0}]}
    (tmp_path / "results.json").write_text(json.dumps(result), encoding="utf8")
    if status is not None:
        (tmp_path / "status.json").write_text(json.dumps(status), encoding="utf8")
    scoring = Scoring(
        task="glue/rte", data="data", folder=tmp_path, seeds=1, recipe="paper", flags=()
    )
    assert is_scored(scoring) is expected
