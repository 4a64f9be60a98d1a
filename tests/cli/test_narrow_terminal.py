"""In a terminal of 80 columns no word of a table is cut, folded or lost."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from electra.__main__ import main
from electra.experiments.plan import load_trial, trial_names
from tests.tasks.toys import keyword_rows, written


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns without colours."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")  # which makes rich see a terminal
    monkeypatch.setenv("NO_COLOR", "1")


def printed(*argv: object, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a command prints, without the codes for bold text."""
    capsys.readouterr()
    assert main(list(map(str, argv))) == 0
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert "…" not in shown
    return shown


@pytest.mark.parametrize("recipe", ["small", "large", "all-tokens-mlm-base"])
def test_the_names_of_networks_are_whole(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed("describe", recipe, capsys=capsys)
    assert max(map(len, shown.splitlines())) <= 80
    assert {"generator", "feed-forward", "positions"} <= set(shown.split())


def test_the_names_of_trials_and_arms_are_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = trial_names()
    assert set(names) <= set(printed("trials", "list", capsys=capsys).split())
    words = ("trials", "run", "all", "--scale", "paper", "--output-dir", tmp_path, "--dry-run")
    shown = set(printed(*words, capsys=capsys).split())
    arms = {arm.name for name in names for arm in load_trial(name).runnable_arms()}
    assert {*names, *arms, "1,000,000", "7.71e+19"} <= shown


def test_every_score_of_a_fine_tuning_is_whole_and_the_next_command_is_named(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = written(tmp_path / "rows.csv", keyword_rows(8))
    run = tmp_path / "my run"
    data = ("--train", rows, "--dev", rows, "--dev-on-train", "--max-steps", "1")
    capsys.readouterr()
    words = ("finetune", tiny, "--task", "classify", *data, "--output-dir", run)
    assert main(list(map(str, words))) == 0
    output = capsys.readouterr()
    shown = re.sub(r"\x1b\[[0-9;]*m", "", output.out)
    assert "…" not in shown
    assert {"median", "baseline", "accuracy", "seeds"} <= set(shown.split())
    assert {"class", "precision", "recall", "cats", "dogs"} <= set(shown.split())
    assert "classify, other scores: f1 " in shown
    assert f"electra predict '{run}' new.csv --output '{run}-predictions.jsonl'" in output.err
