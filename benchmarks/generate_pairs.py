"""Write minimal pairs of English sentences, of which one is grammatical.

    python -m benchmarks.generate_pairs FOLDER [--pairs 500] [--seed 0]

Writes one JSONL file for each paradigm, with `sentence_good` and `sentence_bad` on each line, for
`python -m benchmarks.minimal_pairs`. The form is BLiMP's. Lexicon, templates and sentences are
ours, so accuracies on them are not accuracies on BLiMP. All words are common, both sentences of a
pair have as many words, and the same seed gives the same files.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.harness import build_parser, check_counts, run_main
from benchmarks.minimal_pairs import KEYS
from electra.config import UserError

Pair = tuple[str, str]

# ---- lexicon -------------------------------------------------------------------------------------

# Every noun has a plural in -s, and every verb without a list of forms is regular.
PEOPLE = "teacher doctor farmer soldier student lawyer writer singer driver worker artist judge"
MALE = "boy king father brother uncle husband son prince"
FEMALE = "girl queen mother sister aunt daughter bride widow"
THINGS = "book letter picture window garden house table ship car clock map door"
MASSES = "water money bread milk gold sand paper wood"
ADJECTIVES = "old new small large beautiful strange famous expensive"
STATES = "old young strong famous happy tired angry quiet"
PLACES = "garden house village city church market street forest"
INTRANSITIVE = "sleep laugh smile work wait sing swim walk travel wander"
TRANSITIVE = "visit help follow answer remember trust thank"  # people
PAST = "visited helped followed answered remembered trusted invited found"
WITH_OBJECT = "bought found painted sold liked loved described wanted"  # things
WITHOUT_OBJECT = "slept arrived disappeared vanished smiled laughed existed waited"
ON_ONESELF = "hurt blamed saw helped praised saved prepared protected"
TIMES = ("every day", "at night", "in the morning", "on the street", "all the time", "in the city")
# past tense, participle, objects
IRREGULAR = (
    ("wrote", "written", "letter book song story"),
    ("took", "taken", "picture book car map"),
    ("saw", "seen", "house ship garden clock"),
    ("broke", "broken", "window table clock door"),
    ("chose", "chosen", "picture book car song"),
    ("stole", "stolen", "car ship clock map"),
    ("drew", "drawn", "picture map house ship"),
    ("threw", "thrown", "book letter clock map"),
)
SUBJECTS = (("he", "him"), ("she", "her"), ("they", "them"), ("we", "us"), ("I", "me"))


class Draw:
    """Random choices from the lexicon."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def word(self, words: str) -> str:
        return self.rng.choice(words.split())

    def words(self, words: str, count: int) -> list[str]:
        """Return different words of a list."""
        return self.rng.sample(words.split(), count)

    def number(self) -> int:
        """Return 0 for singular or 1 for plural."""
        return self.rng.randrange(2)


def inflect(noun: str, number: int) -> str:
    return noun + ("", "s")[number]


def choose(forms: Sequence[str], number: int) -> Pair:
    """Return the form of a number and then that of the other number."""
    return forms[number], forms[1 - number]


def fill(template: str, pair: Pair) -> Pair:
    """Return two sentences that differ where the template has `{}`."""
    good, bad = (template.format(form) for form in pair)
    return good[0].upper() + good[1:], bad[0].upper() + bad[1:]


# ---- paradigms -----------------------------------------------------------------------------------


def agreement(draw: Draw) -> Pair:
    """Subject and verb."""
    number, verb = draw.number(), draw.word(INTRANSITIVE)
    subject, time = inflect(draw.word(PEOPLE), number), draw.rng.choice(TIMES)
    return fill(f"the {subject} {{}} {time}.", choose((f"{verb}s", verb), number))


def agreement_attractor(draw: Draw) -> Pair:
    """Subject and verb, with a noun of the other number between them."""
    number, preposition = draw.number(), draw.word("near behind beside")
    subject, other = draw.words(THINGS, 2)
    subject, other = inflect(subject, number), inflect(other, 1 - number)
    forms = draw.rng.choice((("is", "are"), ("was", "were"), ("seems", "seem")))
    adjective = draw.word(ADJECTIVES)
    return fill(f"the {subject} {preposition} the {other} {{}} {adjective}.", choose(forms, number))


def agreement_relative_clause(draw: Draw) -> Pair:
    """Subject and verb, with a clause between them whose subject has the other number."""
    number, verb = draw.number(), draw.word(TRANSITIVE)
    subject, other = draw.words(PEOPLE, 2)
    clause = f"that the {inflect(other, 1 - number)} {(verb, f'{verb}s')[number]}"
    forms = draw.rng.choice((("is", "are"), ("was", "were"), ("seems", "seem")))
    state = draw.word(STATES)
    return fill(f"the {inflect(subject, number)} {clause} {{}} {state}.", choose(forms, number))


def determiner_noun(draw: Draw) -> Pair:
    """Demonstrative and noun, often with an adjective between them."""
    number, subject, verb = draw.number(), draw.word(PEOPLE), draw.word(WITH_OBJECT)
    thing = inflect(draw.word(THINGS), number)
    noun = draw.rng.choice((thing, f"{draw.word(ADJECTIVES)} {thing}"))
    forms = draw.rng.choice((("this", "these"), ("that", "those")))
    return fill(f"the {subject} {verb} {{}} {noun}.", choose(forms, number))


def many_or_much(draw: Draw) -> Pair:
    """Quantifier and noun that can be counted, or cannot."""
    number = draw.number()
    noun = (draw.word(MASSES), inflect(draw.word(THINGS), 1))[number]
    subject, verb = draw.word(PEOPLE), draw.word("find want need have see get")
    return fill(f"the {subject} did not {verb} {{}} {noun}.", choose(("much", "many"), number))


