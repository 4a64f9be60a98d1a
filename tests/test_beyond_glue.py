"""Tasks beyond GLUE: their fine-tunings, their result file, their tables, and minimal pairs."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks import beyond_glue, beyond_tables
from benchmarks.beyond_glue import FOLDERS, PAIRS, Model, Task
from benchmarks.generate_pairs import PARADIGMS, Draw, draw_pairs, write_pairs
from benchmarks.minimal_pairs import read_pairs
from benchmarks.record_jobs import Commands, Failed, Stopped
from electra.config import UserError

# ---- minimal pairs -------------------------------------------------------------------------------


def test_pairs_are_different_equally_long_and_the_same_for_the_same_seed(tmp_path: Path) -> None:
    paths = write_pairs(tmp_path / "a", count=500)
    again = write_pairs(tmp_path / "b", count=500)
    assert len(paths) == len(PARADIGMS)
    for path, same in zip(paths, again, strict=True):
        assert path.read_text(encoding="utf8") == same.read_text(encoding="utf8")
        sentences = read_pairs(path)
        pairs = set(zip(sentences[0::2], sentences[1::2], strict=True))
        assert len(pairs) == 500
        assert not {good for good, _ in pairs} & {bad for _, bad in pairs}
        assert all(len(good.split()) == len(bad.split()) for good, bad in pairs)
    other = write_pairs(tmp_path / "c", count=500, seed=1)
    assert read_pairs(other[0]) != read_pairs(paths[0])


def test_more_pairs_than_a_paradigm_has_are_refused() -> None:
    def single(draw: Draw) -> tuple[str, str]:
        return "He sleeps.", "Him sleeps."

    with pytest.raises(UserError, match="ask for 1 or fewer"):
        list(draw_pairs(single, 2, seed=0))


# ---- the fine-tunings ----------------------------------------------------------------------------


def test_models_and_tasks_may_have_settings_of_their_own() -> None:
    assert Model.parse("small-en") == Model("small-en", "small-en", ())
    model = Model.parse("runs/a=b/run=ours --learning-rate 1e-4")
    assert model == Model("runs/a=b/run", "ours", ("--learning-rate", "1e-4"))
    task = Task.parse("squad-1.1 --seeds 1 --epochs 1", seeds=3)
    assert task == Task("squad-1.1", 1, ("--epochs", "1"))
    with pytest.raises(UserError, match=r"squad-1\.1"):
        Task.parse("squad", seeds=1)


@pytest.fixture
def command(tiny: Path, tmp_path: Path) -> list[str]:
    for folder in FOLDERS.values():
        (tmp_path / "data" / folder).mkdir(parents=True)
    folders = ["--data", str(tmp_path / "data"), "--folder", str(tmp_path / "runs")]
    output = ["--output", str(tmp_path / "out.json"), "--pairs", "2"]
    return [f"{tiny}=ours", f"{tiny}=paper --epochs 1", *folders, *output]


def pretend(monkeypatch: pytest.MonkeyPatch, ending: Exception | None = None) -> list[list[str]]:
    """Let fine-tunings of seed 1 end in some way, and others write results; return commands."""
    commands: list[list[str]] = []

    def run(self: Commands, log: Path, *arguments: str) -> float:
        values = dict(pairwise(arguments))
        commands.append(list(arguments))
        if ending and values["--seed"] == "1":
            raise ending
        result = {"score": 0.8, "scores": {"dev": {"f1": 0.8}}, "steps": 3, "seconds": 2.0}
        folder = Path(values["--output-dir"])
        folder.mkdir()
        content = {"metric": "f1", "baseline": 0.1, "runs": [result]}
        (folder / "results.json").write_text(json.dumps(content), encoding="utf8")
        return 12.0

    monkeypatch.setattr(Commands, "run", run)
    return commands


def read_runs(command: list[str]) -> dict[str, Any]:
    path = Path(command[command.index("--output") + 1])
    runs: dict[str, Any] = json.loads(path.read_text(encoding="utf8"))["runs"]
    return runs


def test_every_score_is_kept_and_the_same_command_goes_on_after_a_stop(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command += ["--tasks", "ner", "squad-1.1 --seeds 1", "--seeds", "2", "--flags", "--dropout 0"]
    first = pretend(monkeypatch, Stopped())
    with pytest.raises(SystemExit, match="1"):
        beyond_glue.main(command)
    runs = read_runs(command)
    assert len(first) == 6
    assert sorted(runs) == [
        f"ours: {PAIRS}",
        "ours: ner, seed 0",
        "ours: squad-1.1, seed 0",
        f"paper: {PAIRS}",
        "paper: ner, seed 0",
        "paper: squad-1.1, seed 0",
    ]
    assert runs["paper: ner, seed 0"]["settings"] == "--dropout 0 --epochs 1"
    assert runs["paper: ner, seed 0"]["command_seconds"] == 12.0
    assert len(runs[f"ours: {PAIRS}"]["accuracies"]) == len(PARADIGMS)
    second = pretend(monkeypatch)
    beyond_glue.main(command)
    assert {tuple(arguments[3:4]) for arguments in second} == {("ner",)}
    assert len(read_runs(command)) == 8
    with pytest.raises(UserError, match="other settings"):
        beyond_glue.main([*command, "--flags", "--dropout 0.2"])


def test_a_failure_is_kept_shown_and_tried_again_only_when_asked(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command += ["--tasks", "race", "--seeds", "2", "--at-once", "1"]
    pretend(monkeypatch, Failed("exit code 1: out of memory"))
    with pytest.raises(SystemExit, match="1"):
        beyond_glue.main(command)
    assert read_runs(command)["ours: race, seed 1"]["failed"] == "exit code 1: out of memory"
    nothing_left = pretend(monkeypatch)
    with pytest.raises(SystemExit, match="1"):
        beyond_glue.main(command)
    assert nothing_left == []
    again = pretend(monkeypatch)
    beyond_glue.main([*command, "--retry"])
    assert len(again) == 2
    assert read_runs(command)["ours: race, seed 1"]["score"] == 0.8


def test_a_missing_model_or_folder_is_refused_before_work(command: list[str]) -> None:
    with pytest.raises(UserError, match="no-such-model"):
        beyond_glue.main(["no-such-model", *command[2:]])
    Path(command[3], "race").rmdir()
    with pytest.raises(UserError, match="no folder race"):
        beyond_glue.main(command)


# ---- the tables ----------------------------------------------------------------------------------


def scored(model: str, task: str, seed: int, score: float) -> dict[str, Any]:
    made = {"hardware": "GPU", "torch": "2", "commit": "abc"}
    facts = {"model": model, "task": task, "seed": seed, "settings": "", "baseline": 0.25}
    return {**facts, "score": score, "made": made}


def test_the_page_shows_medians_all_seeds_baselines_and_where_a_model_is_behind() -> None:
    pairs = {"settings": "500", "accuracies": {"agreement": 0.9, "word_order": 0.7}}
    runs = [
        scored("ours", "ner", 1, 0.90),
        scored("ours", "ner", 0, 0.88),
        scored("paper", "ner", 0, 0.85),
        scored("ours", "race", 0, 0.40),
        {**scored("paper", "race", 0, 0.41), "settings": "--epochs 1"},
        {"model": "paper", "task": "chunk", "failed": "exit code 1: out of memory"},
        {**scored("ours", PAIRS, 0, 0.8), **pairs},
    ]
    result = {"models": ["ours", "paper"], "runs": dict(enumerate(runs))}
    lines = beyond_tables.beyond_glue(result).splitlines()
    assert lines[0] == (
        "| median (every seed); GPU, torch 2, abc | ours | paper | baseline | settings |"
    )
    assert lines[2:5] == [
        "| CoNLL-2003 entities, F1, dev | 89.0 (88.0, 90.0) | 85.0 | 25.0 | default |",
        "| RACE, accuracy, dev | 40.0 | 41.0 | 25.0 | ours: default; paper: `--epochs 1` |",
        "| minimal pairs, accuracy | 80.0 | – | 25.0 | 500 pairs a paradigm |",
    ]
    assert "- paper, chunk: exit code 1: out of memory" in lines
    alone = {"models": ["ours"], "runs": {0: scored("ours", "ner", 0, 0.88)}}
    assert beyond_tables.beyond_glue(alone).startswith("| one seed; GPU")
    text = "ours is ahead of paper on 1 of 2, and not on race"
    assert lines[-1] == f"With different settings of fine-tuning, {text}."
    runs[4] = scored("paper", "race", 0, 0.41)
    result = {"models": ["ours", "paper"], "runs": dict(enumerate(runs))}
    assert beyond_tables.beyond_glue(result).splitlines()[-1] == f"{text}."
    lines = beyond_tables.beyond_glue_pairs(result).splitlines()
    assert lines[2:] == ["| agreement | 90.0 |", "| word order | 70.0 |", "| mean | 80.0 |"]


def test_paradigms_of_which_a_model_prefers_the_wrong_sentences_are_named() -> None:
    run = {"task": PAIRS, "baseline": 0.5, "accuracies": {"agreement": 0.9, "word_order": 0.38}}
    assert beyond_tables.below_chance([run]).endswith(": word order (38.0).")
    run["accuracies"] = {"agreement": 0.9}
    assert beyond_tables.below_chance([run, {"task": "ner", "baseline": 0.0}]) == ""


def test_tables_without_results_say_that_nothing_was_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beyond_tables, "OUTPUT", tmp_path / "none.json")
    for table in beyond_tables.TABLES:
        assert table().startswith("*Not run yet:*")


# ---- all of it -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_model_is_fine_tuned_and_scored_by_real_commands(
    command: list[str], tmp_path: Path
) -> None:
    sentence = "anna B-PER\nlives O\nin O\nparis B-LOC\n\n"
    for part, count in (("train", 8), ("valid", 6), ("test", 4)):
        path = tmp_path / "data" / "conll2003" / f"{part}.txt"
        path.write_text(sentence * count, encoding="utf8")
    beyond_glue.main([*command[:1], *command[2:], "--scale", "tiny", "--tasks", "ner"])
    run = read_runs(command)["ours: ner, seed 0"]
    assert run["steps"] == 2
    assert set(run["scores"]) == {"dev"}
