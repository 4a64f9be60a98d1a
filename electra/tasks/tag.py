"""Tag every word: named entities (CoNLL-2003), chunks (CoNLL-2000), or tags of your own.

Own data is CoNLL columns (a word a line, a blank line after each sentence), or rows of JSONL,
Parquet, CSV or TSV with a list of words and a list of tags; in a cell of text, blanks stand
between.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from electra.config import UserError
from electra.data.tables import Table
from electra.data.wordpiece import WordPiece
from electra.tasks.conll import Sentence, from_rows, from_text
from electra.tasks.entities import (
    OUTSIDE,
    SCHEMES,
    entities,
    entity_scores,
    in_scheme,
    is_entity_tag,
    parts,
    scheme_of,
    spelled,
)
from electra.tasks.features import IGNORED, Array, Features, Row
from electra.tasks.folders import ON_HUB, STEMS, splits
from electra.tasks.tag_heads import BiLSTMHead, TagHead
from electra.tasks.task import Files, Outputs, Task

NAMES = ("ner", "chunk", "tag")
SHOWN_LABELS = 20
CALLED = {
    "train": (*STEMS["train"], "eng.train"),
    "dev": (*STEMS["dev"], "eng.testa"),
    "test": (*STEMS["test"], "eng.testb"),
}


@dataclass(frozen=True, kw_only=True)
class Tag(Task[Sentence, Array]):
    """One label a word, decided at its first token. Entities are learnt as IOB2 and written as the
    training data was.

    An answer is the probabilities [words, labels] of a sentence.
    """

    kind: ClassVar[str] = "tag"
    inference_options: ClassVar[tuple[str, ...]] = ("words", "tags", "column")
    metric: str = "f1"
    words: str = "tokens"
    tags: str = "tags"
    column: int = -1  # of CoNLL columns: the one that holds the tag
    scheme: str = "auto"
    labels: tuple[str, ...] = ()
    lstm_width: int = 768  # of the tagger that reads a frozen encoder: BERT's

    def __post_init__(self) -> None:
        if self.scheme not in ("auto", *SCHEMES):
            raise UserError(f"--scheme {self.scheme}: unknown; choose auto, {', '.join(SCHEMES)}")
        if self.lstm_width < 1:
            raise UserError(f"--lstm-width {self.lstm_width}: must be at least 1")
        if self.labels and self.scheme == "auto":  # those of a model that others trained
            scheme = "plain" if not all(map(is_entity_tag, self.labels)) else self.label_scheme
            object.__setattr__(self, "scheme", scheme)
            object.__setattr__(self, "metric", "accuracy" if scheme == "plain" else "f1")

    @classmethod
    def from_name(cls, name: str, **options: Any) -> Self:
        return cls(name=name, **options)

    # ---- examples --------------------------------------------------------------------------------

    def locate(self, data: str) -> Files:
        has_dev = self.name != "chunk"  # CoNLL-2000 on the hub, as in its files, is train and test
        found = splits(
            data,
            stems=CALLED,
            on_hub={name: split for name, split in ON_HUB.items() if has_dev or name != "dev"},
        )
        test = {"test": found["test"]} if "test" in found else {}
        # Without a dev set everyone scores CoNLL-2000 on its test set; the name of the part then
        # says so.
        return Files(
            train=found.get("train", ()),
            dev={"dev": found["dev"]} if "dev" in found else test,
            test=test,
        )

    def read(self, tables: Sequence[Table], *, labelled: bool) -> Iterator[Sentence]:
        for table in tables:
            if table.format == "text":
                yield from from_text(
                    table, column=self.column, labelled=labelled, known={OUTSIDE, *self.labels}
                )
            else:  # the hub calls the column of CoNLL-2003 ner_tags, and that of CoNLL-2000 chunk_tags
                yield from from_rows(
                    table,
                    words=self.words,
                    tags=(self.tags, f"{self.name}_tags"),
                    labelled=labelled,
                )

    def fit_labels(self, examples: Sequence[Sentence]) -> Self:
        tagged = [sentence.tags or () for sentence in examples]
        scheme = self.checked_scheme(examples)
        if scheme == "plain":
            labels = tuple(sorted({tag for tags in tagged for tag in tags}))
        else:
            types = sorted({entity.type for tags in tagged for entity in entities(tags)})
            # I-X even where every X is one word long in training: elsewhere it may not be.
            labels = (
                OUTSIDE,
                *(f"{prefix}-{type}" if type else prefix for type in types for prefix in "BI"),
            )
        if len(labels) < 2:
            raise UserError(
                f"{examples[0].where}: the training data that begins here has "
                f"{f'no tag but {labels[0]!r}' if labels else 'no word'}; there is nothing to learn"
            )
        return replace(
            self, scheme=scheme, labels=labels, metric="accuracy" if scheme == "plain" else "f1"
        )

    def checked_scheme(self, examples: Sequence[Sentence]) -> str:
        """The scheme asked for, or the one found; one stray tag must not turn entities into plain
        tags unnoticed.
        """
        if self.scheme == "plain":
            return "plain"
        found = scheme_of(sentence.tags or () for sentence in examples)
        tags = [(sentence.where, tag) for sentence in examples for tag in sentence.tags or ()]
        wants_entities = (
            self.scheme != "auto" or self.name != "tag" or any(parts(tag)[1] for _, tag in tags)
        )
        if found == "plain" and wants_entities:
            where, stray = next((where, tag) for where, tag in tags if not is_entity_tag(tag))
            raise UserError(
                f"{where}: {stray!r} is no tag of an entity: those are O, B-TYPE, I-TYPE, and in "
                "BIOES "
                "E-TYPE and S-TYPE; mend it, name the --column that holds them, or score tags "
                "word by "
                "word with --scheme plain"
            )
        return found if self.scheme == "auto" else self.scheme

    @property
    def description(self) -> str:
        """What was learnt from the training data, in a line."""
        if self.scheme == "plain":
            return f"{len(self.labels)} tags without entities, scored by accuracy: {shown(self.labels)}"
        types = sorted(
            {parts(label)[1] or "without a name" for label in self.labels if label != OUTSIDE}
        )
        return (
            f"entities of {len(types)} types in {self.scheme.upper()}, scored by F1: {shown(types)}"
        )

    def check(self, examples: Sequence[Sentence]) -> None:
        known = set(self.labels)
        for sentence in examples:
            for word, tag, target in zip(
                sentence.words, sentence.tags or (), self.targets(sentence), strict=False
            ):
                if target not in known or (self.scheme != "plain" and not is_entity_tag(tag)):
                    raise UserError(
                        f"{sentence.where}: {word!r} in this sentence is tagged {tag!r}, which "
                        "training "
                        f"never saw; it saw {shown(self.labels)}"
                    )

    def targets(self, sentence: Sentence) -> list[str]:
        """The labels that the words should get."""
        tags = sentence.tags or ()
        return list(tags) if self.scheme == "plain" else in_scheme(tags, self.label_scheme)

    @cached_property
    def label_scheme(self) -> str:
        """Ours are IOB2, whatever the data was; a model that others trained may have labels of
        BIOES.
        """
        return "bioes" if {parts(label)[0] for label in self.labels} & {"E", "S"} else "iob2"

    # ---- features --------------------------------------------------------------------------------

    def features(
        self, examples: Sequence[Sentence], words: WordPiece, *, length: int, training: bool
    ) -> Features:
        room = length - 2
        unique = list({word: None for sentence in examples for word in sentence.words})
        pieces = {
            word: ids or [words.unk] for word, ids in zip(unique, words.encode(unique), strict=True)
        }
        index = {label: number for number, label in enumerate(self.labels)}
        rows = []
        for number, sentence in enumerate(examples):
            # A text that is only to be tagged may carry tags of another kind: nothing is learnt
            # from them.
            targets = [index.get(tag, IGNORED) for tag in self.targets(sentence)] or [
                IGNORED
            ] * len(sentence.words)
            whole = [pieces[word] for word in sentence.words]
            found = [ids[:room] for ids in whole]
            for window in windows([len(ids) for ids in found], room=room):
                row = row_of(number, found, targets, window=window, words=words)
                row.was_cut = any(len(ids) > room for ids in whole[window.first : window.last])
                rows.append(row)
        return Features.of(rows)

    def weight(self, features: Features) -> Array:
        scored: Array = np.concatenate([[0], np.cumsum(features.tokens["target"] != IGNORED)])
        counts: Array = np.diff(scored[features.begins]).astype(np.float64)
        return counts

    def head(self, width: int, *, dropout: float) -> TagHead:
        assert self.labels, "a head needs labels: learn first"
        if self.frozen:
            return BiLSTMHead(
                width, labels=len(self.labels), lstm_width=self.lstm_width, dropout=dropout
            )
        return TagHead(width, labels=len(self.labels), dropout=dropout)

    def config(self) -> dict[str, Any]:
        return {
            "id2label": {str(number): label for number, label in enumerate(self.labels)},
            "label2id": {label: number for number, label in enumerate(self.labels)},
        }

    # ---- answers ---------------------------------------------------------------------------------

    def decode(
        self, examples: Sequence[Sentence], features: Features, outputs: Sequence[Outputs]
    ) -> list[Array]:
        answers = [
            np.zeros((len(sentence.words), len(self.labels)), dtype=np.float32)
            for sentence in examples
        ]
        for row, output in enumerate(outputs):
            places = features.tokens["word"][features.begins[row] : features.begins[row + 1]]
            decided = np.flatnonzero(places != IGNORED)
            logits = output["logits"][decided]
            odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
            answers[features.examples[row]][places[decided]] = odds / odds.sum(
                axis=-1, keepdims=True
            )
        return answers

    def combine(self, answers: Sequence[Array]) -> Array:
        mean: Array = np.mean(np.stack(answers), axis=0)
        return mean

    def said(self, answer: Array) -> list[str]:
        return [self.labels[best] for best in answer.argmax(axis=-1)] if len(answer) else []

    def score(self, examples: Sequence[Sentence], answers: Sequence[Array]) -> dict[str, float]:
        gold = [self.targets(sentence) for sentence in examples]
        said = [self.said(answer) for answer in answers]
        right = sum(
            a == b
            for tags, found in zip(gold, said, strict=True)
            for a, b in zip(tags, found, strict=True)
        )
        accuracy = {"accuracy": right / max(1, sum(map(len, gold)))}
        return accuracy if self.scheme == "plain" else entity_scores(gold, said) | accuracy

    def baseline(self, examples: Sequence[Sentence]) -> float:
        if self.scheme != "plain":
            return 0.0
        counts = Counter(tag for sentence in examples for tag in self.targets(sentence))
        return max(counts.values(), default=0) / max(1, counts.total())

    def record(self, example: Sentence, answer: Array) -> dict[str, Any]:
        said = self.said(answer)
        sure = answer.max(axis=-1) if len(answer) else answer
        record: dict[str, Any] = {
            "words": list(example.words),
            "tags": said,
            "probabilities": [round(float(p), 6) for p in sure],
        }
        if self.scheme != "plain":
            found = entities(said)
            record["tags"] = spelled(found, words=len(said), scheme=self.scheme)
            record["entities"] = [
                {
                    "type": type,
                    "start": start,
                    "end": end,
                    "text": " ".join(example.words[start:end]),
                    "probability": round(float(sure[start:end].prod()), 6),
                }
                for type, start, end in found
            ]
        return record | ({"gold": list(example.tags)} if example.tags is not None else {})


def shown(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - SHOWN_LABELS} more" if len(labels) > SHOWN_LABELS else ""
    return ", ".join(labels[:SHOWN_LABELS]) + more


# ---- rows ----------------------------------------------------------------------------------------


class Window(NamedTuple):
    """Words `start` up to `end` are read; of these, `first` up to `last` are decided."""

    start: int
    end: int
    first: int
    last: int


def windows(sizes: Sequence[int], *, room: int) -> list[Window]:
    """Windows of at most `room` tokens over words of these sizes, none of them larger. Each word is
    decided once.

    Neighbours share up to half a window, and the middle of what they share is the border between
    what they decide: so a word is decided with a quarter of a window to either side, where there is
    that much text.
    """
    begins = [0, *accumulate(sizes)]
    found: list[Window] = []
    start = first = 0
    while True:
        end = bisect_right(begins, begins[start] + room) - 1
        if end == len(sizes):
            return [*found, Window(start, end, first, end)]
        reach = max(
            begins[end] - room // 2, begins[end + 1] - room
        )  # the next one must hold a word more
        following = bisect_left(begins, reach)
        last = bisect_left(begins, (begins[following] + begins[end]) / 2)
        found.append(Window(start, end, first, last))
        start, first = following, last


def row_of(
    example: int,
    pieces: Sequence[Sequence[int]],
    targets: Sequence[int],
    *,
    window: Window,
    words: WordPiece,
) -> Row:
    """`[CLS] words [SEP]`. A word that is decided here is so at its first token; the other tokens
    are not scored.
    """
    ids, decided = [words.cls], [IGNORED]
    for word in range(window.start, window.end):
        ids += pieces[word]
        decided += [
            word if window.first <= word < window.last else IGNORED,
            *[IGNORED] * (len(pieces[word]) - 1),
        ]
    decided.append(IGNORED)
    target = [word if word == IGNORED else targets[word] for word in decided]
    return Row(example, [*ids, words.sep], tokens={"word": decided, "target": target})
