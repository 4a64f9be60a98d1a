"""Class labels: in rows of tables, in a transformers config.json, and in messages."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from electra.config import UserError
from electra.data.lines import check_encodable
from electra.data.sources import warn
from electra.data.tables import parse_number
from electra.tasks.metrics import TWO_CLASS_METRICS

MAX_LISTED = 20
MAX_INTEGER_CLASSES = 20  # more distinct whole numbers than this are taken for scores
MAX_SCORE = 1e30  # a regression computes in float32
LIKE_NUMBER = re.compile(r"[+-]?\d+([.,]\d+)*\s?%?")
LIST_TEXT = re.compile(r"\[\s*(['\"].*)?\]", re.DOTALL)  # as pandas writes lists to CSV
# Also missing, or the name of a class: nobody but the user knows.
LIKE_MISSING = ("NA", "N/A", "n/a", "NULL", "null", "None")
WHOLE_NUMBER = re.compile(r"[+-]?\d{1,18}(\.0)?")  # 3.0: as pandas writes 3 beside missing values
# A missing or broken number, as tables spell it.
NO_LABEL = re.compile(r"([+-]?(nan|inf|infinity)|<na>)?", re.IGNORECASE)


def label_config(labels: Sequence[str]) -> dict[str, Any]:
    """Return the keys of config.json that name the classes."""
    return {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }


def labels_from_config(
    config: Mapping[str, Any], *, default: tuple[str, ...], source: str
) -> tuple[str, ...]:
    """Return the labels that a config.json names.

    LABEL_0 and LABEL_1 are what transformers writes when nobody named the classes: then they are
    `default` if that has as many labels, and numbers otherwise.
    """
    names = config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    if not isinstance(names, dict) or names.keys() != {str(number) for number in range(len(names))}:
        raise UserError(
            f"{source}: id2label must name the classes '0', '1' and so on, found "
            f"{str(names)[:60]!r}"
        )
    numbers = range(len(names))
    labels = tuple(str(names[str(number)]) for number in numbers)
    if repeated := [label for label, count in Counter(labels).items() if count > 1]:
        raise UserError(
            f"{source}: id2label gives several classes the name {repeated[0]!r}; give each a name "
            "of its own"
        )
    if labels != tuple(f"LABEL_{number}" for number in numbers):
        return labels
    if len(default) == len(labels):
        return default
    return tuple(map(str, numbers))


def list_labels(labels: Sequence[str]) -> str:
    """Format the first labels, and the number of the others, for a message."""
    listed = ", ".join(labels[:MAX_LISTED])
    if len(labels) <= MAX_LISTED:
        return listed
    return f"{listed} and {len(labels) - MAX_LISTED} more"


def check_score(label: str, where: str, *, column: str) -> None:
    """Raise UserError for a label that is no score of a regression."""
    score = parse_number(label)
    if score is None:
        raise UserError(
            f"{where}: label {label!r} is not a number, and this is a regression; correct it, or "
            "fine-tune with --regression false for classes"
        )
    if abs(score) > MAX_SCORE:
        raise UserError(
            f"{where}: {column!r} is {label}, and labels of a regression may be up to "
            f"{MAX_SCORE:g}; correct it, or scale them"
        )


def unknown_label(label: str, labels: Sequence[str], *, is_stock: bool) -> str:
    """Return a message on a label that is none of a model's; `is_stock`: of transformers."""
    names, remedy = "was never seen in training", "add rows with it to the training file"
    if is_stock:
        names, remedy = "is none of id2label in the model's config.json", "rename it there"
    message = f"label {label!r} {names}, where they are {list_labels(labels)}; "
    for known in labels:
        if known.casefold() == label.casefold():
            return f"{message}spell it {known!r}, or {remedy}"
    return f"{message}correct it, or {remedy}"


