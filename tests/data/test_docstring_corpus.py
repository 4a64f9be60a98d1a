from __future__ import annotations

import json
from pathlib import Path

import pytest

from electra.config import UserError
from electra.data.docstring_corpus import split_paragraphs, write_docstring_corpus
from tests.wording import wording_of

wording = wording_of(__file__)

SENTENCE = "The quick brown fox jumps over the lazy dog {}."


def library(folder: Path, **modules: str) -> Path:
    folder.mkdir(parents=True)
    for name, source in modules.items():
        (folder / f"{name}.py").write_text(source, encoding="utf8")
    return folder


def read_documents(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf8").splitlines()]


def test_prose_is_kept_and_the_rest_of_a_docstring_is_not() -> None:
    docstring = """Return the *first* of all the words that :func:`~x.find` has found so far.

This paragraph goes on over two lines and becomes one line,
with its ``marks`` taken away from the words.

>>> find("The doctest which has words enough to pass for a sentence.")
    | a | table | is | not | a | paragraph | of | prose |

Parameters
----------
words : list of str
    The words to search, in the order in which they stand in the text.
x, y, z = f(a[1:], b=2) if c else {}
"""
    assert list(split_paragraphs(docstring)) == [
        "Return the *first* of all the words that x.find has found so far.",
        "This paragraph goes on over two lines and becomes one line, with its marks taken away "
        "from the words.",
        "The words to search, in the order in which they stand in the text.",
    ]


def test_each_module_becomes_a_document_without_repeated_paragraphs(tmp_path: Path) -> None:
    once, twice = SENTENCE.format("once"), SENTENCE.format("twice")
    folder = library(
        tmp_path / "lib",
        a=f'"""{twice}"""\n',
        b=f'def f():\n    r"""{twice}\n\n    {once}\n    """\n',
        c=f'x = """{SENTENCE.format("in a value")}"""\n',
        d="import does_not_exist\n",
    )
    rows = read_documents(write_docstring_corpus(tmp_path, libraries={"lib": folder}))
    assert {row["library"] for row in rows} == {"lib"}
    assert {row["module"] for row in rows} <= {"a", "b"}
    assert sorted(line for row in rows for line in row["text"].split("\n")) == [
        once,
        twice,
    ]


def test_pydoc_topics_are_read_from_their_dict(tmp_path: Path) -> None:
    folder = library(
        tmp_path / "python" / "pydoc_data",
        topics=f"topics = {{'if': '{SENTENCE.format('here')}\\n'}}\n",
    )
    rows = read_documents(write_docstring_corpus(tmp_path, libraries={"python": folder.parent}))
    assert rows == [
        {"text": SENTENCE.format("here"), "library": "python", "module": "pydoc_data.topics"}
    ]


def test_no_library_fills_more_than_its_share_of_the_cap(tmp_path: Path) -> None:
    libraries = {}
    for name in ("one", "two", "three"):
        sources = {f"m{n}": f'"""{SENTENCE.format(f"of {name} number {n}")}"""' for n in range(200)}
        libraries[name] = library(tmp_path / name, **sources)
    rows = read_documents(write_docstring_corpus(tmp_path, max_bytes=10_000, libraries=libraries))
    sizes = {
        name: sum(len(row["text"]) for row in rows if row["library"] == name) for name in libraries
    }
    assert all(2000 <= size < 2100 for size in sizes.values())


def test_the_same_libraries_give_the_same_bytes_and_a_harvest_is_reused(tmp_path: Path) -> None:
    folder = library(
        tmp_path / "lib", **{f"m{n}": f'"""{SENTENCE.format(f"number {n}")}"""' for n in range(20)}
    )
    first, second = (
        write_docstring_corpus(tmp_path / name, libraries={"lib": folder})
        for name in ("first", "second")
    )
    assert first.read_bytes() == second.read_bytes()
    first.write_text("kept", encoding="utf8")
    assert (
        write_docstring_corpus(tmp_path / "first", libraries={"lib": folder}).read_text(
            encoding="utf8"
        )
        == "kept"
    )


def test_libraries_without_sources_are_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=wording("libraries_without_sources_are_an_error_that_says_what_to_do")
    ):
        write_docstring_corpus(tmp_path, libraries={"lib": library(tmp_path / "lib")})
