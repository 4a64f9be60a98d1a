"""Every run that is asked for is run once."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from tests.experiments.sweeps import chained, jobs_of, sweep_of


def test_arms_of_several_trials_with_the_same_settings_are_one_run(toy_shards, tmp_path):
    options = sweep_of(
        tmp_path, "efficiency", "training-algorithms", arms=("electra", "joint", "bert")
    )
    joined = jobs_of(options, toy_shards)
    assert [job.label for job in joined] == [
        "efficiency/electra, seed 0 and training-algorithms/joint, seed 0",
        "efficiency/bert, seed 0 and training-algorithms/bert, seed 0",
    ]


def test_another_seed_or_another_length_of_training_is_another_run(toy_shards, tmp_path):
    options = sweep_of(tmp_path, "efficiency", arms=("electra",), seeds=2)
    first, second = jobs_of(options, toy_shards)
    (shorter,) = jobs_of(replace(options, seeds=1, budget=Fraction(1, 2)), toy_shards)
    assert len({job.stages[-1].folder for job in (first, second, shorter)}) == 3


def test_all_arms_come_once_before_any_comes_with_the_next_seed(toy_shards, tmp_path):
    jobs = jobs_of(
        sweep_of(tmp_path, "efficiency", arms=("electra", "bert"), seeds=2, seed=5), toy_shards
    )
    assert [job.label.removeprefix("efficiency/") for job in jobs] == [
        "electra, seed 5",
        "bert, seed 5",
        "electra, seed 6",
        "bert, seed 6",
    ]


def test_a_stage_after_another_first_stage_is_another_run(toy_shards, tmp_path):
    chains = {"a": chained(), "b": chained({"objective.masking.rate": 0.2})}
    ((a,), (b,)) = (
        jobs_of(replace(sweep_of(tmp_path / name), trials=[trial]), toy_shards)
        for name, trial in chains.items()
    )
    assert a.stages[1].recipe == b.stages[1].recipe
    assert a.stages[1].folder.name != b.stages[1].folder.name
