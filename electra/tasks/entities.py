"""Tags ⇄ entities in the schemes IOB1, IOB2 and BIOES, and entity F1.

          Anna   Berg   Paris  France   B begins, I continues, E ends, S stands alone, O is outside
IOB1      I-PER  I-PER  I-LOC  B-LOC    B only where two of one type touch
IOB2      B-PER  I-PER  B-LOC  B-LOC    B at every beginning
BIOES     B-PER  E-PER  S-LOC  S-LOC    BILOU is the same with L for E and U for S
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

SCHEMES = ("iob1", "iob2", "bioes", "plain")  # plain: no entities, as in parts of speech
OUTSIDE = "O"
TAG = re.compile(r"(?P<prefix>[BIESLU])(-(?P<type>.*))?")
# B-PER, but in lower case, with another sign between, or with the prefix at the end.
LIKE_ENTITY = re.compile(r"[BIESLU][-_]\S+|\S+[-_][BIESLU]", re.IGNORECASE)
BILOU = {"L": "E", "U": "S"}


class Entity(NamedTuple):
    """Words `start` up to, not including, `end`."""

    type: str
    start: int
    end: int


def split_tag(tag: str) -> tuple[str, str]:
    """Split `B-PER` into B and PER; a tag of no scheme is outside, like O."""
    match = TAG.fullmatch(tag)
    if match is None:
        return OUTSIDE, ""
    return BILOU.get(match["prefix"], match["prefix"]), match["type"] or ""


def is_entity_tag(tag: str) -> bool:
    return tag == OUTSIDE or TAG.fullmatch(tag) is not None


def misspelt_entity_tag(tags: set[str]) -> str | None:
    """Return a tag, if all but O look like tags of entities that are spelled in another way."""
    inside = sorted(tag for tag in tags if tag.upper() != OUTSIDE)
    if not all(LIKE_ENTITY.fullmatch(tag) for tag in inside):
        return None
    return next((tag for tag in inside if not is_entity_tag(tag)), None)


def get_entities(tags: Sequence[str]) -> list[Entity]:
    """Return the entities of a sentence, by the rule of the CoNLL evaluation.

    It reads every scheme and every sequence: an entity begins at B, at S, and at an I or E that
    continues nothing.
    """
    entities: list[Entity] = []
    start, previous, previous_type = 0, OUTSIDE, ""
    for position, tag in enumerate((*tags, OUTSIDE)):
        prefix, type = split_tag(tag)
        continues = prefix in ("I", "E") and previous in ("B", "I") and type == previous_type
        if not continues:
            if previous != OUTSIDE:
                entities.append(Entity(previous_type, start, position))
            start = position
        previous, previous_type = prefix, type
    return entities


def entities_to_tags(entities: Sequence[Entity], *, words: int, scheme: str) -> list[str]:
    """Return one tag for each of so many words."""
    tags = [OUTSIDE] * words
    for entity in entities:
        type = f"-{entity.type}" if entity.type else ""
        size = entity.end - entity.start
        tags[entity.start : entity.end] = [f"I{type}"] * size
        touches = any(other.type == entity.type and other.end == entity.start for other in entities)
        if scheme != "iob1" or touches:
            tags[entity.start] = f"B{type}"
        if scheme == "bioes":
            last = "S" if size == 1 else "E"
            tags[entity.end - 1] = f"{last}{type}"
    return tags


def convert_scheme(tags: Sequence[str], scheme: str) -> list[str]:
    """Return the tags of the same entities in another scheme."""
    return entities_to_tags(get_entities(tags), words=len(tags), scheme=scheme)


def detect_scheme(sentences: Iterable[Sequence[str]]) -> str:
    """Return the scheme of tagged sentences: `plain` unless every tag is O or has a prefix."""
    scheme = "iob2"
    for tags in sentences:
        if not all(map(is_entity_tag, tags)):
            return "plain"
        prefixes = {split_tag(tag)[0] for tag in tags}
        if prefixes & {"E", "S"}:
            scheme = "bioes"
        elif scheme == "iob2" and begins_with_inside(tags):
            scheme = "iob1"
    return scheme


def begins_with_inside(tags: Sequence[str]) -> bool:
    """Say whether an entity begins with I, as only IOB1 has it."""
    return any(split_tag(tags[entity.start])[0] == "I" for entity in get_entities(tags))


def entity_scores(
    gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]
) -> dict[str, float]:
    """Compute precision, recall and F1 over all entities: correct ones have all words and type."""
    num_correct = num_gold = num_predicted = 0
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        gold_entities = set(get_entities(gold_tags))
        predicted_entities = set(get_entities(predicted_tags))
        num_correct += len(gold_entities & predicted_entities)
        num_gold += len(gold_entities)
        num_predicted += len(predicted_entities)
    # This F1 is the harmonic mean, and is defined where precision and recall are not.
    return {
        "precision": num_correct / max(1, num_predicted),
        "recall": num_correct / max(1, num_gold),
        "f1": 2 * num_correct / max(1, num_gold + num_predicted),
    }
