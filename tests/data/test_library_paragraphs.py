"""Paragraphs of a harvest become a labelled set: balanced, split by module, always the same."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import pytest

from electra.config import UserError
from electra.data.library_paragraphs import write_library_paragraphs
from tests.wording import wording_of

wording = wording_of(__file__)

WORDS = "one two three four five six seven eight nine ten eleven twelve"


def corpus_of(path: Path, sizes: dict[str, int]) -> Path:
    """So many modules of each library; six paragraphs in each, the last one short."""
    with path.open("w", encoding="utf8") as file:
        for library, modules in sizes.items():
            for n in range(modules):
                text = "\n".join(
                    [*(f"{library} {n} {k} {WORDS}" for k in range(5)), "Too short a paragraph."]
                )
                file.write(json.dumps({"text": text, "library": library, "module": f"m{n}"}) + "\n")
    return path


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_library_has_as_many_paragraphs_and_no_module_is_in_both_files(tmp_path):
    corpus = corpus_of(tmp_path / "corpus.jsonl", {"big": 60, "middle": 50, "small": 40, "tiny": 2})
    train, dev = (
        read(path)
        for path in write_library_paragraphs(
            corpus, tmp_path / "set", libraries=3, train=30, dev=10
        )
    )
    assert Counter(row["label"] for row in train) == {"big": 30, "middle": 30, "small": 30}
    assert Counter(row["label"] for row in dev) == {"big": 10, "middle": 10, "small": 10}
    assert not {(row["label"], row["module"]) for row in train} & {
        (row["label"], row["module"]) for row in dev
    }
    assert all(len(row["text"].split()) >= 12 for row in train + dev)


def test_the_largest_libraries_are_taken_and_the_set_is_always_the_same(tmp_path):
    corpus = corpus_of(tmp_path / "corpus.jsonl", {"small": 40, "big": 60, "middle": 50})
    first, again = (
        write_library_paragraphs(corpus, tmp_path / name, libraries=2, train=20, dev=5)
        for name in ("a", "b")
    )
    assert {row["label"] for row in read(first[0])} == {"big", "middle"}
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]


def test_a_harvest_of_one_library_is_refused_with_what_to_do(tmp_path):
    corpus = corpus_of(tmp_path / "corpus.jsonl", {"alone": 60})
    with pytest.raises(
        UserError,
        match=wording("a_harvest_of_one_library_is_refused_with_what_to_do"),
    ):
        write_library_paragraphs(corpus, tmp_path / "set", train=20, dev=5)
