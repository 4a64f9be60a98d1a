"""Rows of a Python program as tables."""

from __future__ import annotations

import numpy as np

from electra.api.rows import as_items, find_tables, rows_table
from electra.data.tables import read_rows


class NAType:
    """pandas.NA, by its name."""


def test_values_of_numpy_and_pandas_become_pythons_own() -> None:
    (table,) = find_tables([{"a": np.int64(1), "b": np.array(["x"]), "c": NAType()}], name="train")
    assert list(read_rows(table)) == [("train, row 1", {"a": 1, "b": ["x"], "c": None})]
    assert type(next(read_rows(table))[1]["a"]) is int


def test_a_string_is_never_read_by_characters() -> None:
    assert as_items("ab.csv", name="train") == ["ab.csv"]


def test_rows_are_identified_by_their_content() -> None:
    first = rows_table([{"a": 1}, {"a": 2}], name="train").fingerprint()
    assert first == rows_table([{"a": 1}, {"a": 2}], name="train").fingerprint()
    assert first != rows_table([{"a": 1}, {"a": 3}], name="train").fingerprint()
    assert first["rows"] == 2
