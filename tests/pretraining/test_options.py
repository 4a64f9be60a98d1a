"""The options of `electra pretrain` and of `electra.pretrain` are one class."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path

import pytest

from electra import pretrain
from electra.cli import app
from electra.config import UserError
from electra.pretraining.options import PretrainOptions
from tests.wording import wording_of

wording = wording_of(__file__)

FIELDS = {field.name: field.default for field in dataclasses.fields(PretrainOptions)}


def test_the_python_function_shows_every_option_with_its_default() -> None:
    parameters = inspect.signature(pretrain).parameters
    for name, default in FIELDS.items():
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[name].default == default


def test_the_command_has_every_option() -> None:
    import electra.cli.pretraining  # noqa: F401 (adds the command)

    flags = [argument.names[0] for argument in app["pretrain"].assemble_argument_collection()]
    assert {"--" + name.replace("_", "-") for name in FIELDS} <= set(flags)


@pytest.mark.parametrize("name", FIELDS)
def test_every_option_is_explained_once_for_both(name: str) -> None:
    explanation = inspect.getdoc(PretrainOptions)
    assert explanation is not None
    assert f"\n{name}\n    " in explanation
    documentation = inspect.getdoc(pretrain)
    assert documentation is not None
    assert f"\n{name}\n    " in documentation


def test_an_unknown_option_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=wording("an_unknown_option_is_refused")):
        pretrain("tiny", output_dir=tmp_path, corpora=["texts"])


def test_paths_may_be_strings() -> None:
    options = PretrainOptions(data="rows", tokenizer="vocabulary", init_from="runs/one")  # type: ignore[arg-type]
    assert (options.data, options.tokenizer, options.init_from) == (
        Path("rows"),
        Path("vocabulary"),
        Path("runs/one"),
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give either --corpus"),
        ({"corpus": ["texts"], "data": "rows"}, "give either --corpus"),
        ({"corpus": []}, "name at least one file, folder or glob of text"),
        ({"data": "rows", "tokenizer": "vocabulary"}, "--tokenizer goes with --corpus"),
        ({"data": "rows", "init_from": "missing"}, "--init-from missing: no such folder"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    tmp_path: Path, options: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        PretrainOptions(**options).check(tmp_path / "run")  # type: ignore[arg-type]


def test_a_run_does_not_start_from_the_weights_it_would_overwrite(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=wording("a_run_does_not_start_from_the_weights_it_would_overwrite")
    ):
        PretrainOptions(data=Path("rows"), init_from=tmp_path).check(tmp_path)
