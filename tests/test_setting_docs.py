"""Settings are printed with their choices and with the comments of the source."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from electra.__main__ import main
from electra.cli.settings import settings_page
from electra.config import build
from electra.finetuning.recipe import FinetuneConfig
from electra.finetuning.similar_settings import SimilarConfig
from electra.pretraining.recipe import Recipe, TrainingConfig, load_recipe
from electra.setting_docs import as_commented_toml, field_comments, list_sections, own_comments
from electra.settings import recipe_names, setting_keys

DOCS = Path(__file__).parents[1] / "docs"


def test_comments_above_and_beside_a_field_are_its_meaning() -> None:
    source = '''
    class Sizes:
        """Text with a # sign."""

        # above,
        # in two lines
        first: int = 1
        second: tuple[int, ...] = (
            1,
        )  # beside
        third: str = "# no comment"
        # of no field

        fourth: int = 2
    '''
    assert own_comments(source) == {
        "first": "above, in two lines",
        "second": "beside",
        "third": "",
        "fourth": "",
    }


def test_the_comments_are_those_of_the_source() -> None:
    assert field_comments(TrainingConfig)["batch_size"] == (
        "sequences in a step, over all processes"
    )


@pytest.mark.parametrize("name", recipe_names())
def test_settings_with_comments_build_the_same_recipe(name: str) -> None:
    recipe = load_recipe(name)
    assert build(Recipe, tomllib.loads(as_commented_toml(recipe)), source="printed") == recipe


def test_printed_settings_have_their_choices_and_comments_and_those_that_are_not_set(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["pretrain", "small", "--print-config"]) == 0
    printed = capsys.readouterr().out
    assert 'schedule = "linear"  # linear, cosine, constant, wsd' in printed
    assert "batch_size = 128  # a whole number; sequences in a step, over all proc" in printed
    assert "# micro_batch_size is unset" in printed


def test_the_page_of_settings_is_what_the_command_prints_and_holds_every_key() -> None:
    page = settings_page()
    assert (DOCS / "settings.md").read_text(encoding="utf8").rstrip() == page, (
        "write it again: electra settings > docs/settings.md"
    )
    for key in setting_keys(Recipe):
        assert f"| `{key}` |" in page


def test_every_setting_says_what_it_means() -> None:
    for config in (Recipe, FinetuneConfig, SimilarConfig):
        for section in list_sections(config):
            silent = [setting.name for setting in section.settings if not setting.meaning]
            assert not silent, f"write a comment at these fields of [{section.key}]: {silent}"


def test_settings_can_be_looked_up_by_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", "warmup-steps"]) == 0
    printed = capsys.readouterr().out
    assert "`optimizer.warmup_steps`" in printed
    assert "batch_size" not in printed
    assert main(["settings", "nonsense"]) == 2
