from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra.tasks.entities import (
    Entity,
    convert_scheme,
    detect_scheme,
    entities_to_tags,
    entity_scores,
    get_entities,
)

SAME = {  # Anna Berg visits Paris France: a person of two words, then two places that touch
    "iob1": "I-PER I-PER O I-LOC B-LOC".split(),
    "iob2": "B-PER I-PER O B-LOC B-LOC".split(),
    "bioes": "B-PER E-PER O S-LOC S-LOC".split(),
}
ANNA, PARIS, FRANCE = Entity("PER", 0, 2), Entity("LOC", 3, 4), Entity("LOC", 4, 5)


@st.composite
def sentences(draw: st.DrawFn) -> tuple[list[Entity], int]:
    """Entities that do not overlap, in order, with or without words between, and the number of
    words.
    """
    found, place = [], 0
    for gap, length, type in draw(
        st.lists(
            st.tuples(
                st.integers(0, 2),
                st.integers(1, 3),
                st.sampled_from(["PER", "LOC", "time-span", ""]),
            ),
            max_size=6,
        )
    ):
        found.append(Entity(type, place + gap, place + gap + length))
        place += gap + length
    return found, place + draw(st.integers(0, 2))


# ---- schemes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SAME)
def test_every_scheme_names_the_same_entities(scheme: str) -> None:
    assert get_entities(SAME[scheme]) == [ANNA, PARIS, FRANCE]


def test_bilou_is_read_as_bioes_with_other_letters() -> None:
    assert get_entities("B-PER L-PER O U-LOC U-LOC".split()) == [ANNA, PARIS, FRANCE]


@pytest.mark.parametrize("source", SAME)
@pytest.mark.parametrize("target", SAME)
def test_tags_are_converted_from_any_scheme_to_any_other(source: str, target: str) -> None:
    assert convert_scheme(SAME[source], target) == SAME[target]


@given(
    sentences(),
    st.sampled_from(["iob1", "iob2", "bioes"]),
    st.sampled_from(["iob1", "iob2", "bioes"]),
)
def test_entities_survive_every_conversion(
    sentence: tuple[list[Entity], int], first: str, second: str
) -> None:
    found, words = sentence
    tags = entities_to_tags(found, words=words, scheme=first)
    assert len(tags) == words
    assert get_entities(tags) == found
    assert get_entities(convert_scheme(tags, second)) == found


@given(st.lists(st.sampled_from("O B-X I-X E-X S-X B-Y I-Y E-Y S-Y".split())))
def test_whatever_a_tagger_says_has_a_meaning_that_can_be_written_down(tags: list[str]) -> None:
    assert get_entities(convert_scheme(tags, "iob2")) == get_entities(tags)
    assert detect_scheme([convert_scheme(tags, "iob2")]) == "iob2"


@pytest.mark.parametrize(
    ("tags", "meaning"),
    [
        ("O I-PER I-PER", [Entity("PER", 1, 3)]),  # an I that nothing precedes begins
        ("B-PER I-LOC", [Entity("PER", 0, 1), Entity("LOC", 1, 2)]),  # another type begins
        (
            "B-PER E-PER I-PER",
            [Entity("PER", 0, 2), Entity("PER", 2, 3)],
        ),  # what has ended does not continue
        ("B I O B", [Entity("", 0, 2), Entity("", 3, 4)]),  # one kind of entity needs no name
        ("", []),
    ],
)
def test_tags_out_of_order_mean_what_the_conll_evaluation_takes_them_for(
    tags: str, meaning: list[Entity]
) -> None:
    assert get_entities(tags.split()) == meaning


@pytest.mark.parametrize(
    ("sentences", "scheme"),
    [
        (["O O", "I-PER O"], "iob1"),
        (["B-PER I-PER", "B-PER B-PER"], "iob2"),
        (["B-PER I-PER", "S-PER"], "bioes"),
        (["DET NOUN", "VERB"], "plain"),
    ],
)
def test_the_scheme_is_told_by_the_tags(sentences: list[str], scheme: str) -> None:
    assert detect_scheme(tags.split() for tags in sentences) == scheme


# ---- F1 ------------------------------------------------------------------------------------------


def test_an_entity_counts_when_its_words_and_its_type_are_right() -> None:
    gold = ["B-PER I-PER O B-LOC".split(), "B-ORG O".split()]
    found = [
        "B-PER O     O B-LOC".split(),
        "B-LOC O".split(),
    ]  # one too short, one right, one of another type
    assert entity_scores(gold, found) == {"precision": 1 / 3, "recall": 1 / 3, "f1": 1 / 3}


def test_f1_is_over_all_entities_and_not_a_mean_of_sentences() -> None:
    gold = ["B-PER B-PER B-PER".split(), "O B-PER".split()]
    found = ["B-PER B-PER B-PER".split(), "B-PER O".split()]
    assert entity_scores(gold, found) == {"precision": 0.75, "recall": 0.75, "f1": 0.75}


def test_scores_do_not_depend_on_the_scheme() -> None:
    found = "B-PER I-PER O B-LOC O".split()  # France is missed
    for gold in SAME.values():
        assert entity_scores([gold], [found]) == {"precision": 1.0, "recall": 2 / 3, "f1": 0.8}


def test_a_tagger_that_finds_nothing_scores_zero() -> None:
    assert entity_scores([SAME["iob2"]], [["O"] * 5]) == {
        "precision": 0.0,
        "recall": 0.0,
        "f1": 0.0,
    }
