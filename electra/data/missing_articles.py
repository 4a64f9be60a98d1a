"""A first data set for tagging: before which words did an article stand?

Articles are taken out of sentences. A word alone seldom says whether one stood before it; its
neighbours do.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

from electra import atomic
from electra.config import UserError

HELD_OUT_SHARE = 0.08  # of the modules: their sentences are for this task, not for pre-training
DEV_SHARE = 0.3  # of those modules
MIN_WORDS, MAX_WORDS = 8, 30  # of a sentence with its articles
MIN_SENTENCES = 100  # in each file
TAGS = {"the": "B-the", "a": "B-a", "an": "B-a"}
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
Sentence = list[tuple[str, str]]  # words and their tags


def split_corpus(corpus: Path, output_dir: Path) -> Path:
    """Write `pretraining.jsonl`, a docstring corpus without the modules of this task."""
    path = output_dir / "pretraining.jsonl"
    if not path.is_file():
        lines = corpus.read_text(encoding="utf8").splitlines(keepends=True)
        kept = [line for line in lines if not is_held_out(json.loads(line))]
        output_dir.mkdir(parents=True, exist_ok=True)
        atomic.write(path, "".join(kept))
    return path


def write_missing_articles(corpus: Path, output_dir: Path) -> tuple[Path, Path]:
    """Write `train.conll` and `dev.conll` (a word and its tag a line) from the modules that
    `split_corpus` leaves out. No module is in both files.
    """
    sentences: dict[str, list[Sentence]] = {"train": [], "dev": []}
    for line in corpus.read_text(encoding="utf8").splitlines():
        document = json.loads(line)
        if is_held_out(document):
            name = "train"
            if hash_fraction("dev", document["module"]) < DEV_SHARE:
                name = "dev"
            sentences[name].extend(remove_articles(document["text"]))
    output_dir.mkdir(parents=True, exist_ok=True)
    for name, selected in sentences.items():
        if len(selected) < MIN_SENTENCES:
            raise UserError(
                f"{corpus}: only {len(selected)} sentences for {name}.conll, where {MIN_SENTENCES} "
                "are needed; install more libraries, such as scipy, and remove the folder"
            )
        selected.sort(key=lambda sentence: hash_fraction(*(word for word, _ in sentence)))
        atomic.write(output_dir / f"{name}.conll", "\n".join(map(as_conll, selected)))
    return output_dir / "train.conll", output_dir / "dev.conll"


def is_held_out(document: dict[str, str]) -> bool:
    return hash_fraction(document["library"], document["module"]) < HELD_OUT_SHARE


def remove_articles(text: str) -> Iterator[Sentence]:
    """Yield the sentences of a text without their articles, which the next word's tag names."""
    for sentence in SENTENCE_END.split(text.replace("\n", " ")):
        words = sentence.split()
        if not MIN_WORDS <= len(words) <= MAX_WORDS:
            continue
        tagged: Sentence = []
        tag = "O"
        for word in words:
            if word.lower() in TAGS:
                tag = TAGS[word.lower()]
                continue
            tagged.append((word, tag))
            tag = "O"
        yield tagged


def as_conll(sentence: Sentence) -> str:
    return "".join(f"{word} {tag}\n" for word, tag in sentence)


def hash_fraction(*parts: str) -> float:
    """Return a number in [0, 1) that depends on the parts alone."""
    return int.from_bytes(hashlib.sha256("\n".join(parts).encode()).digest()[:8]) / 2**64
