"""A search over settings: what it leaves, how it continues, and what it chooses."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from electra.__main__ import main
from electra.config import UserError
from electra.finetuning import search as search_module
from electra.finetuning.results import SeedResult, Summary
from electra.finetuning.search import Search, SettingsTrial
from electra.finetuning.search_plan import FIRST_SEED
from electra.tasks.models import load_tuned
from tests.tasks.toys import TOYS, keyword_rows, written

pytestmark = pytest.mark.usefixtures("few_threads")
FLAGS = ["--max-steps", "2", "--length", "16", "--batch-size", "4", "--dropout", "0"]
Run = Callable[..., Summary | None]


@pytest.fixture
def run(tiny: Path, tmp_path: Path) -> Run:
    """Search with six trainings, into the same folder each time."""
    dev = written(tmp_path / "dev.csv", keyword_rows(6))

    def search(**options: Any) -> Summary | None:
        values = {"flags": FLAGS, "search": 2, "dev": [dev], "dev_on_train": False} | options
        return TOYS["classes"].learnt(tiny, tmp_path / "run", **values)

    return search


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int]]:
    """Trials that are not trained: the score depends on the learning rate and the seed."""
    trained: list[tuple[float, int]] = []
    scores = {3e-4: 0.6, 1.5e-4: 0.7, 6e-4: 0.9, 1e-4: 0.5, 9e-4: 0.8}

    def play(setup: Any, seed: int, folder: Path, *_: Any, **__: Any) -> SeedResult:
        rate = setup.config.learning_rate
        trained.append((rate, seed))
        score = scores[rate]
        if (rate, seed) == (6e-4, FIRST_SEED + 1):
            score = 0.1  # its first seed was lucky
        result = SeedResult(
            seed=seed,
            score=score,
            scores={"dev": {"accuracy": score}},
            baseline=0.5,
            degenerate=False,
            diverged=False,
            steps=2,
            micro_batch_size=4,
            seconds=30.0,
        )
        folder.mkdir(parents=True)
        result.save(folder)
        (folder / "predictions-dev.jsonl").write_text("{}\n")
        return result

    monkeypatch.setattr(search_module, "finetune_seed", play)
    return trained


def test_the_best_settings_are_trained_and_all_trials_are_kept(
    run: Run, played: list[tuple[float, int]], tmp_path: Path
) -> None:
    summary = run(search=5, seeds=2)
    assert summary is not None
    assert [seed for _, seed in played] == [FIRST_SEED] * 5
    search = summary.made["search"]
    assert search["flags"] == "--learning-rate 0.0006"
    assert [trial["mean"] for trial in search["trials"]] == [0.9, 0.8, 0.7, 0.6, 0.5]
    assert summary.made["settings"]["learning_rate"] == 6e-4
    assert summary.made["selection"].startswith("settings: the best of 5 on dev")
    assert json.loads((tmp_path / "run" / "results.json").read_text())["made"]["search"] == search
    assert "learning_rate = 0.0006" in (tmp_path / "run" / "config.toml").read_text()
    assert [result.seed for result in summary.runs] == [0, 1]
    assert not list((tmp_path / "run" / "search").rglob("predictions*"))


def test_a_lucky_seed_does_not_decide(run: Run, played: list[tuple[float, int]]) -> None:
    summary = run(search=6, flags=[*FLAGS, "--epochs", "1"])
    assert summary is not None
    again = {rate for rate, seed in played if seed == FIRST_SEED + 1}
    assert len(again) == 2
    best = summary.made["search"]["trials"][0]
    assert len(best["scores"]) == 2
    assert best["settings"]["learning_rate"] != 6e-4


def test_a_trial_whose_score_is_no_number_is_the_last() -> None:
    scores = ([math.nan, 0.9], [0.5], [math.nan], [0.7], [0.6, 0.6])
    trials = [SettingsTrial(number, {}, each) for number, each in enumerate(scores, start=1)]
    search: Any = SimpleNamespace(setup=SimpleNamespace(task=SimpleNamespace(metric="accuracy")))
    ranked = Search.rank(search, trials)
    assert [trial.number for trial in ranked[:3]] == [5, 4, 2]


def test_minutes_end_a_search_and_leave_a_third_for_the_best(
    run: Run, played: list[tuple[float, int]]
) -> None:
    run(search=None, search_minutes=3.0)  # of 30 seconds each: four, and two again
    assert [seed for _, seed in played] == [FIRST_SEED] * 4 + [FIRST_SEED + 1] * 2


def test_a_search_that_was_stopped_goes_on_where_it_was(
    run: Run, played: list[tuple[float, int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play = search_module.finetune_seed
    left = 2

    def stop_in_the_third(*arguments: Any, **more: Any) -> SeedResult | None:
        nonlocal left
        left -= 1
        return play(*arguments, **more) if left >= 0 else None

    monkeypatch.setattr(search_module, "finetune_seed", stop_in_the_third)
    with pytest.raises(AssertionError):  # the toy expects an end
        run(search=5)
    assert json.loads((tmp_path / "run" / "status.json").read_text())["status"] == "stopped"
    first = list(played)
    monkeypatch.setattr(search_module, "finetune_seed", play)
    summary = run(search=5)
    assert summary is not None
    assert played[:2] == first
    assert len(played) == len(set(played)) == 5
    played.clear()
    again = run(search=5)
    assert again is not None
    assert played == []
    assert again.made["search"] == summary.made["search"]
    with pytest.raises(UserError, match=r"search.trainings: here 5, asked 4"):
        run(search=4)
    with pytest.raises(UserError, match=r"search.trainings: here 5, asked None"):
        run(search=None)


def test_real_trials_leave_results_and_no_models(run: Run, tmp_path: Path) -> None:
    summary = run()
    assert summary is not None
    files = {path.name for path in (tmp_path / "run" / "search").rglob("*") if path.is_file()}
    assert files == {"metrics.jsonl", "result.json"}
    assert load_tuned(tmp_path / "run").folder == tmp_path / "run" / "seed-0" / "model"
    assert replace(summary, runs=[]).made["search"]["trials"][0]["steps"] == [2]
    run(resume="never", overwrite=True, search=None)
    assert not (tmp_path / "run" / "search").exists()


def test_a_dry_run_says_how_many_trainings_and_writes_nothing(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = written(tmp_path / "train.csv", keyword_rows(8))
    argv = f"finetune {tiny} --task classify --train {train} --dev-share 0.25".split()
    argv += ["--length", "16", "--output-dir", str(tmp_path / "run"), "--search"]
    assert main([*argv, "12", "--dry-run"]) == 0
    assert "search: 12 trainings: 8 settings of" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()
    assert main([*argv, "99", "--dry-run"]) == 2
    assert "there are only 45 settings" in capsys.readouterr().err
    assert main([*argv[:3], "glue", "--data", str(tmp_path), *argv[8:], "4"]) == 2
    assert "--search is for one task" in capsys.readouterr().err
