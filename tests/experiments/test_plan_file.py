"""A plan file holds what several commands asked for, and only what one table may compare."""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import replace
from fractions import Fraction

import pytest

from electra.config import UserError
from electra.data.shards import Shards
from electra.experiments.findings import collect
from electra.experiments.jobs import build_jobs
from electra.experiments.plan_file import without_folders
from electra.experiments.shards import open_shards
from electra.file_lock import wait_for_lock
from tests.experiments.sweeps import jobs_of, sweep_of
from tests.wording import wording_of

wording = wording_of(__file__)


def test_a_plan_file_says_scale_budget_and_that_schedules_are_fresh(toy_shards, tmp_path):
    jobs_of(sweep_of(tmp_path, "efficiency", budget=Fraction(1, 4)), toy_shards)
    plan = json.loads((tmp_path / "efficiency-smoke-1_4.json").read_text(encoding="utf8"))
    assert plan["budget"] == "1/4"
    assert plan["scale"]["name"] == "smoke"
    assert plan["schedule"].startswith("fresh for each run")
    assert plan["corpus"]["length"] == 32


def test_what_an_earlier_command_asked_for_stays_in_the_plan(toy_shards, tmp_path):
    jobs_of(sweep_of(tmp_path, "efficiency", arms=("electra",)), toy_shards)
    jobs_of(sweep_of(tmp_path, "efficiency", arms=("bert",), seed=1), toy_shards)
    assert [(each.arm, each.seed) for each in collect(tmp_path)[0].results] == [
        ("electra", 0),
        ("bert", 1),
    ]


def test_arms_trained_on_other_text_are_kept_out_of_a_plan(toy_shards, tmp_path, monkeypatch):
    jobs_of(sweep_of(tmp_path, "efficiency", arms=("electra",)), toy_shards)
    monkeypatch.setattr(Shards, "fingerprint", "of other text")
    with pytest.raises(
        UserError, match=wording("arms_trained_on_other_text_are_kept_out_of_a_plan")
    ):
        jobs_of(sweep_of(tmp_path, "efficiency", arms=("bert",)), toy_shards)
    assert [each.arm for each in collect(tmp_path)[0].results] == ["electra"]


def test_arms_of_another_scale_of_the_same_name_are_kept_out_of_a_plan(toy_shards, tmp_path):
    options = sweep_of(tmp_path, "efficiency", arms=("electra",))
    jobs_of(options, toy_shards)
    with pytest.raises(
        UserError, match=wording("arms_of_another_scale_of_the_same_name_are_kept_out_of_a_plan")
    ):
        jobs_of(
            replace(options, scale=replace(options.scale, steps=48), arms=("bert",)), toy_shards
        )
    more = replace(options.scale.evaluation, seeds=7)
    with pytest.raises(
        UserError, match=wording("arms_of_another_scale_of_the_same_name_are_kept_out_of_a_plan_2")
    ):
        jobs_of(replace(options, scale=replace(options.scale, evaluation=more)), toy_shards)
    assert [each.arm for each in collect(tmp_path)[0].results] == ["electra"]


def test_part_trained_arms_of_another_warm_up_are_kept_out_of_a_plan(toy_shards, tmp_path):
    options = sweep_of(tmp_path, "efficiency", arms=("electra",), budget=Fraction(1, 4))
    options = replace(options, scale=replace(options.scale, warmup_ratio=None))
    jobs_of(options, toy_shards)
    path = tmp_path / "efficiency-smoke-1_4.json"
    plan = json.loads(path.read_text(encoding="utf8"))
    path.write_text(json.dumps(plan | {"schedule": "of an earlier version"}), encoding="utf8")
    with pytest.raises(UserError, match="by a version that warms up for other numbers"):
        jobs_of(replace(options, arms=("bert",)), toy_shards)


def test_a_recipe_file_counts_by_its_name_since_its_folder_may_move():
    stage = {"recipe": "/home/one/mine.toml", "width": 1.0}
    moved = stage | {"recipe": "../two/mine.toml"}
    assert without_folders({"arms": [{"stages": [stage]}]}) == without_folders(
        {"arms": [{"stages": [moved]}]}
    )


def test_arms_scored_on_other_data_are_kept_out_of_a_plan_unless_all_are_scored_again(
    toy_shards, toy_glue, tmp_path
):
    other = shutil.copytree(toy_glue, tmp_path / "other")
    with (other / "RTE" / "dev.tsv").open("a", encoding="utf8") as file:
        file.write("9\tthe dog sees\tthe dog sees\tentailment\n")
    options, shards = (
        sweep_of(tmp_path, "efficiency", arms=("electra",), tasks=("glue/rte",)),
        {32: Shards.open(toy_shards)},
    )
    build_jobs(options, shards, {"glue/rte": str(toy_glue)})
    with pytest.raises(
        UserError,
        match=wording(
            "arms_scored_on_other_data_are_kept_out_of_a_plan_unless_all_are_scored_again"
        ),
    ):
        build_jobs(replace(options, arms=("bert",)), shards, {"glue/rte": str(other)})
    build_jobs(replace(options, arms=("electra", "bert")), shards, {"glue/rte": str(other)})
    assert [each.arm for each in collect(tmp_path)[0].results] == ["electra", "bert"]


def test_a_plan_that_another_command_is_changing_is_waited_for_and_keeps_its_arms(
    toy_shards, tmp_path
):
    path = tmp_path / "efficiency-smoke-1.json"
    jobs_of(sweep_of(tmp_path / "other", "efficiency", arms=("bert",)), toy_shards)
    with wait_for_lock(path):
        ours = threading.Thread(
            target=jobs_of, args=(sweep_of(tmp_path, "efficiency", arms=("electra",)), toy_shards)
        )
        ours.start()
        ours.join(0.5)
        assert not path.exists()
        path.write_bytes((tmp_path / "other" / path.name).read_bytes())
    ours.join(10)
    assert [each.arm for each in collect(tmp_path)[0].results] == ["bert", "electra"]


def test_shards_that_another_command_is_cutting_are_waited_for(toy_shards, tmp_path, monkeypatch):
    cut = threading.Event()
    monkeypatch.setattr(
        "electra.data.prepare.prepare_data", lambda *_, **__: (cut.set(), toy_shards)[1]
    )
    options = sweep_of(tmp_path, "efficiency", corpus=["x.txt"])
    with wait_for_lock(tmp_path / "data/300x32"):
        ours = threading.Thread(target=lambda: open_shards(options, quiet=True))
        ours.start()
        assert not cut.wait(0.5)
    ours.join(10)
    assert cut.is_set()
