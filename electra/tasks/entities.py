"""Tags ⇄ entities: IOB1, IOB2 and BIOES name the same stretches of words in three ways; and entity
F1.

          Anna   Berg   Paris  France            B begins, I goes on, E ends, S stands alone, O is outside
IOB1      I-PER  I-PER  I-LOC  B-LOC             B only where two of one type touch
IOB2      B-PER  I-PER  B-LOC  B-LOC             B at every beginning
BIOES     B-PER  E-PER  S-LOC  S-LOC             BILOU is the same with L for E and U for S
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

SCHEMES = (
    "iob1",
    "iob2",
    "bioes",
    "plain",
)  # plain: no entities but a tag a word, as parts of speech are
OUTSIDE = "O"
TAG = re.compile(r"(?P<prefix>[BIESLU])(-(?P<type>.*))?")
BILOU = {"L": "E", "U": "S"}


class Entity(NamedTuple):
    """Words `start` up to, not including, `end`."""

    type: str
    start: int
    end: int


def parts(tag: str) -> tuple[str, str]:
    """`B-PER` as B and PER; a tag of no scheme is outside, like O."""
    match = TAG.fullmatch(tag)
    if match is None:
        return OUTSIDE, ""
    return BILOU.get(match["prefix"], match["prefix"]), match["type"] or ""


def is_entity_tag(tag: str) -> bool:
    return tag == OUTSIDE or TAG.fullmatch(tag) is not None


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of a sentence by the rule of the CoNLL evaluation, which reads every scheme and
    every sequence.

    One begins at B, at S, and at an I or E that has nothing to go on from: whatever a tagger says
    has one meaning.
    """
    found: list[Entity] = []
    start, before, type_before = 0, OUTSIDE, ""
    for place, tag in enumerate((*tags, OUTSIDE)):
        prefix, type = parts(tag)
        goes_on = prefix in ("I", "E") and before in ("B", "I") and type == type_before
        if not goes_on:
            if before != OUTSIDE:
                found.append(Entity(type_before, start, place))
            start = place
        before, type_before = prefix, type
    return found


def spelled(found: Sequence[Entity], *, words: int, scheme: str) -> list[str]:
    """Entities as one tag for each word."""
    tags = [OUTSIDE] * words
    for entity in found:
        type = f"-{entity.type}" if entity.type else ""
        tags[entity.start : entity.end] = [f"I{type}"] * (entity.end - entity.start)
        touches = any(other.type == entity.type and other.end == entity.start for other in found)
        if scheme != "iob1" or touches:
            tags[entity.start] = f"B{type}"
        if scheme == "bioes":
            tags[entity.end - 1] = f"{'S' if entity.end - entity.start == 1 else 'E'}{type}"
    return tags


def in_scheme(tags: Sequence[str], scheme: str) -> list[str]:
    """The same entities in another scheme."""
    return spelled(entities(tags), words=len(tags), scheme=scheme)


def scheme_of(sentences: Iterable[Sequence[str]]) -> str:
    """The scheme of tags that are all of one: `plain` unless every tag is O or has a prefix."""
    found = "iob2"
    for tags in sentences:
        if not all(map(is_entity_tag, tags)):
            return "plain"
        prefixes = {parts(tag)[0] for tag in tags}
        if prefixes & {"E", "S"}:
            found = "bioes"
        elif found == "iob2" and any(
            parts(tags[entity.start])[0] == "I" for entity in entities(tags)
        ):
            found = "iob1"
    return found


def entity_scores(
    gold: Iterable[Sequence[str]], found: Iterable[Sequence[str]]
) -> dict[str, float]:
    """Precision, recall and F1 over all entities of all sentences: right are those with the same
    words and type.
    """
    right = wanted = given = 0
    for gold_tags, found_tags in zip(gold, found, strict=True):
        gold_entities, found_entities = set(entities(gold_tags)), set(entities(found_tags))
        right += len(gold_entities & found_entities)
        wanted += len(gold_entities)
        given += len(found_entities)
    # 2·right / (wanted + given) is the harmonic mean, and is defined where precision and recall are
    # not.
    return {
        "precision": right / max(1, given),
        "recall": right / max(1, wanted),
        "f1": 2 * right / max(1, wanted + given),
    }
