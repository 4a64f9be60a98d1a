"""Messages of the command line in Python's words, and settings as flags."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from electra.api.keywords import as_flags, python_messages, takes_keywords, to_python
from electra.config import RunFailed, SettingError, UserError
from electra.data.sources import warn
from electra.finetuning.finetune import reporter

KEYWORDS = {
    "output_dir": Path("my run"),
    "resume": "auto",
    "resume_schedule": "same",
    "overwrite": False,
    "seeds": 0,
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--output-dir my run is a file", "output_dir='my run' is a file"),
        ("pass --resume-schedule stretch to accept", "pass resume_schedule='stretch' to accept"),
        ("--schedule constant or wsd", "settings[\"schedule\"] = 'constant' or wsd"),
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


@dataclass
class Arguments:
    """What `call` takes.

    Parameters
    ----------
    count
        A number.
    share
        Another.
    kind
        A choice.
    folder
        A path.
    settings
        Anything.
    quiet
        A switch.
    """

    count: int = 1
    share: float | None = None
    kind: Literal["all", "best"] = "all"
    folder: str | PathLike[str] | None = None
    settings: dict[str, object] | None = None
    quiet: bool = False


@takes_keywords(Arguments)
def call(arguments: Arguments) -> Arguments:
    """Return the arguments."""
    return arguments


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"count": [1, 2]}, r"electra\.call: count must be a whole number, found list \[1, 2\]"),
        ({"count": "3"}, "count must be a whole number, found str '3'"),
        ({"share": "x"}, "share must be a finite number, found str 'x'"),
        ({"kind": "bset"}, "kind must be one of 'all', 'best', found 'bset'; did you mean best"),
        ({"folder": 5}, "folder must be a path, found int"),
    ],
)
def test_a_keyword_of_another_type_is_refused_by_name(
    keywords: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        call(**keywords)


def test_keywords_of_the_right_type_pass_as_they_are() -> None:
    given = call(count=np.int64(3), share=1, kind="best", folder=Path("here"), quiet=np.True_)  # type: ignore[arg-type]
    assert given == Arguments(count=3, share=1, kind="best", folder=Path("here"), quiet=True)


def test_an_unknown_keyword_may_be_a_misspelt_one_or_a_setting() -> None:
    with pytest.raises(TypeError, match=r"did you mean share\? Or .* settings=\{\"shared\": …\}$"):
        call(shared=1)  # type: ignore[call-arg]


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