def label_text(value: Any, where: str) -> str | None:
    """Return a label as text, so that 1 in JSON and in CSV are one class; None for no label."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        if value.is_integer():
            return str(int(value))
        return repr(value)
    if isinstance(value, (int, str)):
        label = str(value).strip()
        if NO_LABEL.fullmatch(label):
            return None
        check_encodable(label, where)
        return label
    if value is None:
        return None
    hint = ""
    if isinstance(value, list):
        hint = "; --multi-label takes several labels a row"
    raise UserError(
        f"{where}: the label is a {type(value).__name__}; it must be text or a number{hint}"
    )


def merge_spellings(labels: set[str]) -> set[str]:
    """Return labels of which all are whole numbers without `.0`, and others as they are."""
    if not all(WHOLE_NUMBER.fullmatch(label) for label in labels):
        return labels
    return {label.removesuffix(".0") for label in labels}


def number_labels(labels: Sequence[str]) -> dict[str, int]:
    """Return the number of each class by its label: of whole numbers both 3 and 3.0."""
    numbers = {label: number for number, label in enumerate(labels)}
    if all(WHOLE_NUMBER.fullmatch(label) for label in labels):
        for label, number in list(numbers.items()):
            short = label.removesuffix(".0")
            numbers.setdefault(short, number)
            numbers.setdefault(f"{short}.0", number)
    return numbers


def are_scores(values: Sequence[float]) -> bool:
    """Say whether numeric labels are scores rather than the numbers of classes."""
    if len(set(values)) > MAX_INTEGER_CLASSES:
        return True
    return any(value != int(value) for value in values)


def warn_of_possible_scores(spellings: set[str]) -> None:
    """Warn of classes that may be meant as scores: 0,5 and 50 %, or many numbers and a word."""
    texts = sorted(label for label in spellings if parse_number(label) is None)
    numbers = len(spellings) - len(texts)
    if texts and all(LIKE_NUMBER.fullmatch(label) for label in texts):
        warn(
            f"labels such as {texts[0]!r} are read as classes; if they are scores, write them with "
            "a decimal point and without signs: 0.5"
        )
    elif texts and numbers > MAX_INTEGER_CLASSES:
        warn(
            f"{numbers:,} labels are numbers and {len(texts):,} are not ({list_labels(texts)}), so "
            "all are classes; if the numbers are scores, correct the others"
        )


def warn_of_doubtful_labels(located: Sequence[tuple[str, str]]) -> None:
    """Warn of labels, given with their places, that may be missing ones or misspelt others."""
    counts = Counter(label for label, _ in located)
    missing = [label for label in counts if label in LIKE_MISSING]
    if missing:
        where = next(where for label, where in located if label in LIKE_MISSING)
        warn(
            f"{sum(counts[label] for label in missing):,} rows have the label "
            f"{' or '.join(map(repr, missing))}, for example {where}: it is read as a class; if "
            "it means that the label is missing, leave these rows out"
        )
    alike: dict[str, list[str]] = {}
    for label in sorted(counts):
        alike.setdefault(label.casefold(), []).append(label)
    if repeated := [labels for labels in alike.values() if len(labels) > 1]:
        first, second, *_ = repeated[0]
        warn(
            f"the labels {first!r} ({counts[first]:,} rows) and {second!r} ({counts[second]:,} "
            "rows) differ only in upper and lower case, and are classes of their own; if they "
            "mean the same, spell them alike"
        )


def class_metrics(labels: Sequence[str]) -> tuple[str, ...]:
    """Return the metrics of a classification, the one that counts first."""
    if len(labels) == 2:
        return ("accuracy", *TWO_CLASS_METRICS)
    return ("accuracy", "f1_macro")


def sort_labels(labels: set[str]) -> tuple[str, ...]:
    """Sort labels by value where all are whole numbers, otherwise by spelling."""
    if all(re.fullmatch(r"[+-]?\d{1,18}", label) for label in labels):
        return tuple(sorted(labels, key=lambda label: (int(label), label)))
    return tuple(sorted(labels))
