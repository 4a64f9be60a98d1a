from __future__ import annotations

import bz2
import gzip
import json
import lzma
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from electra.config import UserError
from electra.data.tables import (
    Table,
    find_table,
    is_hub_name,
    parse_number,
    read_lines,
    read_rows,
    require_column,
    require_text,
)
from tests.wording import wording_of

wording = wording_of(__file__)

TWO_ROWS = [{"text": "the river", "label": "1"}, {"text": "a stone", "label": "0"}]


def write(path: Path, content: str | bytes) -> Table:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return find_table(path)


def values(source: Table, **options: Any) -> list[dict[str, Any]]:
    return [row for _, row in read_rows(source, **options)]


def refuse(source: Table, match: str, **options: Any) -> None:
    with pytest.raises(UserError, match=match):
        list(read_rows(source, **options))


# ---- forms ---------------------------------------------------------------------------------------


def test_the_same_rows_come_from_every_form(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(TWO_ROWS), tmp_path / "a.parquet")
    assert values(write(tmp_path / "a.csv", "text,label\nthe river,1\na stone,0\n")) == TWO_ROWS
    assert values(write(tmp_path / "a.tsv", "text\tlabel\nthe river\t1\na stone\t0\n")) == TWO_ROWS
    assert values(write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, TWO_ROWS)))) == TWO_ROWS
    assert values(find_table(tmp_path / "a.parquet")) == TWO_ROWS


def test_a_csv_field_in_quotes_may_hold_commas_quotes_and_line_ends(tmp_path: Path) -> None:
    source = write(tmp_path / "a.csv", 'text,label\r\n"one, ""two""\nthree",1\r\nfour,0\r\n')
    assert list(read_rows(source)) == [
        (f"{source}:2", {"text": 'one, "two"\nthree', "label": "1"}),
        (f"{source}:4", {"text": "four", "label": "0"}),
    ]


def test_a_quote_in_a_tsv_is_a_character_like_any_other(tmp_path: Path) -> None:
    source = write(tmp_path / "a.tsv", 'text\tlabel\n"to be\t1\n" he said\t0\n')
    assert [row["text"] for row in values(source)] == ['"to be', '" he said']


def test_a_file_without_names_takes_those_it_is_given(tmp_path: Path) -> None:
    assert values(write(tmp_path / "a.tsv", "1\tthe river\n"), header=["label", "text"]) == [
        {"label": "1", "text": "the river"}
    ]


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    assert list(values(write(tmp_path / "a.csv", "\ufefftext,label\na,1\n"))[0]) == [
        "text",
        "label",
    ]


def test_a_byte_order_mark_where_files_were_joined_is_no_part_of_a_label(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "label,text\n1,a\n\ufeff1,b\n")
    assert [row["label"] for row in values(path)] == ["1", "1"]


def test_blank_lines_are_no_rows_and_empty_fields_are(tmp_path: Path) -> None:
    assert values(write(tmp_path / "a.csv", "\ntext,label\n\na,1\n\n,\n")) == [
        {"text": "a", "label": "1"},
        {"text": "", "label": ""},
    ]


@pytest.mark.parametrize(
    ("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress)]
)
def test_a_compressed_file_reads_like_a_plain_one(
    tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes]
) -> None:
    source = write(tmp_path / f"a.csv{suffix}", compress(b"text,label\nthe river,1\na stone,0\n"))
    assert values(source) == TWO_ROWS


def test_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    assert values(write(tmp_path / "a.csv", "")) == values(write(tmp_path / "a.jsonl", "")) == []


# ---- what is wrong with a file -------------------------------------------------------------------


def test_a_ragged_line_is_named_with_the_columns_expected(tmp_path: Path) -> None:
    refuse(
        write(tmp_path / "a.csv", "text,label\na,1\nb,c,0\n"),
        r"a\.csv:3: 3 fields where 2 columns are expected \(text, label\).*quote what holds a "
        r"comma",
    )


def test_ragged_lines_are_left_out_only_for_a_caller_who_counts_them(tmp_path: Path) -> None:
    counted: list[str] = []
    source = write(tmp_path / "a.tsv", "text\tlabel\na\t1\nb\nc\t0\n")
    assert [row["text"] for row in values(source, ragged=counted.append)] == ["a", "c"]
    assert counted == [f"{source}:3: 1 fields where 2 columns are expected (text, label)"]


