"""What was run is read back as it stands, finished or not."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from electra.config import UserError
from electra.experiments.findings import collect, read_score, with_minutes
from tests.wording import wording_of

wording = wording_of(__file__)


def test_minutes_are_those_of_training_alone_however_often_a_run_was_stopped():
    entries = [
        {"step": 10, "tokens_per_second": 100.0, "tokens_seen": 6000},
        {"step": 10, "eval_mlm_loss": 3.0},
        {"step": 20, "tokens_per_second": 200.0, "tokens_seen": 18000},
    ]
    assert [(each["minutes"], each["tokens_seen"]) for each in with_minutes(entries)] == [
        (1, 6000),
        (1, 6000),
        (2, 18000),
    ]


def plan_file(folder, **changed):
    """A plan of one arm in two stages, at smoke scale."""
    from dataclasses import asdict

    from electra.experiments.plan import load_scale, load_trial

    runs = [
        {
            "folder": f"runs/{name}",
            "steps": 4,
            "tokens_per_step": 100,
            "flops_per_step": 10.0 * size,
            "official_flops_per_step": 7.0 * size,
        }
        for name, size in (("first", 1), ("second", 2))
    ]
    values = {
        "format": 2,
        "trial": asdict(load_trial("efficiency")),
        "scale": asdict(load_scale("smoke")),
        "budget": "1",
        "schedule": "fresh",
        "tasks": ["glue/rte"],
        "corpus": {"tokens": 1000},
        "entries": [
            {
                "arm": "electra",
                "seed": 0,
                "runs": runs,
                "tasks": {"glue/rte": {"folder": "runs/second/tasks/rte", "seeds": 2}},
            }
        ],
    }
    (folder / "efficiency-smoke-1.json").write_text(json.dumps(values | changed), encoding="utf8")
    return folder


def run_folder(folder, *, step, status):
    folder.mkdir(parents=True)
    lines = [
        {"step": n, "tokens_per_second": 60.0, "tokens_seen": 90 * n, "loss": 1.0}
        for n in range(1, step + 1)
    ]
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines), encoding="utf8"
    )
    (folder / "status.json").write_text(
        json.dumps({"status": status, "step": step, "time": 0}), encoding="utf8"
    )


def scored(folder, *values):
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(
        json.dumps(
            {"metric": "accuracy", "baseline": 0.5, "runs": [{"score": value} for value in values]}
        ),
        encoding="utf8",
    )


def test_sums_go_over_stages_and_a_second_stage_goes_on_counting(tmp_path):
    run_folder(plan_file(tmp_path) / "runs/first", step=4, status="finished")
    run_folder(tmp_path / "runs/second", step=2, status="running")
    (finding,) = collect(tmp_path)[0].results
    assert (finding.done, finding.steps, finding.max_steps, finding.tokens) == (False, 6, 8, 540)
    assert (finding.flops, finding.official_flops) == (4 * 10 + 2 * 20, 4 * 7 + 2 * 14)
    assert finding.minutes == pytest.approx(540 / 60 / 60)
    assert [entry["step"] for entry in finding.journal] == [1, 2, 3, 4, 5, 6]
    assert [entry["flops"] for entry in finding.journal] == [10, 20, 30, 40, 60, 80]


@pytest.mark.parametrize("folder", ["../other", "/etc", "runs/../../other", ""])
@pytest.mark.parametrize("kind", ["runs", "tasks"])
def test_a_plan_cannot_name_a_folder_outside_of_its_own(tmp_path, folder, kind):
    path = plan_file(tmp_path) / "efficiency-smoke-1.json"
    values = json.loads(path.read_text(encoding="utf8"))
    entry = values["entries"][0]
    {"runs": entry["runs"][0], "tasks": entry["tasks"]["glue/rte"]}[kind]["folder"] = folder
    path.write_text(json.dumps(values), encoding="utf8")
    with pytest.raises(UserError, match=rf"{path}: entries\.folder='{folder}'"):
        collect(tmp_path)


def test_an_arm_is_done_when_it_is_trained_and_scored_with_every_seed(tmp_path):
    for name in ("first", "second"):
        run_folder(plan_file(tmp_path) / f"runs/{name}", step=4, status="finished")
    assert not collect(tmp_path)[0].results[0].done
    scored(tmp_path / "runs/second/tasks/rte", 0.6)
    assert not collect(tmp_path)[0].results[0].done
    (tmp_path / "runs/second/tasks/rte/results.json").unlink()
    (tmp_path / "runs/second/tasks/rte").rmdir()
    scored(tmp_path / "runs/second/tasks/rte", 0.6, 0.8)
    finding = collect(tmp_path)[0].results[0]
    assert finding.done
    assert [(score.value, score.values, score.baseline) for score in finding.scores] == [
        (0.7, (0.6, 0.8), 0.5)
    ]


def test_results_of_an_earlier_version_are_refused_with_the_key_that_was_renamed(tmp_path):
    scored(tmp_path / "rte", 0.6)
    path = tmp_path / "rte" / "results.json"
    path.write_text(path.read_text().replace("baseline", "trivial"))
    with pytest.raises(
        UserError,
        match=wording("results_of_an_earlier_version_are_refused_with_the_key_that_was_renamed"),
    ):
        read_score("glue/rte", tmp_path / "rte")


def test_an_arm_that_was_not_begun_is_there_with_nothing(tmp_path):
    finding = collect(plan_file(tmp_path))[0].results[0]
    assert (finding.done, finding.steps, finding.journal, finding.scores, finding.provenance) == (
        False,
        0,
        [],
        [],
        {},
    )


def test_only_the_trials_that_are_asked_for_are_collected(tmp_path):
    assert collect(plan_file(tmp_path), ["width"]) == []
    assert len(collect(tmp_path, ["efficiency"])) == 1


def test_a_folder_without_trials_is_refused_with_how_to_begin(tmp_path):
    with pytest.raises(
        UserError, match=wording("a_folder_without_trials_is_refused_with_how_to_begin")
    ):
        collect(tmp_path)


def test_a_plan_of_another_format_is_refused(tmp_path):
    with pytest.raises(UserError, match=wording("a_plan_of_another_format_is_refused")):
        collect(plan_file(tmp_path, format=1))


def test_a_plan_with_a_count_too_large_to_compute_with_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"\.json: corpus\.tokens"):
        collect(plan_file(tmp_path, corpus={"tokens": 10**400}))


def test_the_concurrency_of_a_run_is_read_and_a_corrupt_file_is_ignored(tmp_path):
    run_folder(plan_file(tmp_path) / "runs/first", step=4, status="finished")
    (tmp_path / "runs/first/config.toml").touch()
    for text, concurrency in (
        ('{"concurrency": 12}', 12),
        ('{"concurrency": "x"}', None),
        ("{", None),
    ):
        (tmp_path / "runs/first/concurrency.json").write_text(text)
        assert collect(tmp_path)[0].results[0].provenance["concurrency"] == concurrency


def test_a_file_of_concurrency_under_its_old_name_is_refused_with_the_new_one(tmp_path):
    run_folder(plan_file(tmp_path) / "runs/first", step=4, status="finished")
    (tmp_path / "runs/first/config.toml").touch()
    (tmp_path / "runs/first/company.json").write_text('{"at_once": 12}')
    with pytest.raises(
        UserError,
        match=wording("a_file_of_concurrency_under_its_old_name_is_refused_with_the_new_one"),
    ):
        collect(tmp_path)


@pytest.mark.parametrize("key", ["trial", "scale", "budget"])
def test_a_plan_that_lacks_something_is_refused_with_its_file(key, tmp_path):
    path = plan_file(tmp_path) / "efficiency-smoke-1.json"
    path.write_text(
        json.dumps(
            {name: value for name, value in json.loads(path.read_text()).items() if name != key}
        )
    )
    with pytest.raises(
        UserError, match=f"efficiency-smoke-1.json: a plan without '{key}'; remove it"
    ):
        collect(tmp_path, ["efficiency"])


def test_findings_are_collected_without_torch(tmp_path):
    plan_file(tmp_path)
    script = (
        "import sys; from electra.experiments.findings import collect; "
        f"collect({str(tmp_path)!r}); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=240, check=False).returncode == 0
