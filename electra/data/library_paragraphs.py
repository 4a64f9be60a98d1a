"""A first labelled set, out of the harvest: which library does this paragraph come from?"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections import defaultdict
from pathlib import Path

from electra import atomic
from electra.config import UserError

FEWEST_WORDS = 12  # in fewer there is little to tell libraries apart by
DEV_SHARE = 0.25  # of the modules
MOST_OF_A_MODULE = 10  # paragraphs, so that no long one stands for its library

Paragraph = tuple[str, str, str]  # text, library, module


def write_library_paragraphs(
    corpus: Path, output_dir: Path, *, libraries: int = 6, train: int = 500, dev: int = 150
) -> tuple[Path, Path]:
    """Write `train.csv` and `dev.csv` (text, label, module): so many paragraphs of each of the
    libraries that have the most. No module is in both, so that a name that only one of its
    paragraphs explains helps nobody.
    """
    found: dict[str, tuple[list[Paragraph], list[Paragraph]]] = defaultdict(lambda: ([], []))
    for line in corpus.read_text(encoding="utf8").splitlines():
        document = json.loads(line)
        library, module = document["library"], document["module"]
        rows = [
            (text, library, module)
            for text in document["text"].split("\n")
            if len(text.split()) >= FEWEST_WORDS
        ]
        held_out = chance(library, module) < DEV_SHARE
        found[library][held_out].extend(shuffled(rows)[:MOST_OF_A_MODULE])
    enough = [
        library
        for library, parts in found.items()
        if len(parts[0]) >= train and len(parts[1]) >= dev
    ]
    largest = sorted(enough, key=lambda library: -sum(map(len, found[library])))[:libraries]
    if len(largest) < 2:
        raise UserError(
            f"{corpus}: fewer than two libraries have {train + dev} paragraphs of {FEWEST_WORDS} "
            "words; "
            "harvest where more is installed, torch and transformers for two"
        )
    paths = output_dir / "train.csv", output_dir / "dev.csv"
    output_dir.mkdir(parents=True, exist_ok=True)
    for part, (path, count) in enumerate(zip(paths, (train, dev), strict=True)):
        chosen = [row for library in largest for row in shuffled(found[library][part])[:count]]
        atomic.write(path, as_csv(shuffled(chosen)))
    return paths


def shuffled(rows: list[Paragraph]) -> list[Paragraph]:
    """In an order that is random and the same everywhere."""
    return sorted(rows, key=lambda row: chance(*row))


def chance(*parts: str) -> float:
    """A number in [0, 1) that depends on the parts alone."""
    return int.from_bytes(hashlib.sha256("\n".join(parts).encode()).digest()[:8]) / 2**64


def as_csv(rows: list[Paragraph]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("text", "label", "module"))
    writer.writerows(rows)
    return text.getvalue()
