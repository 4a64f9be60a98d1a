from __future__ import annotations

import random
from pathlib import Path

import pytest

from electra.data.options import VocabularyOptions
from electra.data.vocabulary import train_wordpiece
from electra.data.wordpiece import WordPiece

WORDS = [
    "the",
    "a",
    "of",
    "river",
    "stone",
    "bridge",
    "walked",
    "crossed",
    "slowly",
    "morning",
    "old",
    "new",
    "water",
]


def prose(documents: int, *, seed: int = 0) -> str:
    """Text of this many documents, whose lines are told apart by their words."""
    rng = random.Random(seed)
    return "\n\n".join(
        "\n".join(
            " ".join(rng.choices(WORDS, k=rng.randint(1, 40))) for _ in range(rng.randint(1, 12))
        )
        for _ in range(documents)
    )


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text(prose(300), encoding="utf8")
    return path


@pytest.fixture(scope="session")
def tokenizer(text: Path, tmp_path_factory: pytest.TempPathFactory) -> WordPiece:
    return train_wordpiece(
        [text],
        tmp_path_factory.mktemp("vocabulary"),
        options=VocabularyOptions(vocab_size=120),
        report=lambda _: None,
    )
