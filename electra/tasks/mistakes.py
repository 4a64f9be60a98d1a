"""The analysis of the answers to each kind of task: texts, tags, spans, choices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import cast

import numpy as np

from electra.tasks.analysis import (
    MAX_LABEL,
    Analysis,
    Cell,
    ExampleList,
    around,
    file_and_line,
    frequent_classes,
    percent,
    plain,
    shorten,
    worst,
)
from electra.tasks.choose import Choice, Choose
from electra.tasks.class_scores import ClassScores, scores_from_counts
from electra.tasks.conll import Sentence
from electra.tasks.entities import Entity, get_entities
from electra.tasks.features import Array
from electra.tasks.span import Span, SpanAnswer
from electra.tasks.span_files import Question
from electra.tasks.squad_metrics import f1
from electra.tasks.tag import Tag
from electra.tasks.task import Answer, AnyTask, Example
from electra.tasks.text_mistakes import Record, analyse_texts
from electra.tasks.texts import Text, TextTask

MAX_OPTIONS = 8  # of a choice
WORDS_AROUND = 20  # an error in a sentence


def analyse(task: AnyTask, examples: Sequence[Example], answers: Sequence[Answer]) -> Analysis:
    """Return the analysis for the kind of a task; of a kind of your own only the classes."""
    match task:
        case TextTask():
            texts, outputs = cast(Sequence[Text], examples), cast(Sequence[Array], answers)
            records = [task.record(*pair) for pair in zip(texts, outputs, strict=True)]
            classes = frequent_classes(task.class_scores(texts, outputs))
            return analyse_texts(texts, records, classes)
        case Tag():
            return analyse_tags(
                task, cast(Sequence[Sentence], examples), cast(Sequence[Array], answers)
            )
        case Span():
            return analyse_spans(
                task, cast(Sequence[Question], examples), cast(Sequence[SpanAnswer], answers)
            )
        case Choose():
            return analyse_choices(cast(Sequence[Choice], examples), cast(Sequence[Array], answers))
    classes = frequent_classes(task.class_scores(examples, answers))
    return Analysis(examples=len(examples), classes=classes)


# ---- tags ----------------------------------------------------------------------------------------


def analyse_tags(task: Tag, examples: Sequence[Sentence], answers: Sequence[Array]) -> Analysis:
    """Return the scores by type of entity or by tag, and the sentences with the most errors."""
    gold = [task.targets(sentence) for sentence in examples]
    predicted = [task.predicted_tags(answer) for answer in answers]
    is_plain = task.scheme == "plain"
    items = [labelled_items(tags, is_plain=is_plain) for tags in gold]
    given = [labelled_items(tags, is_plain=is_plain) for tags in predicted]
    severity = []
    for index, answer in enumerate(answers):
        errors = [a != b for a, b in zip(gold[index], predicted[index], strict=True)]
        severity.append(float(answer.max(axis=-1, initial=0.0)[errors].sum()))
    rows = []
    for i in worst(severity):
        if severity[i]:
            count = len(items[i] ^ given[i])
            truth = mark_words(examples[i].words, items[i], given[i], "missed")
            marked = mark_words(examples[i].words, given[i], items[i], "wrong")
            rows.append((truth, marked, plain(str(count)), file_and_line(examples[i])))
    wrong = sum(value > 0 for value in severity)
    sentences = ExampleList(
        title="The worst sentences",
        note=f"{wrong:,} of {len(examples):,} sentences have an error; those with the most words "
        "that are surely wrong first. What is missed is underlined with dashes, what is wrong with "
        "a wave.",
        head=("truth", "answer", "errors", "where"),
        rows=tuple(rows),
    )
    classes = frequent_classes(item_scores(items, given))
    return Analysis(examples=len(examples), classes=classes, lists=(sentences,))


def labelled_items(tags: Sequence[str], *, is_plain: bool) -> set[Entity]:
    """Return what is scored in a sentence: entities, or every word with its tag."""
    if not is_plain:
        return set(get_entities(tags))
    return {Entity(tag, index, index + 1) for index, tag in enumerate(tags)}


def item_scores(gold: Sequence[set[Entity]], predicted: Sequence[set[Entity]]) -> list[ClassScores]:
    """Compute precision, recall and F1 of each type."""
    support, answered = count_types(gold), count_types(predicted)
    hits = count_types(one & other for one, other in zip(gold, predicted, strict=True))
    return [
        scores_from_counts(
            type or "without a name",
            hits=hits[type],
            answered=answered[type],
            support=support[type],
        )
        for type in sorted(support | answered)
    ]


def count_types(sets: Iterable[set[Entity]]) -> Counter[str]:
    return Counter(item.type for items in sets for item in items)


def mark_words(words: Sequence[str], shown: set[Entity], others: set[Entity], mark: str) -> Cell:
    """Return a sentence with its entities marked: as right where the others have them too.

    Of a long sentence, the part around the first difference.
    """
    differing = [item.start for item in shown ^ others]
    first = max(0, min(differing, default=0) - WORDS_AROUND)
    last = min(len(words), max(differing, default=0) + WORDS_AROUND, first + 4 * WORDS_AROUND)
    parts: list[tuple[str, str]] = []
    if first:
        parts.append(("… ", "note"))
    position = first
    for item in sorted(shown, key=lambda item: item.start):
        if item.start < position or item.end > last:
            continue
        if item.type == "O":
            continue
        parts.append((shorten(" ".join(words[position : item.start])) + " ", ""))
        kind = mark
        if item in others:
            kind = "right"
        parts.append((shorten(" ".join(words[item.start : item.end])), kind))
        parts.append((f" {shorten(item.type, MAX_LABEL)} ", "note"))
        position = item.end
    parts.append((shorten(" ".join(words[position:last])), ""))
    if last < len(words):
        parts.append((" …", "note"))
    return tuple((text, kind) for text, kind in parts if text.strip())


# ---- spans ---------------------------------------------------------------------------------------


def analyse_spans(
    task: Span, examples: Sequence[Question], answers: Sequence[SpanAnswer]
) -> Analysis:
    """Return the questions whose answer shares no word with the truth, the surest first."""
    records = [task.record(*pair) for pair in zip(examples, answers, strict=True)]
    wrong = []
    for index, (example, record) in enumerate(zip(examples, records, strict=True)):
        if f1(record["answer"], example.references) == 0:
            wrong.append(index)
    rows = []
    for position in worst(records[i]["probability"] for i in wrong):
        example, record = examples[wrong[position]], records[wrong[position]]
        rows.append(
            (
                plain(example.question),
                mark_passage(example, record),
                plain(" / ".join(dict.fromkeys(example.references)) or "no answer"),
                plain(record["answer"] or "no answer"),
                percent(record["probability"]),
                plain(str(example.id), 120),
            )
        )
    mistakes = ExampleList(
        title="Wrong answers",
        note=f"{len(wrong):,} of {len(examples):,} answers share no word with the truth (F1 0); "
        "the surest first. The answer is underlined with a wave, the truth with dashes.",
        head=("question", "passage", "truth", "answer", "probability", "id"),
        rows=tuple(rows),
    )
    return Analysis(examples=len(examples), lists=(mistakes,))


def mark_passage(example: Question, record: Record) -> Cell:
    """Return the passage around the answer that was given, or around the true one."""
    context, spans = example.context, []
    if record["answer"]:
        spans.append((record["start"], record["start"] + len(record["answer"]), "wrong"))
    if example.span is not None:
        spans.append((*example.span, "missed"))
    if not spans:
        return plain(context)
    first, last = around(context, spans[0][0], spans[0][1])
    parts: list[tuple[str, str]] = []
    position = first
    if first:
        parts.append(("… ", "note"))
    for start, end, mark in sorted(spans):
        if position <= start and end <= last:
            parts += [(context[position:start], ""), (shorten(context[start:end]), mark)]
            position = end
    parts.append((context[position:last], ""))
    if last < len(context):
        parts.append((" …", "note"))
    return tuple((text, mark) for text, mark in parts if text)


# ---- choices -------------------------------------------------------------------------------------


def analyse_choices(examples: Sequence[Choice], answers: Sequence[Array]) -> Analysis:
    """Return the questions whose wrong option has the highest probability."""
    wrong = []
    for index, (example, answer) in enumerate(zip(examples, answers, strict=True)):
        if example.answer is not None and int(answer.argmax()) != example.answer:
            wrong.append(index)
    rows = []
    for position in worst(float(answers[i].max()) for i in wrong):
        example, answer = examples[wrong[position]], answers[wrong[position]]
        options = rank_options(example, answer)
        rows.append((plain(example.context), options, file_and_line(example)))
    mistakes = ExampleList(
        title="The worst mistakes",
        note=f"{len(wrong):,} of {len(examples):,} choices are wrong; the surest first. Options "
        "are in the order of their probability; the truth is underlined with dashes.",
        head=("context", "options", "where"),
        rows=tuple(rows),
    )
    return Analysis(examples=len(examples), lists=(mistakes,))


def rank_options(example: Choice, answer: Array) -> Cell:
    """Return the options with their probabilities, best first; the true one is marked."""
    parts: list[tuple[str, str]] = []
    ranked = [int(index) for index in np.argsort(-answer, kind="stable")]
    for rank, index in enumerate(ranked):
        if rank >= MAX_OPTIONS and index != example.answer:
            continue
        mark: str = ""
        if index == example.answer:
            mark = "missed"
        elif rank == 0:
            mark = "wrong"
        parts.append((f"{100 * float(answer[index]):.1f} % ", "note"))
        parts += [(shorten(example.options[index], 160), mark), ("\n", "")]
    return tuple(parts[:-1])