def test_a_quote_that_never_closes_is_named_by_the_line_where_its_row_begins(
    tmp_path: Path,
) -> None:
    refuse(
        write(tmp_path / "a.csv", 'text,label\na,1\n"b,0\nc,1\n'),
        r"a\.csv:3: not valid CSV: close the quote",
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"text,label\ra,1\rb,0\r", r"a\.csv:1: .*CR alone, so convert it: tr"),
        (b'text,label\n"a" b,1\n', r"a\.csv:2: .*write a quote inside a quoted field twice"),
        (gzip.compress(b"text,label\na,1\n"), r"a\.csv: not text but compressed by gzip; .*\.gz"),
        (b"PK\x03\x04\x14\0\x06\0", r"a\.csv: not text but a \.zip or \.xlsx file"),
    ],
    ids=["CR", "quote", "gzip", "xlsx"],
)
def test_what_spreadsheets_and_archives_write_is_refused_with_the_remedy(
    content: bytes, message: str, tmp_path: Path
) -> None:
    refuse(write(tmp_path / "a.csv", content), message)


def test_a_column_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(
        UserError, match=r"no column 'lable'; did you mean label\?; columns here are"
    ):
        require_column(TWO_ROWS[0], "lable", "a:2")


def test_the_columns_are_listed_once_and_with_the_flag_that_names_another() -> None:
    with pytest.raises(
        UserError,
        match=wording("the_columns_are_listed_once_and_with_the_flag_that_names_another"),
    ):
        require_column(TWO_ROWS[0], "zzz", "a:2", flag="--text")


def test_a_column_named_twice_is_refused(tmp_path: Path) -> None:
    refuse(
        write(tmp_path / "a.csv", "text,text\na,b\n"),
        r"a\.csv:1: column 'text' is named more than once",
    )


def test_a_nul_byte_is_refused_by_line(tmp_path: Path) -> None:
    refuse(write(tmp_path / "a.csv", b"text,label\na\0,1\n"), r"a\.csv:2: a NUL byte")


def test_text_that_is_not_utf8_is_refused_by_line_and_byte(tmp_path: Path) -> None:
    refuse(
        write(tmp_path / "a.csv", b"text,label\ncaf\xe9,1\n"),
        r"a\.csv:2: byte 0xe9 at column 4 is not UTF-8; .*iconv",
    )


def test_a_json_line_that_is_no_object_is_refused_by_line(tmp_path: Path) -> None:
    refuse(
        write(tmp_path / "a.jsonl", '{"text": "a"}\n[1]\n'),
        r"a\.jsonl:2: expected one JSON object per line",
    )
    refuse(
        write(tmp_path / "a.jsonl", '{"text": "a"}\n{"text"\n'),
        r"a\.jsonl:2: not a JSON object on one line",
    )


@pytest.mark.parametrize(
    "value",
    [
        {"text": ["a good film", "bad"], "label": [1, 0]},
        {"text": {"0": "good", "1": "bad"}, "label": {"0": 1, "1": 0}},
        {"data": [{"text": "good", "label": 1}]},
    ],
)
def test_a_table_in_one_json_object_is_refused_with_the_form_that_is_read(
    tmp_path: Path, value: object
) -> None:
    way_out = r"a list of objects, or one object a line; in pandas: .*orient='records', lines=True"
    refuse(write(tmp_path / "a.json", json.dumps(value)), rf"a\.json:1: a whole table .*{way_out}")
    refuse(write(tmp_path / "b.json", json.dumps(value, indent=1)), "orient='records', lines=True")


@pytest.mark.parametrize(
    "row",
    [
        {"words": ["10 000", "euros"], "tags": ["O", "O"]},
        {"text": "a good film", "labels": ["bad", "not good at all"]},
        {"label": 1, "meta": {"0": "a"}},
        {},
    ],
)
def test_a_row_of_lists_is_no_table(tmp_path: Path, row: object) -> None:
    assert values(write(tmp_path / "a.json", json.dumps(row))) == [row]


def test_a_row_of_lists_with_a_long_text_is_no_table_where_another_row_follows(
    tmp_path: Path,
) -> None:
    rows = [
        {"words": ["the old dog", "saw"], "tags": ["B-X", "O"]},
        {"words": ["a", "cat"], "tags": ["O", "B-X"]},
        {"words": ["it", "ran"], "tags": ["O", "O"]},
    ]
    assert values(write(tmp_path / "a.json", "\n".join(map(json.dumps, rows)))) == rows


