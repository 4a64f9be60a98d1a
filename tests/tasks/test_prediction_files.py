"""Predictions keep the columns of their rows, and are written with a column for each field."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from electra.data.tables import find_table, read_rows
from electra.tasks.choose import Choose
from electra.tasks.classify import Classify
from electra.tasks.inference import add_input_columns
from electra.tasks.prediction_files import write_records
from electra.tasks.span import Candidate, Span, SpanAnswer
from electra.tasks.tag import Tag

RECORDS = [
    {"text": "the dog", "label": "dogs", "probabilities": {"cats": 0.25, "dogs": 0.75}},
    {
        "text": "a cat",
        "tags": ["x"],
        "label": "cats",
        "probabilities": {"cats": 1.0, "dogs": 0.0},
        "gold": "cats",
    },
]


def test_a_prediction_comes_after_the_columns_of_its_row(tmp_path: Path) -> None:
    rows = "id,text,author,label,probability\n7,the dog,anna,cats,high\n8,a cat,berg,,\n"
    (tmp_path / "asked.csv").write_text(rows, encoding="utf8")
    task = Classify.from_name(labels=("cats", "dogs"), regression=False)
    said = []
    for example in task.read([find_table(tmp_path / "asked.csv")], labelled=False):
        said.append(add_input_columns(task.record(example, np.array([0.25, 0.75])), example.row))
    first, second = said
    assert list(first)[:3] == ["text", "author", "input_probability"]
    assert (first["id"], first["author"], first["gold"]) == ("7", "anna", "cats")
    assert (first["label"], first["input_probability"]) == ("dogs", "high")
    assert (second["author"], "gold" in second, "input_label" in second) == ("berg", False, False)


def test_no_column_of_the_input_is_overwritten_by_another() -> None:
    row = {"probability": "high", "input_probability": "low"}
    said = add_input_columns({"probability": 0.75}, row)
    assert said == row | {"input_input_probability": "high", "probability": 0.75}


def test_a_table_of_predictions_keeps_its_columns_when_it_is_predicted_again(
    tmp_path: Path,
) -> None:
    again = {"probability_cats": "0.9", "probabilities": {"cats": 0.25, "dogs": 0.75}}
    write_records([again], tmp_path / "said.csv")
    said = "input_probability_cats,probability_cats,probability_dogs\n0.9,0.25,0.75\n"
    assert (tmp_path / "said.csv").read_text(encoding="utf8").replace("\r", "") == said


def test_a_question_keeps_its_columns_too_and_labelled_rows_are_not_held(tmp_path: Path) -> None:
    path = tmp_path / "asked.csv"
    path.write_text("source,context,a,b,label\nbook,it,sat,ran,0\n", encoding="utf8")
    task = Choose.from_name("choose", options=("a", "b"))
    (asked,) = task.read([find_table(path)], labelled=False)
    said = add_input_columns(task.record(asked, np.array([0.1, 0.9])), asked.row)
    assert (said["source"], said["option"]) == ("book", "ran")
    (labelled,) = task.read([find_table(path)], labelled=True)
    assert labelled.row is None


def test_a_question_about_a_paragraph_keeps_the_columns_of_all_layouts(tmp_path: Path) -> None:
    asked = {"id": "q7", "question": "Who sat?", "level": "easy"}
    paragraph = {"context": "A dog sat.", "qas": [asked]}
    squad = {"data": [{"title": "Dogs", "paragraphs": [paragraph]}]}
    (tmp_path / "squad.json").write_text(json.dumps(squad), encoding="utf8")
    (tmp_path / "mrqa.jsonl").write_text(json.dumps(paragraph | {"title": "Dogs"}), encoding="utf8")
    row = {"title": "Dogs", "context": "A dog sat."} | asked
    (tmp_path / "rows.jsonl").write_text(json.dumps(row), encoding="utf8")
    task = Span.from_name("span")
    for name in ("squad.json", "mrqa.jsonl", "rows.jsonl"):
        (question,) = task.read([find_table(tmp_path / name)], labelled=False)
        answer = SpanAnswer((Candidate(0, 5, 0.75),))
        said = add_input_columns(task.record(question, answer), question.row)
        assert (said["id"], said["title"], said["level"]) == ("q7", "Dogs", "easy")
        assert (said["question"], said["answer"]) == ("Who sat?", "A dog")


def test_a_tagged_sentence_keeps_its_columns_and_its_id(tmp_path: Path) -> None:
    path = tmp_path / "asked.jsonl"
    row = {"id": 3, "tokens": ["Anna", "sat"], "tags": ["B-PER", "O"], "source": "book"}
    path.write_text(json.dumps(row), encoding="utf8")
    task = Tag.from_name("tag", labels=("O", "B-PER", "I-PER"))
    (sentence,) = task.read([find_table(path)], labelled=False)
    said = add_input_columns(task.record(sentence, np.eye(3)[[1, 0]]), sentence.row)
    assert (said["id"], said["source"], said["gold"]) == (3, "book", ["B-PER", "O"])
    assert "input_tags" not in said
    (labelled,) = task.read([find_table(path)], labelled=True)
    assert labelled.row is None


def test_the_probabilities_of_words_are_one_field_of_a_table(tmp_path: Path) -> None:
    records = [
        {"words": ["a"], "tags": ["O"], "probabilities": [0.5]},
        {"words": ["a", "b"], "tags": ["O", "O"], "probabilities": [0.5, 0.25]},
    ]
    write_records(records, tmp_path / "said.csv")
    with (tmp_path / "said.csv").open(encoding="utf8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == ["words", "tags", "probabilities"]
    assert rows[1]["probabilities"] == "[0.5, 0.25]"


def test_a_table_has_a_column_for_each_probability_and_for_what_only_some_rows_have(
    tmp_path: Path,
) -> None:
    assert write_records(RECORDS, tmp_path / "said.csv") == 2
    with (tmp_path / "said.csv").open(encoding="utf8", newline="") as stream:
        first, second = csv.DictReader(stream)
    assert list(first) == [
        "text",
        "label",
        "probability_cats",
        "probability_dogs",
        "tags",
        "gold",
    ]
    assert (first["probability_dogs"], first["gold"], first["tags"]) == ("0.75", "", "")
    assert (second["gold"], second["tags"]) == ("cats", '["x"]')


@pytest.mark.parametrize("cell", ["=1+1", "+1", "-1", "@a", 'a "b", c', "a\nb", "a\tb", "'=1"])
@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_cells_come_back_as_they_were_also_those_like_formulas(
    cell: str, suffix: str, tmp_path: Path
) -> None:
    path = (tmp_path / "said").with_suffix(suffix)
    write_records([{"text": cell, "label": "a"}], path)
    read_as_csv = path.rename(tmp_path / "read.csv")
    assert [row for _, row in read_rows(find_table(read_as_csv))] == [{"text": cell, "label": "a"}]


def test_probabilities_without_names_are_numbered(tmp_path: Path) -> None:
    write_records([{"choice": 1, "probabilities": [0.1, 0.9]}], tmp_path / "said.tsv")
    header, row = (tmp_path / "said.tsv").read_text(encoding="utf8").splitlines()
    assert header.split("\t") == ["choice", "probability_0", "probability_1"]
    assert row.split("\t") == ["1", "0.1", "0.9"]


def test_numbers_that_json_has_no_word_for_become_null(tmp_path: Path) -> None:
    record = {"text": "a cat", "price": float("inf"), "sizes": [1.5, float("nan")], "id": 7}
    write_records([record], tmp_path / "said.jsonl")
    said = (tmp_path / "said.jsonl").read_text(encoding="utf8")
    assert said == '{"text": "a cat", "price": null, "sizes": [1.5, null], "id": 7}\n'


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv"])
def test_half_a_surrogate_pair_in_another_column_is_written_as_its_escape(
    name: str, tmp_path: Path
) -> None:
    write_records([{"id": "7\ud83d", "label": "dogs"}], tmp_path / name)
    content = (tmp_path / name).read_text(encoding="utf8")
    assert "7\\ud83d" in content
    if name == "out.jsonl":
        assert json.loads(content)["id"] == "7\ud83d"
