"""What a sweep is asked for is checked before any work."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from electra.__main__ import main
from electra.config import UserError
from electra.experiments.options import SweepOptions
from electra.experiments.plan import PAPER, load_scale, trial_names
from electra.experiments.scoring import find_task_data
from electra.experiments.shards import open_shards
from electra.experiments.sweep import resolve_sweep
from tests.experiments.sweeps import command, jobs_of, sweep_of
from tests.wording import wording_of

wording = wording_of(__file__)


@pytest.mark.parametrize(
    ("argv", "message"),
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
    argv, message, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(command(*argv, "--output-dir", "out")) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert "FLOPs" not in output.out  # no table that looks like success
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
    output = capsys.readouterr()
    assert "--output-dir /proc/trials: cannot be written" in output.err
    assert output.out == ""


@pytest.mark.parametrize("argv", [["--corpus", "nowhere.txt"], ["--glue", "nowhere"]], ids=" ".join)
def test_a_dry_run_refuses_what_is_not_there_before_it_shows_a_cost(
    argv, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert (
        main(command("efficiency", "--budget", "smoke", "--dry-run", "--output-dir", "out", *argv))
        == 2
    )
    output = capsys.readouterr()
    assert "nowhere" in output.err
    assert output.out == ""


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["small-models", "--scale", "smoke", "--budget", "9/16"], "too small to tell"),
        (["efficiency", "--data", "SHARDS"], "but these arms need rows of 512"),
    ],
    ids=["two arms are one run", "rows of another length"],
)
def test_a_dry_run_refuses_arms_that_the_run_would_refuse(
    argv, message, toy_shards, tmp_path, capsys
):
    argv = [toy_shards if word == "SHARDS" else word for word in argv]
    assert main(command(*argv, "--dry-run", "--output-dir", tmp_path)) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.out == ""


@pytest.fixture
def own_trials(tmp_path):
    """Two trials of one's own, both in files of one name."""
    files = [tmp_path / folder / "own.toml" for folder in "ab"]
    for file in files:
        file.parent.mkdir()
        shutil.copy(PAPER / "width.toml", file)
    return list(map(str, files))


def test_two_files_of_one_name_are_not_put_into_one_table(own_trials, tmp_path):
    options = SweepOptions(output_dir=tmp_path, scale="smoke")
    with pytest.raises(UserError, match=r"b/own\.toml: another trial is called own"):
        resolve_sweep(own_trials, options)


def test_all_trials_and_a_file_are_the_papers_and_that_file(own_trials, tmp_path):
    options = SweepOptions(output_dir=tmp_path, scale="smoke")
    chosen = resolve_sweep(["all", own_trials[0]], options).trials
    assert [trial.name for trial in chosen] == [*trial_names(), "own"]


def test_shards_with_rows_of_another_length_are_refused(toy_shards, tmp_path):
    with pytest.raises(UserError, match=wording("shards_with_rows_of_another_length_are_refused")):
        open_shards(sweep_of(tmp_path, "efficiency", scale=load_scale("paper"), data=toy_shards))


def test_too_little_text_for_a_batch_is_refused_once_and_not_by_every_arm(toy_shards, tmp_path):
    scale = load_scale("smoke")
    large = replace(scale, settings=scale.settings | {"training.batch_size": 10_000})
    with pytest.raises(
        UserError, match=wording("too_little_text_for_a_batch_is_refused_once_and_not_by_every_arm")
    ):
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
    output = capsys.readouterr().out
    assert f"{load_scale('trial').steps // 8:,}" in output
    assert "budget 1/8 of its steps" in output
    assert "fresh for each run" in output
    assert not (tmp_path / "out").exists()


def test_trials_are_listed_with_their_sources_and_without_torch(capsys):
    assert main(["trials", "list"]) == 0
    output = capsys.readouterr().out
    assert all(name in output for name in trial_names())
    assert "Clark et al. 2020, table 5" in output
    script = (
        "import sys; from electra.__main__ import main; main(['trials', 'list']); "
        "sys.exit('torch' in sys.modules)"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, timeout=240, check=False
        ).returncode
        == 0
    )


def test_the_trial_of_ones_own_in_the_documentation_runs(tmp_path, capsys, monkeypatch):
    page = (Path(__file__).parents[2] / "docs/trials.md").read_text(encoding="utf8")
    file, text, words = re.findall(
        r'```toml title="(.*?)"\n(.*?)```\n\n```sh\nelectra (.*?)\n```', page, flags=re.DOTALL
    )[0]
    (tmp_path / file).write_text(text, encoding="utf8")
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    shallow, deep = (row for row in rows if row[0] == "depth")
    assert (shallow[1], deep[1]) == ("shallow", "deep")
    assert float(deep[-1]) == pytest.approx(float(shallow[-1]), rel=0.01)
