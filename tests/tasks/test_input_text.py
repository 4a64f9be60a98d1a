"""Standard input and a sentence are inputs of a prediction."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from electra.config import UserError
from electra.data.tables import find_table
from electra.tasks import find_task
from electra.tasks.input_text import as_file, find_input, is_file
from tests.tasks.toys import written


def test_a_sentence_is_no_file_and_a_missing_table_is_one(tmp_path: Path) -> None:
    named = written(tmp_path / "two words", "a text\n")
    for source in ("rows.csv", "my rows.csv", "word", "old rows.tsv.gz", str(named)):
        assert is_file(source)
    for source in ("a fine film.", "-", "~nobody knows", "word " * 9_000):
        assert not is_file(source)


@pytest.mark.parametrize("options", [{}, {"text": "1", "label": "0"}])
def test_a_sentence_is_one_example_with_all_its_commas(options: dict[str, str]) -> None:
    task = find_task("classify", **options)
    with as_file("good, but long", task) as path:
        (example,) = task.read([find_table(path)], labelled=False)
        assert getattr(example, "first") == "good, but long"  # noqa: B009
        assert getattr(example, "label") is None  # noqa: B009
    assert not Path(path).exists()


@pytest.mark.parametrize("name", ["ner", "classify"])
def test_a_sentence_that_is_not_utf8_is_refused_as_a_sentence(name: str) -> None:
    with (
        pytest.raises(UserError, match=r"^the sentence: byte 0xff is not UTF-8"),
        as_file("caf\udcff is here", find_task(name)),
    ):
        pass


@pytest.mark.parametrize("name", ["ner", "glue/sst-2"])
def test_a_sentence_is_read_by_other_tasks_on_single_texts(name: str) -> None:
    task = find_task(name)
    with as_file("anna lives here", task) as path:
        assert len(list(task.read([find_table(path)], labelled=False))) == 1


@pytest.mark.parametrize("name", ["glue/rte", "span", "choose"])
def test_a_sentence_is_refused_by_tasks_on_more_than_one_text(name: str) -> None:
    with pytest.raises(UserError, match=r"write .* to a file"), as_file("a text", find_task(name)):
        pass


@pytest.mark.parametrize(
    ("content", "suffix"),
    [
        ("a text\nanother\n", ".txt"),
        (json.dumps({"text": "a text"}) + "\n" + json.dumps({"text": "another"}), ".jsonl"),
        (json.dumps([{"text": "a text"}, {"text": "another"}]), ".json"),
        ('\ufeff{"text": "a text"}\n{"text": "another"}\n', ".jsonl"),
        ('\ufeff[{"text": "a text"}, {"text": "another"}]', ".json"),
    ],
)
def test_standard_input_is_text_or_json(
    content: str, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin = SimpleNamespace(buffer=io.BytesIO(content.encode()))
    monkeypatch.setattr("sys.stdin", stdin)
    task = find_task("classify")
    with as_file("-", task) as path:
        assert Path(path).suffix == suffix
        texts = [getattr(e, "first") for e in task.read([find_table(path)], labelled=False)]  # noqa: B009
    assert texts == ["a text", "another"]


def test_messages_and_warnings_call_standard_input_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"a text\ncaf\xe9\n")))
    task = find_task("classify")
    with (
        pytest.raises(UserError, match=r"^standard input:2: byte 0xe9"),
        as_file("-", task) as path,
    ):
        list(task.read([find_table(path)], labelled=False))
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"a text\n\n")))
    with (
        pytest.warns(UserWarning, match="^standard input: rows without text: 1"),
        as_file("-", task) as path,
    ):
        list(task.read([find_table(path)], labelled=False))


@pytest.mark.parametrize(
    ("source", "message"),
    [("Great!", r"echo 'Great!' \| electra … -$"), ("rows.csv", "rows.csv: no such file$")],
)
def test_one_word_that_is_no_file_is_refused_with_the_way_to_ask_about_it(
    source: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        find_input(source)
