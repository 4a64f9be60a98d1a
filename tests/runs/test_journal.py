"""What a run says, and what is left of it after an accident."""

from __future__ import annotations

import io
import json
import math
import os
from pathlib import Path

import pytest
import torch

from electra.config import UserError
from electra.console import Terminal, progress_bars
from electra.runs.journal import (
    Journal,
    MetricsWindow,
    draw_chart,
    format_metrics,
    read_metrics,
)
from electra.runs.progress import OverallProgress, format_duration, progress_bar
from electra.runs.trackers import Tracking


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf8").splitlines()]


def test_every_record_is_one_line_on_disk_at_once(tmp_path: Path) -> None:
    with Journal(tmp_path / "metrics.jsonl", max_steps=9, quiet=True) as journal:
        journal.record(1, {"loss": 2.5})
        journal.record(2, {"auc": 0.5}, prefix="eval_")
        written = lines(tmp_path / "metrics.jsonl")
    assert [{k: v for k, v in entry.items() if k != "time"} for entry in written] == [
        {"step": 1, "loss": 2.5},
        {"step": 2, "eval_auc": 0.5},
    ]


def test_the_parts_of_a_loss_are_shown_in_its_place_and_those_of_ones_own_last() -> None:
    values = {"loss": 9.0, "clm": 6.5, "mlm": 5.0, "rtd": 0.25, "tokens_per_second": 1e3}
    shown = "mlm 5.000  rtd 0.2500  clm 6.5000  1,000 tok/s"
    assert format_metrics(values, ["clm", "mlm", "rtd"]) == shown
    assert format_metrics({"loss": 9.0, "grad_norm": 1.0}, []) == "loss 9.0000"
    assert format_metrics({"a{0}": 1.0}, ["a{0}"]) == "a{0} 1.0000"


def test_a_number_that_is_not_finite_is_written_as_null(tmp_path: Path) -> None:
    with Journal(tmp_path / "metrics.jsonl", max_steps=9, quiet=True) as journal:
        journal.record(1, {"loss": math.nan, "grad_norm": math.inf})
    entry = lines(tmp_path / "metrics.jsonl")[0]
    assert (entry["loss"], entry["grad_norm"]) == (None, None)


def test_the_progress_of_a_long_run_is_whole_in_80_columns() -> None:
    screen = io.StringIO()
    console = Terminal(file=screen, width=80, highlight=False)
    bar = progress_bar(console)
    metrics = "mlm 4.286  rtd 0.3811  auc 0.794  2,143,000 tok/s  MFU 21.3%  wait 0.7%"
    bar.add_task(metrics, total=1_000_000, completed=999_999, overall=OverallProgress())
    console.print(bar.get_renderable())
    shown = screen.getvalue().split()
    assert "step 999,999/1,000,000" in " ".join(shown)
    assert set(metrics.split()) | {"-:--:--"} <= set(shown)
    assert max(map(len, screen.getvalue().splitlines())) <= 80


def test_a_resumed_run_forgets_the_steps_it_takes_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"step": {step}, "loss": {step}}}\n' for step in range(1, 7)))
    with Journal(path, max_steps=9, after=4, quiet=True) as journal:
        journal.record(5, {"loss": 0.5})
    assert [(entry["step"], entry["loss"]) for entry in read_metrics(path)] == [
        (1, 1),
        (2, 2),
        (3, 3),
        (4, 4),
        (5, 0.5),
    ]


@pytest.mark.parametrize(
    "torn",
    [
        b'{"step": 3, "lo',
        b"\0\0\0\0",
        b"\xff\xfe{",
        b"[]\n",
        b'"x"\n',
        b"{}\n",
        b'{"step": null}\n',
    ],
)
def test_a_torn_line_is_passed_over_and_never_glued_to_the_next(
    tmp_path: Path, torn: bytes
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n' + torn)
    assert [entry["step"] for entry in read_metrics(path)] == [1, 2]
    with Journal(path, max_steps=9, after=2, quiet=True) as journal:
        journal.record(3, {"loss": 1.0})
    assert [entry["step"] for entry in lines(path)] == [1, 2, 3]


def test_a_journal_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "metrics.jsonl") == []


