"""Tagging of words: named entities (CoNLL-2003), chunks (CoNLL-2000), or tags of your own.

Own data is CoNLL columns (a word a line, a blank line after each sentence), CoNLL-U, or rows of
JSONL, Parquet, CSV or TSV with a list of words and a list of tags; in a cell of text a list is
JSON, or blanks stand between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from electra.config import UserError
from electra.data.sources import warn
from electra.data.tables import Table
from electra.data.wordpiece import WordPiece
from electra.model.weight_files import CONFIG
from electra.tasks.conll import Sentence, sentences_from_rows, sentences_from_text
from electra.tasks.conll_columns import LAST, ColumnChoice, column_number
from electra.tasks.entities import (
    OUTSIDE,
    SCHEMES,
    convert_scheme,
    detect_scheme,
    entities_to_tags,
    entity_scores,
    get_entities,
    is_entity_tag,
    misspelt_entity_tag,
    split_tag,
)
from electra.tasks.features import IGNORE_INDEX, Array, Features
from electra.tasks.labels import label_config, labels_from_config, list_labels
from electra.tasks.splits import HUB_SPLITS, STEMS, files_of, find_splits
from electra.tasks.tag_heads import BiLSTMHead, TagHead
from electra.tasks.tag_windows import window_row, windows
from electra.tasks.task import Files, Outputs, Task, softmax

CONLL_STEMS = {
    "train": (*STEMS["train"], "eng.train"),
    "dev": (*STEMS["dev"], "eng.testa"),
    "test": (*STEMS["test"], "eng.testb"),
}
TOKENS = "tokens"
CHUNK_HUB_SPLITS = {"train": "train", "test": "test"}  # CoNLL-2000 has no dev set


@dataclass(frozen=True, kw_only=True)
class Tag(Task[Sentence, Array]):
    """One label a word, decided at its first token.

    Entities are learnt in IOB2 (in the official code BIOES) and written in the scheme of the
    training data. An answer is the probabilities [words, labels] of a sentence.
    """

    kind: ClassVar[str] = "tag"
    pools: ClassVar[bool] = False
    inputs: ClassVar[tuple[str, ...]] = ("row_words",)
    inference_options: ClassVar[tuple[str, ...]] = ("words", "tags", "column")
    metric: str = "f1"
    words: str = TOKENS  # of rows a name, of CoNLL columns a number
    tags: str = "tags"
    column: int = LAST  # of CoNLL columns the one with the tag; of CoNLL-U, LAST stands for UPOS
    scheme: str = "auto"
    labels: tuple[str, ...] = ()
    lstm_width: int = 768  # of the tagger that reads a frozen encoder: BERT's

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scheme not in ("auto", *SCHEMES):
            raise UserError(f"--scheme {self.scheme}: unknown; choose auto, {', '.join(SCHEMES)}")
        if self.lstm_width < 1:
            raise UserError(f"--lstm-width {self.lstm_width}: must be at least 1")
        if self.labels and self.scheme == "auto":  # those of a model that others trained
            scheme = self.label_scheme
            if not all(map(is_entity_tag, self.labels)):
                scheme = "plain"
            object.__setattr__(self, "scheme", scheme)
            object.__setattr__(self, "metric", metric_of(scheme))

    @property
    def metric_names(self) -> tuple[str, ...]:
        return "f1", "accuracy"

    # ---- examples --------------------------------------------------------------------------------

    def locate(self, data: str) -> Files:
        if self.name != "chunk":
            splits = find_splits(data, stems=CONLL_STEMS, hub_splits=HUB_SPLITS)
        else:
            splits = find_splits(data, stems=CONLL_STEMS, hub_splits=CHUNK_HUB_SPLITS)
        files = files_of(splits)
        # Without a dev set everyone scores CoNLL-2000 on its test set; the part's name says so.
        return replace(files, dev=files.dev or files.test)

    def read(self, tables: Sequence[Table], *, labelled: bool) -> Iterator[Sentence]:
        known = {OUTSIDE, *self.labels}
        # The hub's column is ner_tags in CoNLL-2003 and chunk_tags in CoNLL-2000.
        columns = (self.tags, f"{self.name}_tags")
        # The name of a column of rows says nothing of CoNLL columns, and a number nothing of rows.
        choice = ColumnChoice(column_number(self.words), self.column)
        for table in tables:
            if table.format == "text":
                yield from sentences_from_text(table, choice, labelled=labelled, known=known)
            else:
                yield from sentences_from_rows(
                    table, words=(self.words, self.row_words), tags=columns, labelled=labelled
                )

    @property
    def row_words(self) -> str:
        """The column of the words in rows."""
        if column_number(self.words) is not None:
            return TOKENS
        return self.words

    # ---- labels ----------------------------------------------------------------------------------

    def fit_labels(self, examples: Sequence[Sentence]) -> Self:
        scheme = self.training_scheme(examples)
        if scheme == "plain":
            labels = tuple(sorted(set(all_tags(examples))))
            self.warn_of_entities(labels)
        else:
            labels = entity_labels(examples, prefixes=self.prefixes)
        if len(labels) < 2:
            problem = f"no tag but {labels[0]!r}" if labels else "no word"
            raise UserError(
                f"{examples[0].where}: the training data that begins here has {problem}; there is "
                "nothing to learn"
            )
        return replace(self, scheme=scheme, labels=labels, metric=metric_of(scheme))

    @property
    def prefixes(self) -> str:
        """The labels of each type of entity."""
        if self.conventions == "official":
            return "BIES"
        return "BI"

    def training_scheme(self, examples: Sequence[Sentence]) -> str:
        """Return the scheme that was asked for, or detect it.

        One stray tag must not turn entities into plain tags unnoticed, so it is refused.
        """
        if self.scheme == "plain":
            return "plain"
        detected = detect_scheme(sentence.tags or () for sentence in examples)
        if detected == "plain" and self.expects_entities(examples):
            refuse_stray_tag(examples)
        if self.scheme == "auto":
            return detected
        return self.scheme

    def warn_of_entities(self, labels: Sequence[str]) -> None:
        """Warn of tags that were hardly meant to be plain ones."""
        misspelt = misspelt_entity_tag(set(labels))
        if self.scheme == "auto" and misspelt:
            warn(
                f"tags such as {misspelt!r} look like entities, which are spelled B-PER, I-PER and "
                "O; they are learnt as plain tags and scored by accuracy. Spell them so for the "
                "F1 of entities, or say --scheme plain"
            )

    def expects_entities(self, examples: Sequence[Sentence]) -> bool:
        if self.scheme != "auto" or self.name != "tag":
            return True
        return any(split_tag(tag)[1] for tag in all_tags(examples))

    @property
    def description(self) -> str:
        if self.scheme == "plain":
            return (
                f"{len(self.labels)} tags without entities, scored by accuracy: "
                f"{list_labels(self.labels)}"
            )
        types = {split_tag(label)[1] for label in self.labels if label != OUTSIDE}
        names = sorted(type or "without a name" for type in types)
        return (
            f"entities of {len(names)} types in {self.scheme.upper()}, scored by F1: "
            f"{list_labels(names)}"
        )

    def check(self, examples: Sequence[Sentence]) -> None:
        known = set(self.labels)
        for sentence in examples:
            targets = self.targets(sentence)
            for word, tag, target in zip(
                sentence.words, sentence.tags or (), targets, strict=False
            ):
                if target not in known or (self.scheme != "plain" and not is_entity_tag(tag)):
                    raise UserError(
                        f"{sentence.where}: {word!r} in this sentence is tagged {tag!r}, which "
                        f"training never saw; it saw {list_labels(self.labels)}"
                    )

    def targets(self, sentence: Sentence) -> list[str]:
        """Return the labels that the words should get."""
        tags = sentence.tags or ()
        if self.scheme == "plain":
            return list(tags)
        return convert_scheme(tags, self.label_scheme)

    @cached_property
    def label_scheme(self) -> str:
        """The scheme of the labels: IOB2 by default; a model that others trained may have BIOES."""
        prefixes = {split_tag(label)[0] for label in self.labels}
        if prefixes & {"E", "S"}:
            return "bioes"
        return "iob2"

    # ---- features and head -----------------------------------------------------------------------

    def features(
        self, examples: Sequence[Sentence], tokenizer: WordPiece, *, length: int, training: bool
    ) -> Features:
        room = length - 2
        unique: dict[str, None] = {}
        for sentence in examples:
            unique |= dict.fromkeys(sentence.words)
        encoded = zip(unique, tokenizer.encode(list(unique)), strict=True)
        word_ids = {word: ids or [tokenizer.unk] for word, ids in encoded}
        label2id = {label: number for number, label in enumerate(self.labels)}
        rows = []
        for index, sentence in enumerate(examples):
            # A text that is only to be tagged may carry tags of another kind: nothing is learnt
            # from them.
            targets = [label2id.get(tag, IGNORE_INDEX) for tag in self.targets(sentence)]
            targets = targets or [IGNORE_INDEX] * len(sentence.words)
            untruncated = [word_ids[word] for word in sentence.words]
            pieces = [ids[:room] for ids in untruncated]
            for window in windows([len(ids) for ids in pieces], room=room):
                row = window_row(index, pieces, targets, window=window, tokenizer=tokenizer)
                row.truncated = any(
                    len(ids) > room for ids in untruncated[window.first : window.last]
                )
                rows.append(row)
        return Features.from_rows(rows)

    def weight(self, features: Features) -> Array:
        is_scored = features.token_labels["target"] != IGNORE_INDEX
        scored_before: Array = np.concatenate([[0], np.cumsum(is_scored)])
        counts: Array = np.diff(scored_before[features.offsets]).astype(np.float64)
        return counts

    @property
    def first_token_type(self) -> int:
        """1 in the official code.

        Its row of the table is copied to 0 before training, since transformers reads words with 0.
        """
        return int(self.conventions == "official")

    def head(self, width: int, *, dropout: float) -> TagHead:
        assert self.labels, "a head needs labels: fit_labels first"
        labels = len(self.labels)
        if self.frozen:
            return BiLSTMHead(width, labels=labels, lstm_width=self.lstm_width, dropout=dropout)
        if self.conventions == "official":
            dropout = 0.0
        return TagHead(width, labels=labels, dropout=dropout)

    def config(self) -> dict[str, Any]:
        return label_config(self.labels)

    def with_transformers_config(self, config: Mapping[str, Any], *, folder: Path) -> Self:
        source = str(folder / CONFIG)
        return replace(self, labels=labels_from_config(config, default=self.labels, source=source))

    # ---- answers ---------------------------------------------------------------------------------

    def decode(
        self, examples: Sequence[Sentence], features: Features, outputs: Sequence[Outputs]
    ) -> list[Array]:
        answers = []
        for sentence in examples:
            shape = len(sentence.words), len(self.labels)
            answers.append(np.zeros(shape, dtype=np.float32))
        for row, output in enumerate(outputs):
            tokens = slice(features.offsets[row], features.offsets[row + 1])
            words = features.token_labels["word"][tokens]
            decided = np.flatnonzero(words != IGNORE_INDEX)
            probabilities = softmax(output["logits"][decided])
            answers[features.examples[row]][words[decided]] = probabilities
        return answers

    def combine(self, answers: Sequence[Array]) -> Array:
        mean: Array = np.mean(np.stack(answers), axis=0)
        return mean

    def predicted_tags(self, answer: Array) -> list[str]:
        """Return the most probable label of each word."""
        if not len(answer):
            return []
        return [self.labels[best] for best in answer.argmax(axis=-1)]

    def score(self, examples: Sequence[Sentence], answers: Sequence[Array]) -> dict[str, float]:
        gold = [self.targets(sentence) for sentence in examples]
        predicted = [self.predicted_tags(answer) for answer in answers]
        correct = 0
        for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
            correct += sum(a == b for a, b in zip(gold_tags, predicted_tags, strict=True))
        accuracy = {"accuracy": correct / max(1, sum(map(len, gold)))}
        if self.scheme == "plain":
            return accuracy
        return entity_scores(gold, predicted) | accuracy

    def baseline(self, examples: Sequence[Sentence]) -> float:
        if self.scheme != "plain":
            return 0.0
        counts = Counter(tag for sentence in examples for tag in self.targets(sentence))
        return max(counts.values(), default=0) / max(1, counts.total())

    def record(self, example: Sentence, answer: Array) -> dict[str, Any]:
        tags = self.predicted_tags(answer)
        probabilities = answer
        if len(answer):
            probabilities = answer.max(axis=-1)
        record: dict[str, Any] = {
            "words": list(example.words),
            "tags": tags,
            "probabilities": [round(float(p), 6) for p in probabilities],
        }
        if self.scheme != "plain":
            entities = get_entities(tags)
            record["tags"] = entities_to_tags(entities, words=len(tags), scheme=self.scheme)
            record["entities"] = [
                {
                    "type": type,
                    "start": start,
                    "end": end,
                    "text": " ".join(example.words[start:end]),
                    "probability": round(float(probabilities[start:end].prod()), 6),
                }
                for type, start, end in entities
            ]
        if example.tags is not None:
            record["gold"] = list(example.tags)
        return record


# ---- labels --------------------------------------------------------------------------------------


def metric_of(scheme: str) -> str:
    return "accuracy" if scheme == "plain" else "f1"


def all_tags(examples: Sequence[Sentence]) -> Iterator[str]:
    for sentence in examples:
        yield from sentence.tags or ()


def entity_labels(examples: Sequence[Sentence], *, prefixes: str) -> tuple[str, ...]:
    """Return O, and these prefixes of each type of entity.

    I is a label even where every entity of the type is one word long in training: elsewhere it may
    not be.
    """
    types: set[str] = set()
    for sentence in examples:
        types |= {entity.type for entity in get_entities(sentence.tags or ())}
    labels = [OUTSIDE]
    for type in sorted(types):
        suffix = f"-{type}" if type else ""
        labels += [f"{prefix}{suffix}" for prefix in prefixes]
    return tuple(labels)


def refuse_stray_tag(examples: Sequence[Sentence]) -> None:
    """Raise UserError for the first tag that is no tag of an entity."""
    for sentence in examples:
        for tag in sentence.tags or ():
            if not is_entity_tag(tag):
                raise UserError(
                    f"{sentence.where}: {tag!r} is no tag of an entity: those are O, B-TYPE, "
                    "I-TYPE, and in BIOES E-TYPE and S-TYPE; correct it, name the --column that "
                    "holds them, or score tags word by word with --scheme plain"
                )
