"""A fine-tuned model is described by its task, its scores and its network."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from electra import atomic
from electra.__main__ import main


@pytest.mark.parametrize("part", ["", "seed-0", "seed-0/model"])
def test_a_fine_tuning_its_seed_and_its_model_are_described_alike(
    part: str, by_heart: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["describe", str(by_heart("classes") / part)]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "classification, 2 classes: cats, dogs" in shown
    assert "accuracy 100.0 (an answer that ignores the text: 50.0)" in shown
    assert "ElectraForSequenceClassification" in shown


def test_the_json_holds_the_result_of_every_seed(
    by_heart: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["describe", str(by_heart("tags")), "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert (described["task"], described["metric"]) == ("ner", "f1")
    assert [result["seed"] for result in described["results"]] == [0]
    assert described["encoder"]["layers"] > 0
    assert described["head_parameters"] > 0


def test_a_fine_tuning_without_a_model_yet_is_refused_with_its_status(
    tmp_path: Path, complaint: Callable[..., str]
) -> None:
    atomic.write_json(tmp_path / "run.json", {})
    atomic.write_json(tmp_path / "status.json", {"status": "stopped"})
    (tmp_path / "config.toml").write_text("learning_rate = 0.1\n", encoding="utf8")
    message = complaint("describe", tmp_path)
    assert message.startswith(f"{tmp_path}: a fine-tuning (stopped) without its results yet; ")
