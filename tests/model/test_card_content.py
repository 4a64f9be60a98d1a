"""The language and the licence of a model stand in its card, where the hub reads them."""

from __future__ import annotations

import pytest

from electra.config import UserError
from electra.model.card import model_card, task_card
from electra.model.card_content import CardContent


def front_matter(card: str) -> list[str]:
    return card.split("---\n")[1].splitlines()


def test_one_language_is_a_text_and_several_are_a_list() -> None:
    one = task_card("ner", CardContent(language="de"), architecture=None)
    assert 'language: "de"' in front_matter(one)
    several = model_card("x", CardContent(language="de, en"), role="encoder")
    assert 'language: ["de", "en"]' in front_matter(several)
    assert "| Language | de, en |" in several


def test_a_licence_is_written_as_the_hub_writes_it() -> None:
    card = model_card("x", CardContent(license="Apache-2.0"), role="generator")
    assert 'license: "apache-2.0"' in front_matter(card)
    assert "| Licence | Apache-2.0 |" in card


@pytest.mark.parametrize("code", ["en", "swh", "zh-Hant", "pt-BR", "multilingual", "de,en,fr"])
def test_codes_of_languages_are_taken(code: str) -> None:
    assert CardContent(language=code).languages == code.split(",")


@pytest.mark.parametrize(
    "language", ["", "German", "d", "de,", "de\nlicense: mit", "en: x", ["de"]]
)
def test_what_is_no_code_of_a_language_is_refused(language: str) -> None:
    with pytest.raises(UserError, match="--language "):
        CardContent(language=language)


@pytest.mark.parametrize(
    "license", ["cc-by-sa-4.0", "apache-2.0", "MIT", "openrail++", "unknown", "other"]
)
def test_identifiers_of_licences_that_the_hub_knows_are_taken(license: str) -> None:
    assert CardContent(license=license).license == license


def test_a_misspelt_licence_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(UserError, match=r"say other; did you mean cc-by-sa-4\.0\?$"):
        CardContent(license="cc-by-sa-4")


@pytest.mark.parametrize(
    "license", ["", "foo", "my own", "mit\ntags: x", "../LICENSE", "a" * 65, 3]
)
def test_what_is_no_identifier_of_a_licence_is_refused(license: str) -> None:
    with pytest.raises(UserError, match="--license "):
        CardContent(license=license)