def test_a_process_that_does_not_lead_says_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Journal(None, max_steps=9) as journal:
        journal.record(1, {"loss": 1.0})
        journal.info("hello")
        journal.warn("beware")
    assert capsys.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_without_a_terminal_each_record_is_a_plain_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Journal(tmp_path / "metrics.jsonl", max_steps=8) as journal:
        journal.record(2, {"mlm": 5.0, "rtd": 0.25, "tokens_per_second": 1234.0})
        journal.warn("[not] markup")
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("step 2/8  mlm 5.000  rtd 0.2500  1,234 tok/s  left 0m0")
    assert said[1] == "warning: [not] markup"


def test_tensorboard_is_written_when_asked(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    tracking = Tracking("tensorboard")
    with Journal(tmp_path / "metrics.jsonl", max_steps=2, tracking=tracking, quiet=True) as journal:
        journal.record(1, {"loss": 1.0})
    assert list((tmp_path / "tensorboard").glob("events.*"))


def test_a_window_gives_means_and_then_begins_anew() -> None:
    window = MetricsWindow()
    for loss in (1.0, 3.0):
        window.add({"mlm": torch.tensor(loss)}, tokens=100)
    assert window.close(lambda tensors: None)["mlm"] == 2.0
    window.add({"mlm": torch.tensor(7.0)}, tokens=100)
    assert window.close(lambda tensors: None)["mlm"] == 7.0


def test_time_spent_on_the_next_batch_counts_as_waiting() -> None:
    window = MetricsWindow()
    assert window.next_batch(iter(["batch"])) == "batch"
    window.add({}, tokens=10)
    assert 0 < window.close(lambda tensors: None)["data_wait"] <= 1


def test_time_in_a_pause_is_not_time_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    # begun, steps are waited for, pause, continue, closed; the next begins
    clock = iter([0.0, 5.0, 10.0, 70.0, 90.0, 90.0])
    monkeypatch.setattr("electra.runs.journal.time.monotonic", lambda: next(clock))
    window = MetricsWindow()
    with window.pause(lambda: next(clock)):
        window.add({}, tokens=60)
    assert window.close(lambda tensors: None)["tokens_per_second"] == 60 / 30


def test_a_chart_falls_as_its_values_fall() -> None:
    drawn = draw_chart([4.0, 3.0, 2.0, 1.0], height=2).splitlines()
    assert drawn == ["   4.000 ┤█▃  ", "   1.000 ┤██▆▁"]


@pytest.mark.parametrize("values", [[2.0], [2.0, 2.0], list(range(1000))])
def test_a_chart_is_as_high_as_asked_and_no_wider_than_allowed(values: list[float]) -> None:
    drawn = draw_chart(values, width=60, height=8).splitlines()
    assert len(drawn) == 8
    assert all(len(line) == 10 + min(60, len(values)) for line in drawn)


def test_durations_are_in_the_units_people_use() -> None:
    assert [format_duration(s) for s in (5, 65, 3600 * 30 + 120)] == ["0m05s", "1m05s", "30h02m"]


def test_stages_and_reports_are_said_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bars() as (stage, report):
        stage("shards")(0.5)
        report("short text")
    assert capsys.readouterr().err.splitlines() == ["shards …", "warning: short text"]


def test_a_long_evaluation_shows_its_progress_without_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Journal(tmp_path / "metrics.jsonl", max_steps=1) as journal:
        assert list(journal.track("ab", "scoring dev")) == ["a", "b"]
        assert capsys.readouterr().err == "", "it was short"
        monkeypatch.setattr("electra.runs.journal.PROGRESS_SECONDS", 0.0)
        assert list(journal.track("ab", "scoring dev")) == ["a", "b"]
    assert capsys.readouterr().err == ("scoring dev: 1 of 2 batches\nscoring dev: 2 of 2 batches\n")


def test_a_journal_too_large_to_be_read_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.touch()
    os.truncate(path, 300 * 10**9)
    with pytest.raises(UserError, match=rf"{path}: cannot be read: 300,000,000,000 bytes long"):
        read_metrics(path)
