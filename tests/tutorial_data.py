"""Small data in the form that the tutorials describe."""

from __future__ import annotations

import csv
import itertools
import random
from collections.abc import Sequence
from pathlib import Path

import electra
from tests.conftest import NOUNS, toy_text

NAMES = "Олена Тарас Марія Андрій Іван Софія Богдан Наталія Юрій Ганна".split()
CITIES = "Київ Львів Одеса Харків Полтава Чернігів Ужгород Луцьк".split()
SENTENCES = (
    "{} живе в місті {} .",
    "{} читає книгу про місто {} .",
    "Минулого року {} відвідує місто {} .",
    "Узимку {} їде в місто {} , бо там працює мій добрий друг .",
)


def write_ukrainian(folder: Path) -> None:
    """Write articles as in a dump of Wikipedia, and sentences with entities."""
    rng = random.Random(0)
    texts = [
        sentence.format(name, city)
        for sentence, name, city in itertools.product(SENTENCES, NAMES, CITIES)
    ]
    rng.shuffle(texts)
    (folder / "wiki").mkdir()
    articles = [" ".join(texts[first : first + 8]) for first in range(0, len(texts), 8)]
    (folder / "wiki" / "part-1.txt").write_text("\n\n".join(articles) + "\n", encoding="utf8")
    (folder / "ner").mkdir()
    write_conll(folder / "ner" / "train.txt", texts[:160])
    write_conll(folder / "ner" / "dev.txt", texts[160:200])


def write_conll(path: Path, sentences: list[str]) -> None:
    """Write a word and its tag a line, and a blank line after each sentence."""
    lines = []
    for sentence in sentences:
        for word in sentence.split():
            tag = "O"
            if word in NAMES:
                tag = "B-PER"
            elif word in CITIES:
                tag = "B-LOC"
            lines.append(f"{word} {tag}")
        lines.append("")
    path.write_text("\n".join(lines), encoding="utf8")


def write_texts(folder: Path) -> None:
    """Write plain text, and a table of texts with labels."""
    (folder / "my-texts").mkdir()
    (folder / "my-texts" / "one.txt").write_text(toy_text(300), encoding="utf8")
    write_reviews(folder / "train.csv", rows=64, seed=0)
    write_reviews(folder / "dev.csv", rows=32, seed=1)


def write_reviews(
    path: Path, *, rows: int, seed: int, header: Sequence[str] = ("text", "label")
) -> None:
    """Write a table of short texts whose label one word decides."""
    rng = random.Random(seed)
    with path.open("w", encoding="utf8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for _ in range(rows):
            label = rng.choice(["good", "bad"])
            word = {"good": "bright", "bad": "narrow"}[label]
            writer.writerow([f"the {rng.choice(NOUNS)} is a {word} one", label])


def write_domain(folder: Path) -> None:
    """Write text and a model of it, text of another kind, and a table."""
    write_texts(folder)
    write_model(folder, "runs/general")
    (folder / "domain-texts").mkdir()
    (folder / "domain-texts" / "one.txt").write_text(toy_text(300, seed=2), encoding="utf8")


def write_model(folder: Path, name: str) -> None:
    """Pre-train a model for one step."""
    electra.pretrain(
        "modern-tiny",
        corpus=folder / "my-texts",
        output_dir=folder / name,
        max_steps=1,
        quiet=True,
    )


def write_reviews_and_model(folder: Path) -> None:
    """Write a model and a table."""
    write_texts(folder)
    write_model(folder, "runs/mine")
    write_reviews(folder / "reviews.csv", rows=200, seed=0, header=("review", "opinion"))


PREPARE = {
    "domain.md": write_domain,
    "endpoint.md": write_reviews_and_model,
    "language.md": write_ukrainian,
    "many-gpus.md": write_texts,
    "objective.md": write_texts,
}
