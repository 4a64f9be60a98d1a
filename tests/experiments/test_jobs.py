"""Every run that is asked for is run once."""

from __future__ import annotations

import shutil
from dataclasses import replace
from fractions import Fraction

from electra.config import RECIPES
from electra.experiments import plan
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


def own_recipe(recipe: str) -> plan.Trial:
    """A trial of one arm with a recipe."""
    stages = [{"recipe": recipe, "size": "base"}]
    texts = dict.fromkeys(("name", "title", "source", "question"), "own")
    arms = [{"name": "a", "label": "a", "stages": stages}]
    return plan.build_trial({**texts, "reference": "a", "arms": arms}, source="test")


def test_a_run_of_a_recipe_file_lies_in_the_output_folder_as_one_of_a_built_in(
    toy_shards, tmp_path
):
    file = tmp_path / "elsewhere/base.toml"
    file.parent.mkdir()
    shutil.copy(RECIPES / "base.toml", file)
    out = tmp_path / "out"
    folders = []
    for recipe in ("base", str(file), f"{out}/../elsewhere/base.toml"):
        options = replace(sweep_of(out), trials=[own_recipe(recipe)])
        (job,) = jobs_of(replace(options, output_dir=out / str(len(folders))), toy_shards)
        folders.append(job.folder.relative_to(out / str(len(folders))))
    assert folders[0].parts[0] == "runs"
    assert folders[0].name.startswith("base-")
    assert set(folders) == {folders[0]}
