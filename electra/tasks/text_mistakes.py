"""The analysis of texts with a label, with a set of labels, or with a score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from electra.tasks.analysis import (
    MAX_LABEL,
    Analysis,
    Cell,
    ExampleList,
    confusion_matrix,
    file_and_line,
    percent,
    plain,
    scatter,
    shorten,
    worst,
)
from electra.tasks.class_scores import ClassScores
from electra.tasks.texts import Text

Record = dict[str, Any]


def analyse_texts(
    examples: Sequence[Text], records: Sequence[Record], classes: tuple[ClassScores, ...]
) -> Analysis:
    """Return the analysis of labels, of sets of labels or of scores."""
    if not records or "gold" not in records[0]:
        return Analysis(examples=len(examples), classes=classes)
    if "score" in records[0]:
        return analyse_scores(examples, records)
    if "labels" in records[0]:
        lists = label_set_lists(examples, records)
        return Analysis(examples=len(examples), classes=classes, lists=lists)
    true = [str(record["gold"]) for record in records]
    predicted = [record["label"] for record in records]
    return Analysis(
        examples=len(examples),
        classes=classes,
        matrix=confusion_matrix(true, predicted),
        lists=(confident_mistakes(examples, records), uncertain_answers(examples, records)),
    )


def text_head(examples: Sequence[Text]) -> tuple[str, ...]:
    if any(example.second is not None for example in examples):
        return ("text", "second text")
    return ("text",)


def text_cells(example: Text, head: Sequence[str]) -> tuple[Cell, ...]:
    texts = (example.first, example.second or "")
    return tuple(plain(text) for text, _ in zip(texts, head, strict=False))


def confident_mistakes(examples: Sequence[Text], records: Sequence[Record]) -> ExampleList:
    """Return the wrong answers of the highest probability."""
    wrong = [i for i, record in enumerate(records) if record["label"] != str(record["gold"])]
    head, rows = text_head(examples), []
    for position in worst(records[i]["probability"] for i in wrong):
        example, record = examples[wrong[position]], records[wrong[position]]
        truth = record["probabilities"].get(str(record["gold"]), 0.0)
        rows.append(
            (
                *text_cells(example, head),
                plain(str(record["gold"]), MAX_LABEL),
                plain(record["label"], MAX_LABEL),
                percent(record["probability"]),
                percent(truth),
                file_and_line(example),
            )
        )
    return ExampleList(
        title="The worst mistakes",
        note=f"{len(wrong):,} of {len(examples):,} answers are wrong; the surest of them first. A "
        "sure mistake is often a wrong label in the data.",
        head=(*head, "truth", "answer", "probability", "of the truth", "where"),
        rows=tuple(rows),
    )


def uncertain_answers(examples: Sequence[Text], records: Sequence[Record]) -> ExampleList:
    """Return the answers whose two best labels are nearest to each other, right ones too."""
    best = [sorted(record["probabilities"].items(), key=lambda p: -p[1])[:2] for record in records]
    head, rows = text_head(examples), []
    for i in worst((pair[0][1] - pair[-1][1] for pair in best), largest=False):
        labels = [
            ((shorten(label, MAX_LABEL), ""), (f" {100 * probability:.1f} %", "note"))
            for label, probability in best[i]
        ]
        truth = plain(str(records[i]["gold"]), MAX_LABEL)
        rows.append((*text_cells(examples[i], head), truth, *labels, file_and_line(examples[i])))
    return ExampleList(
        title="The most uncertain answers",
        note="The two best labels are nearest to each other here, whether the answer is right or "
        "wrong.",
        head=(*head, "truth", "best", "second", "where"),
        rows=tuple(rows),
    )


def analyse_scores(examples: Sequence[Text], records: Sequence[Record]) -> Analysis:
    """Return the analysis of a regression."""
    true = [float(record["gold"]) for record in records]
    predicted = [float(record["score"]) for record in records]
    head, rows = text_head(examples), []
    for i in worst(abs(a - b) for a, b in zip(true, predicted, strict=True)):
        numbers = [plain(f"{value:.4g}") for value in (true[i], predicted[i])]
        error = plain(f"{predicted[i] - true[i]:+.4g}")
        rows.append((*text_cells(examples[i], head), *numbers, error, file_and_line(examples[i])))
    errors = ExampleList(
        title="The largest errors",
        note="Scores that are farthest from the truth.",
        head=(*head, "truth", "score", "error", "where"),
        rows=tuple(rows),
    )
    return Analysis(examples=len(examples), points=scatter(true, predicted), lists=(errors,))


def label_set_lists(examples: Sequence[Text], records: Sequence[Record]) -> tuple[ExampleList, ...]:
    """Return the examples with a sure mistake in one of their labels."""
    found = []
    for index, record in enumerate(records):
        gold, given = set(record["gold"]), set(record["labels"])
        for label in gold ^ given:
            probability = float(record["probabilities"].get(label, 0.0))
            sureness = probability
            if label in gold:
                sureness = 1.0 - probability
            found.append((sureness, index, label, probability))
    head, rows = text_head(examples), []
    for position in worst(sureness for sureness, *_ in found):
        _, index, label, probability = found[position]
        record, mark = records[index], "wrong"
        if label in record["gold"]:
            mark = "missed"
        one = ((shorten(label, MAX_LABEL), mark),)
        sets = [plain(", ".join(sorted(record[key])) or "none") for key in ("gold", "labels")]
        rows.append(
            (
                *text_cells(examples[index], head),
                one,
                percent(probability),
                *sets,
                file_and_line(examples[index]),
            )
        )
    mistakes = ExampleList(
        title="The worst mistakes",
        note=f"{len(found):,} labels are wrong or missed; the surest first.",
        head=(*head, "label", "probability", "truth", "answer", "where"),
        rows=tuple(rows),
    )
    return (mistakes,)
