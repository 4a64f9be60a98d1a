"""A first data set for classification: which library does a paragraph of the docstring corpus come
from?
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from electra import atomic
from electra.config import UserError

MIN_WORDS = 12  # shorter paragraphs hold little to tell libraries apart by
DEV_SHARE = 0.25  # of the modules
MAX_PARAGRAPHS_PER_MODULE = 10  # so that no long module dominates its library

Paragraph = tuple[str, str, str]  # text, library, module


@dataclass
class LibraryParagraphs:
    """The paragraphs of one library, split by module."""

    train: list[Paragraph] = field(default_factory=list)
    dev: list[Paragraph] = field(default_factory=list)


def write_library_paragraphs(
    corpus: Path, output_dir: Path, *, libraries: int = 6, train: int = 500, dev: int = 150
) -> tuple[Path, Path]:
    """Write `train.csv` and `dev.csv` (text, label, module), with so many paragraphs of each of the
    libraries that have the most. No module is in both files, so that a name that occurs in only one
    module does not help.
    """
    by_library = read_paragraphs(corpus)
    labels = largest_libraries(by_library, train=train, dev=dev)[:libraries]
    if len(labels) < 2:
        raise UserError(
            f"{corpus}: fewer than two libraries have {train + dev} paragraphs of {MIN_WORDS} "
            "words; harvest where more is installed, torch and transformers for two"
        )
    train_rows: list[Paragraph] = []
    dev_rows: list[Paragraph] = []
    for library in labels:
        train_rows += shuffle(by_library[library].train)[:train]
        dev_rows += shuffle(by_library[library].dev)[:dev]
    output_dir.mkdir(parents=True, exist_ok=True)
    atomic.write(output_dir / "train.csv", as_csv(shuffle(train_rows)))
    atomic.write(output_dir / "dev.csv", as_csv(shuffle(dev_rows)))
    return output_dir / "train.csv", output_dir / "dev.csv"


def read_paragraphs(corpus: Path) -> dict[str, LibraryParagraphs]:
    """Return the paragraphs of a docstring corpus by library, a share of the modules for dev."""
    by_library: dict[str, LibraryParagraphs] = defaultdict(LibraryParagraphs)
    for line in corpus.read_text(encoding="utf8").splitlines():
        document = json.loads(line)
        library, module = document["library"], document["module"]
        texts = [text for text in document["text"].split("\n") if len(text.split()) >= MIN_WORDS]
        paragraphs = [(text, library, module) for text in texts]
        selected = shuffle(paragraphs)[:MAX_PARAGRAPHS_PER_MODULE]
        if hash_fraction(library, module) < DEV_SHARE:
            by_library[library].dev.extend(selected)
        else:
            by_library[library].train.extend(selected)
    return by_library


def largest_libraries(
    by_library: dict[str, LibraryParagraphs], *, train: int, dev: int
) -> list[str]:
    """Return the libraries with enough paragraphs for both files, the largest first."""
    sizes = {}
    for library, paragraphs in by_library.items():
        if len(paragraphs.train) >= train and len(paragraphs.dev) >= dev:
            sizes[library] = len(paragraphs.train) + len(paragraphs.dev)
    return sorted(sizes, key=lambda library: -sizes[library])


def shuffle(rows: list[Paragraph]) -> list[Paragraph]:
    """Return the rows in a random order that is the same on every machine."""
    return sorted(rows, key=lambda row: hash_fraction(*row))


def hash_fraction(*parts: str) -> float:
    """Return a number in [0, 1) that depends on the parts alone."""
    return int.from_bytes(hashlib.sha256("\n".join(parts).encode()).digest()[:8]) / 2**64


def as_csv(rows: list[Paragraph]) -> str:
    """Return the rows as CSV with a header line."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("text", "label", "module"))
    writer.writerows(rows)
    return text.getvalue()