def test_damaged_files_say_so(tmp_path: Path) -> None:
    refuse(
        write(tmp_path / "a.parquet", b"no parquet"),
        r"a\.parquet: damaged, cut short, or not a \.parquet file",
    )
    refuse(
        write(tmp_path / "a.csv.gz", gzip.compress(b"text,label\na,1\n" * 99)[:40]),
        r"damaged, cut short",
    )


def test_a_file_of_another_kind_is_refused_with_the_kinds_that_can_be_read(tmp_path: Path) -> None:
    with pytest.raises(
        UserError,
        match=wording("a_file_of_another_kind_is_refused_with_the_kinds_that_can_be_read"),
    ):
        read_rows(write(tmp_path / "a.xlsx", "x"))


def test_a_folder_and_a_missing_file_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "train.csv").touch()
    with pytest.raises(
        UserError, match=wording("a_folder_and_a_missing_file_are_refused_before_anything_is_read")
    ):
        find_table(tmp_path)
    with pytest.raises(
        UserError,
        match=wording("a_folder_and_a_missing_file_are_refused_before_anything_is_read_2"),
    ):
        find_table(tmp_path / "dev.csv")


# ---- values --------------------------------------------------------------------------------------


def test_text_must_be_text_that_can_be_written_again() -> None:
    with pytest.raises(UserError, match=wording("text_must_be_text_that_can_be_written_again")):
        require_text({"text": 3}, "text", "a:1")
    with pytest.raises(UserError, match=wording("text_must_be_text_that_can_be_written_again_2")):
        require_text({"text": "\ud800"}, "text", "a:1")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3.0),
        (2.5, 2.5),
        (" -1.50 ", -1.5),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("0", 0.0),
        (True, None),
        (None, None),
        ("", None),
        ("one", None),
        ("1_000", None),
        ("nan", None),
        ("inf", None),
        (float("nan"), None),
        (float("inf"), None),
        ("1e999", None),
        (10**400, None),
    ],
    ids=lambda value: repr(value)[:12],
)
def test_a_number_is_finite_or_none(value: object, expected: float | None) -> None:
    assert parse_number(value) == expected


def test_a_long_run_of_digits_is_refused_as_a_number_at_once() -> None:
    start = time.perf_counter()
    assert parse_number("1" * 200_000 + "x") is None
    assert time.perf_counter() - start < 1


def test_lines_come_without_their_ends_and_with_their_places(tmp_path: Path) -> None:
    source = write(tmp_path / "a.txt", "one\r\n\ntwo")
    assert list(read_lines(source)) == [
        (f"{source}:1", "one"),
        (f"{source}:2", ""),
        (f"{source}:3", "two"),
    ]


# ---- the hub -------------------------------------------------------------------------------------


class Streamed(list[dict[str, Any]]):
    """What datasets.load_dataset(streaming=True) gives, as far as we look."""

    features: dict[str, Any] | None = None


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What was asked of the hub, which holds four rows with classes by number."""
    import datasets
    import huggingface_hub

    class Answer:
        sha = "abc"

    asked: dict[str, Any] = {}

    def load(*names: object, **options: object) -> Streamed:
        asked.update(options, names=names)
        dataset = Streamed(
            [{"text": "a", "label": 1, "tags": [0, 1]}, {"text": "b", "label": -1, "tags": []}]
        )
        classes = datasets.ClassLabel(names=["no", "yes"])
        dataset.features = {
            "text": datasets.Value("string"),
            "label": classes,
            "tags": datasets.List(classes),
        }
        return dataset

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda *_, **__: Answer)
    monkeypatch.setattr(datasets, "load_dataset", load)
    return asked


def test_rows_from_the_hub_carry_the_names_of_their_classes_and_none_for_a_secret_one(
    hub: dict[str, Any],
) -> None:
    rows = list(read_rows(find_table("owner/name:small", split="validation")))
    assert rows == [
        (
            "owner/name:small/validation, row 1",
            {"text": "a", "label": "yes", "tags": ["no", "yes"]},
        ),
        ("owner/name:small/validation, row 2", {"text": "b", "label": None, "tags": []}),
    ]
    assert hub == {
        "names": ("owner/name", "small"),
        "split": "validation",
        "revision": "abc",
        "streaming": True,
    }


def test_a_failure_of_the_hub_is_a_message_and_no_traceback(
    hub: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("no route\nand much more")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    refuse(
        find_table("owner/name", split="train"),
        r"owner/name/train: cannot be read from the hub \(no route\); fetch its",
    )


def test_what_lies_on_this_disk_is_no_hub_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_hub_name("owner/name")
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert not is_hub_name("owner/name")