def reflexive(draw: Draw) -> Pair:
    """Reflexive pronoun of the subject's gender and number."""
    forms = (("himself", MALE, 0), ("herself", FEMALE, 0), ("themselves", f"{MALE} {FEMALE}", 1))
    (good, nouns, number), (bad, _, _) = draw.rng.sample(forms, 2)
    subject, verb, place = (
        inflect(draw.word(nouns), number),
        draw.word(ON_ONESELF),
        draw.word(PLACES),
    )
    return fill(f"the {subject} {verb} {{}} in the {place}.", (good, bad))


def pronoun_case(draw: Draw) -> Pair:
    """Form of a pronoun as subject or object."""
    forms, noun, verb = draw.rng.choice(SUBJECTS), draw.word(PEOPLE), draw.word(PAST)
    role, time = draw.number(), draw.word("yesterday today again")
    template = (f"{{}} {verb} the {noun} {time}.", f"the {noun} {verb} {{}} {time}.")[role]
    return fill(template, choose(forms, role))


def modal_verb_form(draw: Draw) -> Pair:
    """Bare verb after a modal."""
    modal, verb = draw.word("can will must should could"), draw.word(TRANSITIVE)
    subject, other = draw.words(PEOPLE, 2)
    bad = draw.rng.choice((f"{verb}s", f"{verb}ing"))
    return fill(f"the {subject} {modal} {{}} the {other}.", (verb, bad))


def participle(draw: Draw) -> Pair:
    """Participle after "have", past tense without it."""
    past, done, objects = draw.rng.choice(IRREGULAR)
    has, subject, thing = draw.number(), draw.word(PEOPLE), draw.word(objects)
    template = (f"the {subject} {{}} the {thing}.", f"the {subject} has {{}} the {thing}.")[has]
    return fill(template, choose((past, done), has))


def negative_polarity(draw: Draw) -> Pair:
    """The word "ever" after a negation alone."""
    subject, verb = draw.word(PEOPLE), draw.word(WITH_OBJECT)
    noun, bad = draw.word(THINGS), draw.word("some this the every")
    return fill(f"{{}} {subject} has ever {verb} the {noun}.", ("no", bad))


def argument_structure(draw: Draw) -> Pair:
    """An object after verbs that take one."""
    subject, noun, adjective = draw.word(PEOPLE), draw.word(THINGS), draw.word(ADJECTIVES)
    pair = draw.word(WITH_OBJECT), draw.word(WITHOUT_OBJECT)
    return fill(f"the {subject} {{}} the {adjective} {noun}.", pair)


def noun_phrase_order(draw: Draw) -> Pair:
    """Adjective before its noun."""
    noun, adjective = draw.word(THINGS), draw.word(ADJECTIVES)
    subject, verb = draw.word(PEOPLE), draw.word(WITH_OBJECT)
    pair = f"{adjective} {noun}", f"{noun} {adjective}"
    return fill(f"the {subject} {verb} the {{}} yesterday.", pair)


def question_order(draw: Draw) -> Pair:
    """Auxiliary before the subject of a question."""
    subject, other = draw.words(PEOPLE, 2)
    word, auxiliary = draw.word("why when where how"), draw.word("did can will should")
    verb = draw.word(TRANSITIVE)
    pair = f"{auxiliary} the {subject}", f"the {subject} {auxiliary}"
    return fill(f"{word} {{}} {verb} the {other}?", pair)


def time_and_tense(draw: Draw) -> Pair:
    """Tense that fits a time."""
    is_future, unit = draw.number(), draw.word("week month year")
    subject, other = draw.words(PEOPLE, 2)
    verb = (draw.word(PAST), f"will {draw.word(TRANSITIVE)}")[is_future]
    return fill(
        f"{{}} {unit} the {subject} {verb} the {other}.", choose(("last", "next"), is_future)
    )


PARADIGMS: tuple[Callable[[Draw], Pair], ...] = (
    agreement,
    agreement_attractor,
    agreement_relative_clause,
    determiner_noun,
    many_or_much,
    reflexive,
    pronoun_case,
    modal_verb_form,
    participle,
    negative_polarity,
    argument_structure,
    noun_phrase_order,
    question_order,
    time_and_tense,
)


# ---- files ---------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    parser = build_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pairs", type=int, default=500, help="of each paradigm")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    check_counts(parser, options, "pairs")
    paths = write_pairs(options.folder, count=options.pairs, seed=options.seed)
    print(f"{options.folder}: {len(paths)} files of {options.pairs} pairs")


def write_pairs(folder: Path, *, count: int, seed: int = 0) -> list[Path]:
    """Write a file of different pairs for each paradigm and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for paradigm in PARADIGMS:
        pairs = draw_pairs(paradigm, count, seed)
        lines = [json.dumps(dict(zip(KEYS, pair, strict=True))) for pair in pairs]
        path = folder / f"{paradigm.__name__}.jsonl"
        path.write_text("\n".join(lines) + "\n", encoding="utf8")
        paths.append(path)
    return paths


def draw_pairs(paradigm: Callable[[Draw], Pair], count: int, seed: int) -> Iterator[Pair]:
    """Yield so many different pairs of a paradigm."""
    draw = Draw(random.Random(f"{seed} {paradigm.__name__}"))
    seen: set[Pair] = set()
    for _ in range(100 * count):
        pair = paradigm(draw)
        if pair not in seen:
            seen.add(pair)
            yield pair
        if len(seen) == count:
            return
    raise UserError(
        f"{paradigm.__name__} has not {count:,} different pairs; ask for {len(seen):,} or fewer"
    )


if __name__ == "__main__":
    run_main(main)
