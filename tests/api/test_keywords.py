"""Messages of the command line in Python's words, and settings as flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from electra.api.keywords import as_flags, python_messages, to_python
from electra.config import RunFailed, SettingError, UserError
from electra.data.sources import warn
from electra.finetuning.finetune import reporter

KEYWORDS = {"output_dir": Path("my run"), "resume": "auto", "overwrite": False, "seeds": 0}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--output-dir my run is a file", "output_dir='my run' is a file"),
        ("choose another --output-dir, or", "choose another output_dir=, or"),
        ("add --resume never --overwrite to", "add resume='never' overwrite=True to"),
        ("--overwrite starts over", "overwrite=True starts over"),
        ("--seeds 0: at least one", "seeds=0: at least one"),
        ("raise --length", 'raise settings["length"]'),
        ("say --regression false", 'say settings["regression"] = False'),
        ("say --no-header and", 'say settings["header"] = False and'),
        ("--no-overwrite keeps it", "overwrite=False keeps it"),
        ("pass --data.length 64", 'pass settings["data.length"] = 64'),
        ("cut with `electra shard`", "cut with `electra.shard`"),
        ("`electra shard --length 8`, or", "`electra shard --length 8`, or"),
        ("The same command continues", "The same call continues"),
        ("a well-known -- dash", "a well-known -- dash"),
    ],
)
def test_flags_become_keywords_and_settings(text: str, expected: str) -> None:
    assert to_python(text, KEYWORDS) == expected


def test_warnings_speak_of_keywords() -> None:
    with pytest.warns(UserWarning, match="^check seeds=$"), python_messages(KEYWORDS):
        warn("check --seeds")
    with pytest.warns(UserWarning, match="^check --seeds$"):
        warn("check --seeds")


def test_what_is_printed_speaks_of_keywords(capsys: pytest.CaptureFixture[str]) -> None:
    say = reporter(quiet=False)
    with python_messages(KEYWORDS):
        say("regression (--regression false makes them classes); see --seeds")
    say("see --seeds")
    assert capsys.readouterr().err == (
        'regression (settings["regression"] = False makes them classes); see seeds=\nsee --seeds\n'
    )


@pytest.mark.parametrize("error", [UserError, RunFailed])
def test_errors_keep_their_kind(error: type[Exception]) -> None:
    with pytest.raises(error, match=r"another output_dir=$"), python_messages(KEYWORDS):
        raise error("choose another --output-dir")


def test_an_error_about_a_setting_keeps_its_key() -> None:
    with pytest.raises(SettingError) as caught, python_messages(KEYWORDS):
        raise SettingError("training.seed", "command line: must be positive")
    assert (caught.value.key, str(caught.value)) == (
        "training.seed",
        "settings: must be positive",
    )


def test_settings_become_flags() -> None:
    settings = {"learning_rate": 1e-4, "encoder": {"layers": 2}, "a": True, "b": None, "c": (1, 2)}
    assert as_flags(settings) == [
        "--learning-rate=0.0001",
        "--encoder.layers=2",
        "--a=true",
        "--b=none",
        "--c=1,2",
    ]
    assert as_flags(None) == []
