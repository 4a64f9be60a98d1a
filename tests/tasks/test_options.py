"""Options of a task on the command line are the fields of its class."""

from __future__ import annotations

import pytest

from electra import tasks
from electra.config import UserError
from electra.tasks import split_options, task_class
from tests.wording import wording_of

wording = wording_of(__file__)


def test_options_of_the_task_are_taken_out_and_converted_and_settings_are_left() -> None:
    flags = [
        "--head",
        "simple",
        "--epochs",
        "3",
        "--unanswerable",
        "--stride=64",
        "--null-threshold",
        "-1.5",
    ]
    options, rest = split_options(task_class("squad-2.0"), flags)
    assert options == {
        "head_kind": "simple",
        "unanswerable": True,
        "stride": 64,
        "null_threshold": -1.5,
    }
    assert rest == ["--epochs", "3"]


def test_the_value_of_a_setting_is_no_option_of_the_task() -> None:
    flags = ["--txt", "text", "--label", "stars"]
    assert split_options(task_class("classify"), flags) == ({"label": "stars"}, ["--txt", "text"])


def test_a_flag_may_say_true_or_false_or_stand_alone() -> None:
    for flags, expected in (
        (["--regression"], True),
        (["--regression", "false"], False),
        (["--regression=true"], True),
    ):
        assert split_options(task_class("classify"), flags) == ({"regression": expected}, [])


def test_several_columns_are_separated_by_commas() -> None:
    assert split_options(task_class("choose"), ["--options", "a,b,c"])[0] == {
        "options": ("a", "b", "c")
    }


def test_what_is_learnt_from_data_is_no_option() -> None:
    for flag in ("--labels", "--name", "--metrics"):
        assert split_options(task_class("classify"), [flag, "x"]) == ({}, [flag, "x"])


def test_an_option_without_its_value_is_refused() -> None:
    with pytest.raises(UserError, match=wording("an_option_without_its_value_is_refused")):
        split_options(task_class("classify"), ["--label", "--text", "sentence"])


def test_every_name_leads_to_a_task_that_survives_its_settings() -> None:
    for name in (*tasks.NAMES, "glue/rte"):
        task = tasks.find_task(name)
        assert task.name == name
        assert tasks.restore_task(task.settings(), source="config.json") == task


def test_an_unknown_task_is_refused_with_all_names_and_similar_with_its_command() -> None:
    with pytest.raises(UserError, match=r"--task nothing: unknown; tasks are .*race, similar$"):
        task_class("nothing")
    with pytest.raises(UserError, match=r"--task similar: .*use `electra embed`"):
        task_class("similar")
