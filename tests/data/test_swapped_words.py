from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from electra.config import UserError
from electra.data.swapped_words import split_corpus, swappable, write_swapped_words

WORDS = "the quick brown fox jumps over some lazy dogs while many green birds sing".split()


def write_corpus(path: Path, modules: int) -> Path:
    lines = []
    for number in range(modules):
        sentences = [
            f"Sentence {number} of {place} says that {' '.join(WORDS[place:])} {' '.join(WORDS)}."
            for place in range(5)
        ]
        document = {"text": "\n".join(sentences), "library": "lib", "module": f"m{number}"}
        lines.append(json.dumps(document) + "\n")
    path.write_text("".join(lines), encoding="utf8")
    return path


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("electra.data.swapped_words.MAX_WORDS", 40)
    return write_corpus(tmp_path / "corpus.jsonl", 2000)


def test_about_half_of_the_sentences_have_two_neighbours_swapped(
    corpus: Path, tmp_path: Path
) -> None:
    originals = set()
    for line in corpus.read_text(encoding="utf8").splitlines():
        originals.update(json.loads(line)["text"].split("\n"))
    for path in write_swapped_words(corpus, tmp_path / "task"):
        rows = read_rows(path)
        labels = [row["label"] for row in rows]
        assert 0.4 < labels.count("swapped") / len(labels) < 0.6
        for row in rows:
            assert (row["text"] in originals) == (row["label"] == "as written")
        words = {" ".join(sorted(row["text"].split())) for row in rows}
        assert words <= {" ".join(sorted(text.split())) for text in originals}


def test_no_module_is_in_two_files(corpus: Path, tmp_path: Path) -> None:
    train, dev = (
        {row["module"] for row in read_rows(path)}
        for path in write_swapped_words(corpus, tmp_path / "task")
    )
    pretraining = split_corpus(corpus, tmp_path / "task")
    lines = pretraining.read_text(encoding="utf8").splitlines()
    read = {json.loads(line)["module"] for line in lines}
    assert not train & dev
    assert not read & (train | dev)
    assert len(read | train | dev) == 2000


def test_the_same_corpus_gives_the_same_files(corpus: Path, tmp_path: Path) -> None:
    first, second = (write_swapped_words(corpus, tmp_path / name) for name in ("a", "b"))
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_neither_the_first_word_nor_punctuation_nor_equal_words_are_swapped() -> None:
    words = "One two two three, four five.".split()
    assert swappable(words) == []
    assert swappable("One two three four, five six.".split()) == [1]


def test_too_few_sentences_are_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus.jsonl", 5)
    with pytest.raises(UserError, match=r"corpus\.jsonl: only 0 sentences for train\.csv"):
        write_swapped_words(corpus, tmp_path / "task")
