from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from electra.config import UserError
from electra.data.missing_articles import remove_articles, split_corpus, write_missing_articles


def write_corpus(path: Path, modules: int) -> Path:
    lines = []
    for number in range(modules):
        sentences = [
            f"Sentence {place} of module {number} says that the fox sees a dog here."
            for place in range(5)
        ]
        document = {"text": "\n".join(sentences), "library": "lib", "module": f"m{number}"}
        lines.append(json.dumps(document) + "\n")
    path.write_text("".join(lines), encoding="utf8")
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "corpus.jsonl", 2000)


def modules_of(path: Path) -> set[str]:
    words = [line.split()[0] for line in path.read_text(encoding="utf8").splitlines() if line]
    pairs = itertools.pairwise(words)
    return {f"m{number}" for word, number in pairs if word == "module"}


def test_an_article_becomes_the_tag_of_the_next_word() -> None:
    (sentence,) = remove_articles("The fox of an old house sees a dog there.")
    assert sentence == [
        ("fox", "B-the"),
        ("of", "O"),
        ("old", "B-a"),
        ("house", "O"),
        ("sees", "O"),
        ("dog", "B-a"),
        ("there.", "O"),
    ]


def test_short_and_long_sentences_are_left_out() -> None:
    assert list(remove_articles("Too short. " + "word " * 40 + ".")) == []


def test_no_module_is_in_two_files(corpus: Path, tmp_path: Path) -> None:
    train, dev = map(modules_of, write_missing_articles(corpus, tmp_path / "task"))
    pretraining = split_corpus(corpus, tmp_path / "task")
    lines = pretraining.read_text(encoding="utf8").splitlines()
    read = {json.loads(line)["module"] for line in lines}
    assert not train & dev
    assert not read & (train | dev)
    assert len(read | train | dev) == 2000


def test_the_same_corpus_gives_the_same_files(corpus: Path, tmp_path: Path) -> None:
    first, second = (write_missing_articles(corpus, tmp_path / name) for name in ("a", "b"))
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_too_few_sentences_are_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus.jsonl", 5)
    with pytest.raises(UserError, match=r"corpus\.jsonl: only \d+ sentences for train\.conll"):
        write_missing_articles(corpus, tmp_path / "task")
