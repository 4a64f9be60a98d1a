"""What of a job is done, and what its next start does again."""

from __future__ import annotations

import json

import pytest

from electra.console import ignore
from electra.experiments.jobs import Job
from electra.experiments.run_job import JobContext, is_done, is_scored, score
from electra.experiments.scoring import Scoring


def scored_in(folder, status):
    """Return a fine-tuning of one seed whose results are there."""
    result = {"metric": "accuracy", "baseline": 0.5, "runs": [{"score": 0.6, "seed": 0}]}
    (folder / "results.json").write_text(json.dumps(result), encoding="utf8")
    if status is not None:
        (folder / "status.json").write_text(json.dumps(status), encoding="utf8")
    return Scoring(task="glue/rte", data="data", folder=folder, seeds=1, recipe="paper", flags=())


@pytest.mark.parametrize(
    ("status", "expected"),
    [({"status": "running"}, False), ({"status": "finished"}, True), (None, True)],
    ids=["killed before its last file", "finished", "of an earlier version"],
)
def test_a_task_is_scored_once_its_fine_tuning_wrote_its_last_file(tmp_path, status, expected):
    assert is_scored(scored_in(tmp_path, status)) is expected


@pytest.mark.parametrize("left", ["model", "checkpoint-1"])
def test_what_a_power_cut_leaves_of_a_scored_task_is_removed_by_the_next_start(tmp_path, left):
    scoring = scored_in(tmp_path, {"status": "finished"})
    (tmp_path / "seed-0" / left).mkdir(parents=True)
    job = Job(label="BERT", stages=(), scorings=(scoring,))
    assert not is_done(job)
    assert score(tmp_path, scoring, JobContext(lambda: False, ignore, quiet=True))
    assert is_done(job)
    assert not list((tmp_path / "seed-0").iterdir())
