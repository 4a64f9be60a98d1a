"""The time that is left over all trainings of a command."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest

from electra.console import Terminal
from electra.runs.journal import Journal
from electra.runs.progress import OverallProgress, format_duration, progress_bar


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands still unless it is set."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_time_left_counts_all_trainings(clock: list[float]) -> None:
    overall = OverallProgress(trainings=3)
    overall.plan("rte", 3 * 100 * 8)
    overall.begin("seed 1/3", batch_size=8)
    assert overall.seconds_left() is None
    clock[0] = 10.0
    overall.advance(50)
    assert overall.seconds_left() == pytest.approx(50.0)
    overall.end(planned=100, steps=100)
    clock[0] = 20.0
    assert overall.seconds_left() == pytest.approx(40.0)


def test_time_left_is_measured_only_on_what_this_command_trained(clock: list[float]) -> None:
    overall = OverallProgress(trainings=3)
    overall.plan("rte", 300)
    overall.begin("seed 1/3", batch_size=1)
    overall.end(planned=100, steps=100, was_done=True)
    overall.begin("seed 2/3", batch_size=1)
    overall.resume(50)
    assert overall.seconds_left() is None
    clock[0] = 10.0
    overall.advance(60)
    assert overall.seconds_left() == pytest.approx(140.0)


def test_a_training_that_ends_early_shortens_the_time_left(clock: list[float]) -> None:
    overall = OverallProgress(trainings=2)
    overall.plan("", 200)
    overall.begin("seed 1/2", batch_size=1)
    clock[0] = 10.0
    overall.end(planned=100, steps=10)
    assert overall.seconds_left() == pytest.approx(100.0)


def test_a_plain_line_shows_the_training_and_both_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], clock: list[float]
) -> None:
    overall = OverallProgress(trainings=2)
    overall.plan("", 2 * 8 * 4)
    overall.begin("seed 1/2", batch_size=4)
    with Journal(tmp_path / "metrics.jsonl", max_steps=8, overall=overall) as journal:
        clock[0] = 20.0
        journal.record(
            2, {"loss": 0.5, "examples_per_second": 1234.0, "tokens_per_second": 99_999.0}
        )
    said = capsys.readouterr().err.splitlines()
    assert said == ["seed 1/2  step 2/8  loss 0.5000  1,234 examples/s  left 1m00s, in all 2m20s"]


def test_the_progress_bar_of_several_trainings_is_whole_in_80_columns(clock: list[float]) -> None:
    screen = io.StringIO()
    console = Terminal(file=screen, width=80, highlight=False)
    overall, bar = OverallProgress(trainings=90), progress_bar(console)
    overall.plan("", 1_000_000)
    overall.begin("sst-2 2/9, seed 10/10", batch_size=32)
    clock[0] = 3600.0
    overall.advance(1000)
    bar.add_task("loss 0.6931  1,024 examples/s", total=6_315, completed=1000, overall=overall)
    console.print(bar.get_renderable())
    shown = " ".join(screen.getvalue().split())
    left = format_duration(3600 / 32_000 * (1_000_000 - 32_000))
    for part in ("sst-2 2/9, seed 10/10", "1,000/6,315", "0.6931", "examples/s", f"in all {left}"):
        assert part in shown
    assert max(map(len, screen.getvalue().splitlines())) <= 80
