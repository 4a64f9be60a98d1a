"""A stage of the search loses no minutes: what is done stays done, what cannot end is not begun."""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks import record
from benchmarks.record_jobs import Failed, Stopped
from benchmarks.record_plan import Arm, RunLength, Stage, load_plan, print_plan
from benchmarks.record_results import Record
from electra import atomic
from electra.config import UserError
from electra.data.shards import Shards
from electra.pretraining.recipe import Recipe
from electra.runs.run_dir import STATUS

RUN = "quarter-paper-0"
TASKS = load_plan().stage("quarter").task_names


class InstantSearch(record.Search):
    """A search whose commands end at once, those on some tasks badly."""

    def __init__(self, options: argparse.Namespace, *, endings: dict[str, type[Exception]]) -> None:
        super().__init__(options, load_plan(), Record(options.output))
        self.endings = endings
        self.pretrained: list[str] = []
        self.tuned: list[str] = []
        self.commands.run = self.run_command  # type: ignore[method-assign]

    def open_shards(self, arm: Arm) -> Shards:
        return None  # type: ignore[return-value]

    def recipe_of(self, arm: Arm) -> Recipe:
        return self.plan.recipe_of(arm)

    def length_of(self, stage: Stage, arm: Arm, seed: int) -> RunLength:
        return RunLength(4.75, 1000.0, 3)

    def run_command(self, log: Path, *arguments: str) -> float:
        values = dict(pairwise(arguments))
        if arguments[0] == "pretrain":
            folder = Path(values["--output-dir"])
            folder.mkdir(exist_ok=True)
            atomic.write_json(folder / STATUS, {"status": "finished"})
            self.pretrained.append(folder.name)
        else:
            if ending := self.endings.get(values["--task"]):
                raise ending("exit code 1")
            self.tuned.append(values["--task"])
        return 1.0


@pytest.fixture(autouse=True)
def scores_without_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "pretrained_facts", lambda *_: {"steps": 3})
    monkeypatch.setattr(record, "finetuned_scores", lambda *_: {"scores": [0.5]})


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    for task in ("QNLI", "SST-2", "CoLA", "MRPC", "STS-B", "RTE"):
        (tmp_path / "glue" / task).mkdir(parents=True)
        for part in ("train", "dev"):
            (tmp_path / "glue" / task / f"{part}.tsv").touch()
    return tmp_path / "glue"


def run_stage(glue: Path, *flags: str, **endings: type[Exception]) -> InstantSearch:
    """Run the paper's arm of a stage; fine-tunings on the tasks of `endings` end in that way."""
    output = glue.parent / "record.json"
    place = ["--folder", str(glue.parent / "work"), "--glue", str(glue), "--output", str(output)]
    options = record.parse_options(["--stage", "quarter", "--arms", "paper", *place, *flags])
    by_task = {f"glue/{task}": ending for task, ending in endings.items()}
    search = InstantSearch(options, endings=by_task)
    with pytest.raises(SystemExit, match="1") if endings else nullcontext():
        search.run_stage(search.plan.stage("quarter"))
    return search


def test_a_task_without_data_is_refused_before_minutes_of_pre_training(glue: Path) -> None:
    (glue / "MRPC" / "dev.tsv").unlink()
    with pytest.raises(UserError, match="no training and dev data of glue/mrpc"):
        run_stage(glue)
    assert not (glue.parent / "record.json").exists()


@pytest.mark.parametrize(("ending", "flags"), [(Stopped, ()), (Failed, ("--retry",))])
def test_the_same_command_fine_tunes_only_what_has_no_scores(
    glue: Path, ending: type[Exception], flags: tuple[str, ...]
) -> None:
    first = run_stage(glue, rte=ending)
    assert first.pretrained == [RUN]
    assert sorted(first.tuned) == sorted(set(TASKS) - {"glue/rte"})
    again = run_stage(glue, *flags)
    assert (again.pretrained, again.tuned) == ([], ["glue/rte"])
    entry = Record(glue.parent / "record.json").entry("quarter", "paper", 0)
    assert "failed" not in entry
    assert sorted(entry["tuned"]) == sorted(TASKS)


@pytest.mark.parametrize("changed", ["settings", "data"])
def test_other_settings_are_refused_for_a_network_of_which_one_task_failed(
    glue: Path, changed: str
) -> None:
    run_stage(glue, rte=Failed)
    output = glue.parent / "record.json"
    content = json.loads(output.read_text(encoding="utf8"))
    (entry,) = content["runs"].values()
    entry[changed] = "another"
    output.write_text(json.dumps(content), encoding="utf8")
    with pytest.raises(UserError, match="was run with other settings"):
        run_stage(glue, "--retry")
    assert json.loads(output.read_text(encoding="utf8")) == content


def test_a_run_whose_folder_is_gone_is_pre_trained_and_scored_anew_on_every_task(
    glue: Path,
) -> None:
    first = run_stage(glue, rte=Stopped)
    (first.folder / RUN / STATUS).unlink()
    again = run_stage(glue, rte=Stopped, cola=Stopped)
    assert again.pretrained == [RUN]
    # What is scored is the new network; CoLA has no score from the one before.
    tuned = Record(glue.parent / "record.json").entry("quarter", "paper", 0)["tuned"]
    assert sorted(tuned) == sorted(set(TASKS) - {"glue/rte", "glue/cola"})


def test_no_score_of_an_earlier_network_stays_where_the_next_ends_before_its_facts_are_kept(
    glue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_stage(glue, rte=Stopped)
    (first.folder / RUN / STATUS).unlink()
    with monkeypatch.context() as patch:
        patch.setattr(record, "pretrained_facts", lambda *_: 1 / 0)  # ends as a SIGKILL would
        with pytest.raises(ZeroDivisionError):
            run_stage(glue)
    again = run_stage(glue)
    assert sorted(again.tuned) == sorted(TASKS)


def test_a_plan_counts_what_a_run_would_do(glue: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, output = load_plan(), glue.parent / "record.json"
    stage = plan.stage("quarter")
    for retry, expected in ((False, "0 runs left"), (True, "1 runs left: 0.0 minutes of pre-tr")):
        run_stage(glue, rte=Failed)
        capsys.readouterr()
        print_plan(plan, stage, Record(output), only=["paper"], retry=retry)
        assert expected in capsys.readouterr().out


def test_fine_tuning_without_task_data_leaves_no_failed_settings_in_the_result_file(
    glue: Path,
) -> None:
    (glue / "RTE" / "dev.tsv").unlink()
    output = glue.parent / "record.json"
    place = ["--folder", str(glue.parent), "--glue", str(glue), "--output", str(output)]
    with pytest.raises(UserError, match="no training and dev data of glue/rte"):
        record.main(["--stage", "finetuning", "--model", "small-en", *place])
    assert not output.exists()


def test_a_model_that_is_not_there_leaves_no_failed_settings_in_the_result_file(
    glue: Path,
) -> None:
    output = glue.parent / "record.json"
    place = ["--folder", str(glue.parent), "--glue", str(glue), "--output", str(output)]
    with pytest.raises(UserError, match="nowhere: no such model folder"):
        record.main(["--stage", "finetuning", "--model", "nowhere", *place])
    assert not output.exists()
