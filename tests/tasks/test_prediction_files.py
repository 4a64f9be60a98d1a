"""Predictions keep the columns of their rows, and are written with a column for each field."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from electra.data.tables import find_table
from electra.tasks.choose import Choose
from electra.tasks.classify import Classify
from electra.tasks.inference import add_input_columns
from electra.tasks.prediction_files import write_records

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


def test_a_question_keeps_its_columns_too_and_labelled_rows_are_not_held(tmp_path: Path) -> None:
    path = tmp_path / "asked.csv"
    path.write_text("source,context,a,b,label\nbook,it,sat,ran,1\n", encoding="utf8")
    task = Choose.from_name("choose", options=("a", "b"))
    (asked,) = task.read([find_table(path)], labelled=False)
    said = add_input_columns(task.record(asked, np.array([0.1, 0.9])), asked.row)
    assert (said["source"], said["option"]) == ("book", "ran")
    (labelled,) = task.read([find_table(path)], labelled=True)
    assert labelled.row is None


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


def test_probabilities_without_names_are_numbered(tmp_path: Path) -> None:
    write_records([{"choice": 1, "probabilities": [0.1, 0.9]}], tmp_path / "said.tsv")
    header, row = (tmp_path / "said.tsv").read_text(encoding="utf8").splitlines()
    assert header.split("\t") == ["choice", "probability_0", "probability_1"]
    assert row.split("\t") == ["1", "0.1", "0.9"]
