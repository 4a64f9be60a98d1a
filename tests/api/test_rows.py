"""Rows of a Python program as tables."""

from __future__ import annotations

import numpy as np
import pytest

from electra.api.rows import as_items, find_tables, rows_table
from electra.config import UserError
from electra.data.tables import read_rows
from tests.wording import wording_of

wording = wording_of(__file__)


class Frame:
    """A DataFrame as pandas has it, where two columns may have one name."""

    columns = ("text", "label", "text")

    def to_dict(self, orient: str) -> list[dict[str, object]]:
        return [{"text": "b", "label": 1}]


class NAType:
    """pandas.NA, by its name."""


def test_values_of_numpy_and_pandas_become_pythons_own() -> None:
    (table,) = find_tables([{"a": np.int64(1), "b": np.array(["x"]), "c": NAType()}], name="train")
    assert list(read_rows(table)) == [("train, row 1", {"a": 1, "b": ["x"], "c": None})]
    assert type(next(read_rows(table))[1]["a"]) is int


def test_a_data_frame_with_two_columns_of_one_name_is_refused() -> None:
    with pytest.raises(UserError, match=wording("two_columns_of_one_name_are_refused")):
        find_tables(Frame(), name="train")


def test_a_string_is_never_read_by_characters() -> None:
    assert as_items("ab.csv", name="train") == ["ab.csv"]


def test_rows_are_identified_by_their_content() -> None:
    first = rows_table([{"a": 1}, {"a": 2}], name="train").fingerprint()
    assert first == rows_table([{"a": 1}, {"a": 2}], name="train").fingerprint()
    assert first != rows_table([{"a": 1}, {"a": 3}], name="train").fingerprint()
    assert first["rows"] == 2
