"""A sweep runs what is missing and never what is done, whatever happened to it before."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from safetensors.torch import load_file

from electra.__main__ import main
from electra.config import UserError
from electra.data.shards import Shards
from electra.experiments import plan, worker_pool
from electra.experiments.findings import collect
from electra.experiments.jobs import Job, build_jobs
from electra.experiments.options import SweepOptions
from electra.experiments.plan import Trial, load_scale, load_trial, trial_names
from electra.experiments.scoring import find_task_data
from electra.experiments.shards import open_shards
from electra.experiments.sweep import Sweep, resolve_sweep
from electra.runs.journal import read_metrics
from electra.runs.lock import wait_for_lock

pytestmark = pytest.mark.usefixtures("few_threads")


def sweep_of(folder: Path, *chosen: str, **more: object) -> Sweep:
    return Sweep(
        **{
            "trials": [load_trial(name) for name in chosen],
            "scale": load_scale("smoke"),
            "budget": Fraction(1),
            "output_dir": folder,
            **more,
        }
    )


def jobs_of(options: Sweep, data: Path) -> list[Job]:
    return build_jobs(options, {32: Shards.open(data)}, {})


def command(*words: object) -> list[str]:
    return ["trials", "run", *map(str, words), "--quiet"]


# ---- one run for arms that are the same ----------------------------------------------------------


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
    found = jobs_of(
        sweep_of(tmp_path, "efficiency", arms=("electra", "bert"), seeds=2, seed=5), toy_shards
    )
    assert [job.label.removeprefix("efficiency/") for job in found] == [
        "electra, seed 5",
        "bert, seed 5",
        "electra, seed 6",
        "bert, seed 6",
    ]


def chained(first: dict[str, object] | None = None) -> Trial:
    """Two stages, the first of which may have other settings."""
    stages = [
        {"recipe": "bert-base", "size": "base", "share": 0.5, "settings": first or {}},
        {"recipe": "bert-base", "size": "base", "share": 0.5},
    ]
    return plan.build_trial(
        {
            "name": "chain",
            "title": "x",
            "source": "x",
            "question": "?",
            "reference": "two",
            "arms": [{"name": "two", "label": "two", "stages": stages}],
        },
        source="test",
    )


def test_a_stage_after_another_first_stage_is_another_run(toy_shards, tmp_path):
    chains = {"a": chained(), "b": chained({"objective.masking.rate": 0.2})}
    ((a,), (b,)) = (
        jobs_of(replace(sweep_of(tmp_path / name), trials=[trial]), toy_shards)
        for name, trial in chains.items()
    )
    assert a.stages[1].recipe == b.stages[1].recipe
    assert a.stages[1].folder.name != b.stages[1].folder.name


def test_a_later_stage_begins_with_the_weights_of_the_one_before(toy_shards, tmp_path, monkeypatch):
    monkeypatch.setattr("electra.experiments.sweep.load_trial", lambda name: chained())
    assert (
        main(command("chain", "--budget", "smoke", "--data", toy_shards, "--output-dir", tmp_path))
        == 0
    )
    (result,) = collect(tmp_path)[0].results
    assert result.done
    assert result.steps == result.max_steps == 16
    assert [entry["step"] for entry in result.journal if "loss" in entry] == list(range(1, 17))
    first, second = (load_file(run / "encoder/model.safetensors") for run in result.runs)
    name = "electra.embeddings.word_embeddings.weight"
    distance = (first[name] - second[name]).abs().max()
    assert 0 < distance < 0.02  # near, where two fresh initialisations are far apart


# ---- plan files ----------------------------------------------------------------------------------


def test_a_plan_file_says_scale_budget_and_that_schedules_are_fresh(toy_shards, tmp_path):
    jobs_of(sweep_of(tmp_path, "efficiency", budget=Fraction(1, 4)), toy_shards)
    found = json.loads((tmp_path / "efficiency-smoke-1_4.json").read_text(encoding="utf8"))
    assert found["budget"] == "1/4"
    assert found["scale"]["name"] == "smoke"
    assert found["schedule"].startswith("fresh for each run")
    assert found["corpus"]["length"] == 32


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
        UserError, match=r"has arms that were trained on other text, .* or another --output-dir"
    ):
        jobs_of(sweep_of(tmp_path, "efficiency", arms=("bert",)), toy_shards)
    assert [each.arm for each in collect(tmp_path)[0].results] == ["electra"]


def test_arms_of_another_scale_of_the_same_name_are_kept_out_of_a_plan(toy_shards, tmp_path):
    options = sweep_of(tmp_path, "efficiency", arms=("electra",))
    jobs_of(options, toy_shards)
    with pytest.raises(
        UserError, match=r"was begun when scale smoke had another steps, .* remove that file"
    ):
        jobs_of(
            replace(options, scale=replace(options.scale, steps=48), arms=("bert",)), toy_shards
        )
    more = replace(options.scale.evaluation, seeds=7)
    with pytest.raises(UserError, match=r"had another evaluation\.seeds"):
        jobs_of(replace(options, scale=replace(options.scale, evaluation=more)), toy_shards)
    assert [each.arm for each in collect(tmp_path)[0].results] == ["electra"]


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
    with pytest.raises(UserError, match="has arms that were scored on other data of glue/rte"):
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


# ---- what is refused before any work -------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["eficiency"], "unknown trial 'eficiency'; did you mean efficiency?"),
        ([], "name at least one trial"),
        (["efficiency", "--arms", "elektra"], "--arms elektra: unknown; did you mean electra?"),
        (["small-models", "--arms", "gpt"], "--arms gpt: a published row, not ours to run"),
        (["efficiency", "--tasks", "glue/sst-3"], "no such GLUE task"),
        (["efficiency", "--tasks", "swag"], "--tasks swag: trials are scored on"),
        (["efficiency", "--tasks", "glue/rte"], "--tasks glue/rte: no --glue"),
        (["efficiency", "--glue", "nowhere"], "--glue nowhere: no such folder"),
        (["efficiency", "--scale", "huge"], "unknown scale 'huge'"),
        (["efficiency", "--budget", "much"], "--budget much: neither a number nor a fraction"),
        (["efficiency", "--budget", "1/100000000"], "leaves no step"),
        (
            ["efficiency", "--scale", "trial", "--budget", "smoke"],
            "--budget smoke is short for --scale smoke",
        ),
        (["efficiency", "--budget", "smoke"], "give text with --corpus"),
        (["efficiency", "--seeds", "0"], "--seeds 0"),
        (["efficiency", "--at-once", "0"], "--at-once 0"),
        (["efficiency", "--budget", "smoke", "--corpus", "nowhere.txt"], "nowhere.txt"),
        (["efficiency", "--budget", "smoke", "--corpus", "."], "lies inside the corpus"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_refused_with_what_to_do_and_nothing_is_written(
    words, message, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(command(*words, "--output-dir", "out")) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert "FLOPs" not in said.out  # no table that looks like success
    assert not list(tmp_path.glob("out/*.json"))
    assert not (tmp_path / "out/runs").exists()


def test_a_folder_that_cannot_be_made_is_refused_before_a_cost_is_shown(toy_shards, capsys):
    assert (
        main(
            command(
                "efficiency",
                "--budget",
                "smoke",
                "--data",
                toy_shards,
                "--output-dir",
                "/proc/trials",
            )
        )
        == 2
    )
    said = capsys.readouterr()
    assert "--output-dir /proc/trials: cannot be written" in said.err
    assert said.out == ""


@pytest.mark.parametrize(
    "words", [["--corpus", "nowhere.txt"], ["--glue", "nowhere"]], ids=" ".join
)
def test_a_dry_run_refuses_what_is_not_there_before_it_shows_a_cost(
    words, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert (
        main(command("efficiency", "--budget", "smoke", "--dry-run", "--output-dir", "out", *words))
        == 2
    )
    said = capsys.readouterr()
    assert "nowhere" in said.err
    assert said.out == ""


@pytest.mark.parametrize("error", [EOFError, ConnectionResetError, BrokenPipeError])
def test_a_worker_whose_parent_dies_ends_without_a_traceback(error, monkeypatch):
    class Broken:
        def recv(self) -> object:
            raise error

    monkeypatch.setattr(worker_pool, "stop_with_parent", lambda: None)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    worker_pool.work(Broken(), concurrency=2, gpu=None, threads=1)


def test_shards_with_rows_of_another_length_are_refused(toy_shards, tmp_path):
    with pytest.raises(
        UserError, match="holds rows of 32 tokens, but these arms need rows of 512 at scale paper"
    ):
        open_shards(sweep_of(tmp_path, "efficiency", scale=load_scale("paper"), data=toy_shards))


def test_too_little_text_for_a_batch_is_refused_once_and_not_by_every_arm(toy_shards, tmp_path):
    scale = load_scale("smoke")
    large = replace(scale, settings=scale.settings | {"training.batch_size": 10_000})
    with pytest.raises(UserError, match="fewer than one batch of 10000"):
        jobs_of(sweep_of(tmp_path, "efficiency", scale=large), toy_shards)


def test_tasks_without_data_are_named_and_the_others_scored(tmp_path, toy_glue):
    data = find_task_data(
        sweep_of(tmp_path, "efficiency", "squad", task_folders={"glue": str(toy_glue)})
    )
    assert list(data.folders) == ["glue/sst-2", "glue/rte"]
    assert data.missing == {"squad-1.1": "no --squad", "squad-2.0": "no --squad"}


def test_berts_ablations_are_scored_on_squad_too_where_it_is_given(tmp_path, toy_glue, toy_squad):
    folders = {"glue": str(toy_glue), "squad": str(toy_squad)}
    both = sweep_of(tmp_path, "bert-ablations", task_folders=folders)
    assert list(find_task_data(both).folders) == ["glue/sst-2", "glue/rte", "squad-1.1"]
    without = find_task_data(replace(both, task_folders={"glue": str(toy_glue)}))
    assert list(without.folders) == ["glue/sst-2", "glue/rte"]
    assert without.missing == {"squad-1.1": "no --squad"}


def test_glue_stands_for_its_nine_tasks():
    options = SweepOptions(output_dir=Path("x"), scale="smoke", tasks=["glue", "glue/sst2"])
    assert len(resolve_sweep(["efficiency"], options).tasks) == 9


def test_a_dry_run_says_what_it_would_cost_and_writes_nothing(tmp_path, capsys):
    assert (
        main(
            command(
                "efficiency",
                "--scale",
                "trial",
                "--budget",
                "1/8",
                "--dry-run",
                "--output-dir",
                tmp_path / "out",
            )
        )
        == 0
    )
    said = capsys.readouterr().out
    assert f"{load_scale('trial').steps // 8:,}" in said
    assert "budget 1/8 of its steps" in said
    assert "fresh for each run" in said
    assert not (tmp_path / "out").exists()


def test_trials_are_listed_with_their_sources_and_without_torch(capsys):
    assert main(["trials", "list"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in trial_names())
    assert "Clark et al. 2020, table 5" in said
    script = (
        "import sys; from electra.__main__ import main; main(['trials', 'list']); "
        "sys.exit('torch' in sys.modules)"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, timeout=60, check=False
        ).returncode
        == 0
    )


# ---- running -------------------------------------------------------------------------------------


def longer(folder: Path) -> Path:
    """The smoke scale with enough steps to be killed in."""
    text = (
        (plan.SCALES / "smoke.toml").read_text(encoding="utf8").replace("steps = 16", "steps = 64")
    )
    path = folder / "longer.toml"
    path.write_text(text, encoding="utf8")
    return path


def started(words: list[str]) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "electra", *words],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
    )


def wait_for(folder: Path, recipe: str, step: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if any(
            entry["step"] >= step
            for path in folder.glob(f"runs/{recipe}-*/metrics.jsonl")
            for entry in read_metrics(path)
        ):
            return
        time.sleep(0.01)
    raise AssertionError(f"step {step} of {recipe} was not reached")


def weights(folder: Path) -> dict[str, object]:
    return {
        f"{path.parent.parent.name}/{path.parent.name}/{name}": tensor
        for path in folder.glob("runs/*/*/model.safetensors")
        for name, tensor in load_file(path).items()
    }


def test_a_sweep_stopped_and_then_killed_ends_as_if_nothing_had_happened(
    texts, toy_glue, tmp_path, capsys
):
    def words(folder: Path) -> list[str]:
        return command(
            "efficiency",
            "--arms",
            "electra",
            "bert",
            "--scale",
            longer(tmp_path),
            "--corpus",
            texts,
            "--glue",
            toy_glue,
            "--tasks",
            "glue/rte",
            "--output-dir",
            folder,
        )

    broken, whole = tmp_path / "broken", tmp_path / "whole"
    threading.Thread(
        target=lambda: (wait_for(broken, "base", 20), signal.raise_signal(signal.SIGTERM))
    ).start()
    assert main(words(broken)) == 75
    assert "the same command goes on" in capsys.readouterr().out
    partly = {each.arm: each for each in collect(broken)[0].results}
    assert not partly["electra"].done
    assert 20 <= partly["electra"].steps < 64
    assert partly["bert"].steps == 0
    process = started(words(broken))
    wait_for(broken, "bert-base", 20)
    process.kill()
    process.wait()
    assert main(words(broken)) == main(words(whole)) == 0
    ours, theirs = weights(broken), weights(whole)
    assert ours.keys() == theirs.keys()
    assert not [name for name in ours if not (ours[name] == theirs[name]).all()]
    (interrupted,), (never,) = collect(broken), collect(whole)
    assert [each.scores for each in interrupted.results] == [each.scores for each in never.results]
    assert all(each.done and len(each.scores) == 1 for each in interrupted.results)
    untouched = {
        path: path.stat().st_mtime_ns
        for path in broken.rglob("*")
        if path.is_file() and "runs" in path.parts
    }
    assert main(words(broken)) == 0
    assert untouched == {path: path.stat().st_mtime_ns for path in untouched}
    assert not list(broken.rglob("checkpoint-*"))
    assert not list(broken.glob("runs/*/tasks/*/seed-*/model"))


def test_an_arm_that_fails_is_reported_and_the_others_go_on(toy_shards, tmp_path, capsys):
    words = command(
        "efficiency",
        "--arms",
        "electra",
        "bert",
        "--budget",
        "smoke",
        "--data",
        toy_shards,
        "--output-dir",
        tmp_path,
    )
    options = sweep_of(tmp_path, "efficiency", arms=("electra", "bert"))
    electra, bert = (job.stages[-1].folder for job in jobs_of(options, toy_shards))
    electra.parent.mkdir()
    electra.write_text("in the way", encoding="utf8")
    assert main(words) == 1
    said = capsys.readouterr()
    assert "error: efficiency/electra, seed 0: " in said.err
    assert f"{electra} is a file" in said.err
    assert "1 of 2 runs failed" in said.out
    assert (bert / "encoder/config.json").is_file()
    electra.unlink()
    assert main(words) == 0


def test_an_arm_of_each_objective_runs_at_toy_size(toy_shards, tmp_path):
    arms = {"electra", "all-tokens-mlm", "replace-mlm", "bert-nsp", "left-to-right", "adversarial"}
    assert (
        main(
            command(
                "efficiency",
                "training-algorithms",
                "bert-ablations",
                "--budget",
                "smoke",
                "--data",
                toy_shards,
                "--output-dir",
                tmp_path,
                "--arms",
                *sorted(arms),
            )
        )
        == 0
    )
    found = [finding for each in collect(tmp_path) for finding in each.results]
    assert {finding.arm for finding in found if finding.done and finding.steps} == arms
    assert {finding.provenance["concurrency"] for finding in found} == {1}


@pytest.mark.slow
def test_every_trial_runs_from_end_to_end_at_toy_size(texts, toy_glue, toy_squad, tmp_path, capsys):
    assert (
        main(
            command(
                "all",
                "--budget",
                "smoke",
                "--corpus",
                texts,
                "--glue",
                toy_glue,
                "--squad",
                toy_squad,
                "--output-dir",
                tmp_path,
                "--at-once",
                "2",
            )
        )
        == 0
    )
    found = collect(tmp_path)
    assert {each.trial.name for each in found} == set(trial_names())
    assert all(finding.done and finding.scores for each in found for finding in each.results)
    assert {finding.provenance["concurrency"] for each in found for finding in each.results} == {2}
