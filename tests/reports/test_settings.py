"""What a report says of settings, versions and hardware."""

from __future__ import annotations

from electra.reports.blocks import Fold, Grid
from electra.reports.settings import environment_section, flatten_stages, settings_section
from tests.experiments import invented


def test_settings_show_what_is_shared_once_and_what_is_an_arms_own():
    _, shared, first, *_ = settings_section(invented.efficiency())
    assert isinstance(shared, Fold)
    assert (
        shared.text
        == "optimizer.learning_rate = 0.0005\ntraining.max_steps = 2000\ntraining.batch_size = 256"
    )
    assert isinstance(first, Fold)
    assert first.text == (
        '# electra-0123abc0, electra-0123abc1\nobjective.name = "electra"\n'
        "training.seed = 0, 1  # by seed"
    )


def test_an_earlier_stage_shows_what_it_had_otherwise():
    first = {"training": {"seed": 1, "max_steps": 8}}
    last = {"training": {"seed": 1, "max_steps": 9}, "init_from": "one"}
    assert flatten_stages([first, last]) == {
        "training.seed": 1,
        "training.max_steps": 9,
        "init_from": "one",
        "stage 1: training.max_steps": 8,
        "stage 1: init_from": None,
    }


def test_versions_and_hardware_are_shown_once_where_all_runs_share_them():
    _, table = environment_section(invented.efficiency())
    assert isinstance(table, Grid)
    assert dict(table.rows)["hardware"] == "NVIDIA H200"
    assert dict(table.rows)["date"] == "2026-11-10; 2026-11-11"
