"""A first data set for classification: are two neighbouring words of a sentence swapped?

The words alone say nothing about it; only their order does.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

from electra import atomic
from electra.config import UserError

HELD_OUT_SHARE = 0.08  # of the modules: their sentences are for this task, not for pre-training
DEV_SHARE = 0.3  # of those modules
MIN_WORDS, MAX_WORDS = 8, 24  # of a sentence
MIN_SENTENCES = 100  # in each file
LABELS = ("as written", "swapped")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


def split_corpus(corpus: Path, output_dir: Path) -> Path:
    """Write `pretraining.jsonl`, a docstring corpus without the modules of this task."""
    path = output_dir / "pretraining.jsonl"
    if not path.is_file():
        lines = corpus.read_text(encoding="utf8").splitlines(keepends=True)
        kept = [line for line in lines if not is_held_out(json.loads(line))]
        output_dir.mkdir(parents=True, exist_ok=True)
        atomic.write(path, "".join(kept))
    return path


def write_swapped_words(corpus: Path, output_dir: Path) -> tuple[Path, Path]:
    """Write `train.csv` and `dev.csv` (text, label, module) from the modules that
    `split_corpus` leaves out. No module is in both files.
    """
    rows: dict[str, list[tuple[str, str, str]]] = {"train": [], "dev": []}
    for line in corpus.read_text(encoding="utf8").splitlines():
        document = json.loads(line)
        if is_held_out(document):
            name = "train"
            if hash_fraction("dev", document["module"]) < DEV_SHARE:
                name = "dev"
            rows[name].extend(swap_words(document))
    output_dir.mkdir(parents=True, exist_ok=True)
    for name, selected in rows.items():
        if len(selected) < MIN_SENTENCES:
            raise UserError(
                f"{corpus}: only {len(selected)} sentences for {name}.csv, where {MIN_SENTENCES} "
                "are needed; install more libraries, such as scipy, and remove the folder"
            )
        selected.sort(key=lambda row: hash_fraction(*row))
        atomic.write(output_dir / f"{name}.csv", as_csv(selected))
    return output_dir / "train.csv", output_dir / "dev.csv"


def is_held_out(document: dict[str, str]) -> bool:
    return hash_fraction(document["library"], document["module"]) < HELD_OUT_SHARE


def swap_words(document: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield each sentence of a document with its label; half of them with two words swapped."""
    for sentence in SENTENCE_END.split(document["text"].replace("\n", " ")):
        words = sentence.split()
        places = swappable(words)
        if not MIN_WORDS <= len(words) <= MAX_WORDS or not places:
            continue
        label = LABELS[hash_fraction("label", sentence) < 0.5]
        if label == "swapped":
            first = places[int(hash_fraction("place", sentence) * len(places))]
            words[first], words[first + 1] = words[first + 1], words[first]
        yield " ".join(words), label, document["module"]


def swappable(words: list[str]) -> list[int]:
    """Return the places of words that may be swapped with the next.

    Not the first word, for its capital letter, and none with punctuation.
    """
    return [
        place
        for place in range(1, len(words) - 1)
        if words[place].isalpha()
        and words[place + 1].isalpha()
        and words[place].lower() != words[place + 1].lower()
    ]


def hash_fraction(*parts: str) -> float:
    """Return a number in [0, 1) that depends on the parts alone."""
    return int.from_bytes(hashlib.sha256("\n".join(parts).encode()).digest()[:8]) / 2**64


def as_csv(rows: list[tuple[str, str, str]]) -> str:
    """Return the rows as CSV with a header line."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("text", "label", "module"))
    writer.writerows(rows)
    return text.getvalue()
