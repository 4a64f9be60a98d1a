"""The delimiter and the header line of a table are detected from its first lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from electra.config import UserError
from electra.data.table_layout import has_columns
from electra.data.tables import Table, find_column, find_table, require_column
from tests.data.test_tables import values, write

NUMBERED = ["0", "1"]
ROWS = [{"label": "1", "text": "bad, really"}, {"label": "0", "text": "fine"}]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "label;text\n1;bad, really\n0;fine\n"),
        ("a.csv", "label\ttext\n1\tbad, really\n0\tfine\n"),
        ("a.tsv", 'label,text\n1,"bad, really"\n0,fine\n'),
        ("a.txt", "label\ttext\n1\tbad, really\n0\tfine\n"),
        ("a.data", "label|text\n1|bad, really\n0|fine\n"),
        ("a.json", '[{"label": "1", "text": "bad, really"}, {"label": "0", "text": "fine"}]'),
        ("a.json", '{"label": "1", "text": "bad, really"}\n{"label": "0", "text": "fine"}\n'),
    ],
)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["", "byte-order mark"])
def test_rows_come_from_any_delimiter_and_json_with_or_without_a_byte_order_mark(
    tmp_path: Path, name: str, content: str, mark: bytes
) -> None:
    assert values(write(tmp_path / name, mark + content.encode())) == ROWS


@pytest.mark.parametrize(
    ("delimiter", "between"),
    [("tab", "\t"), (r"\t", "\t"), ("semicolon", ";"), ("::", "::"), ("space", " "), ("^", "^")],
)
def test_a_delimiter_may_be_named(tmp_path: Path, delimiter: str, between: str) -> None:
    content = f"label{between}text\n1{between}how nice\n"
    write(tmp_path / "a.txt", content)
    table = Table(find_table(tmp_path / "a.txt").source, "text", delimiter=delimiter)
    assert values(table) == [{"label": "1", "text": "how nice"}]


@pytest.mark.parametrize("mark", ["sep=;", '"sep=;"', "SEP=;"])
@pytest.mark.parametrize("name", ["a.csv", "a.txt"])
def test_the_separator_line_of_excel_names_the_delimiter_and_is_no_row(
    tmp_path: Path, name: str, mark: str
) -> None:
    found = write(tmp_path / name, f"{mark}\nlabel;text\n1;bad, really\n0;fine\n")
    assert values(found) == ROWS
    assert has_columns(found.source, ["text"])
    write(tmp_path / name, f"{mark}\nlabel;text\n1;bad; really\n")
    with pytest.raises(UserError, match=rf"{name}:3: 3 fields"):
        values(found)


def test_the_delimiter_of_the_header_wins_over_a_row_that_should_have_been_quoted(
    tmp_path: Path,
) -> None:
    content = "label;text\n1;bad; really\n0;fine\n0;well, fine\n"
    message = r"a\.csv:2: 3 fields where 2 columns are expected \(label, text\).*a semicolon"
    with pytest.raises(UserError, match=message):
        values(write(tmp_path / "a.csv", content))
    prose = write(tmp_path / "b.csv", "text\nfine; really\nso; it; is\nwell\n")
    assert len(values(prose)) == 3
    with pytest.raises(UserError, match=r"c\.csv:1: not valid CSV"):
        values(write(tmp_path / "c.csv", '"label"x;text\n1;fine\n'))


def test_blanks_around_the_names_of_columns_are_no_part_of_them(tmp_path: Path) -> None:
    assert values(write(tmp_path / "a.csv", "label , text\n1,fine\n")) == [
        {"label": "1", "text": "fine"}
    ]
    assert values(write(tmp_path / "b.csv", "text, text\n1,2\n")) == [{"text": "1", " text": "2"}]


def test_tsv_with_quoted_cells_is_warned_of_and_tsv_with_quotes_in_the_text_is_not(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    quoted = 'text\tlabel\n"she said ""no"""\ta\n'
    for text in (quoted + '"so" he said\ta\n', 'text\tlabel\n"all of it"\ta\n'):
        values(write(tmp_path / "a.tsv", text))
    assert not recwarn.list
    with pytest.warns(UserWarning, match=r'a\.tsv: cells such as "she .* look quoted.*file \.csv'):
        values(write(tmp_path / "a.tsv", quoted))
    assert values(write(tmp_path / "a.csv", quoted))[0]["text"] == 'she said "no"'


def test_text_that_no_delimiter_separates_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.txt: no delimiter.*--delimiter tab"):
        values(write(tmp_path / "a.txt", "one text\nanother, longer text\n"))


@pytest.mark.parametrize(
    "content",
    [
        "1,good film\n0,bad film\n",
        "pos,good\nneg,bad\npos,nice\n",
        f"pos,{'a long text ' * 5}\nneg,bad\n",
    ],
    ids=["a number", "a label that comes again", "a long text"],
)
def test_a_first_line_that_is_data_is_a_row_where_columns_are_asked_for_by_number(
    tmp_path: Path, content: str
) -> None:
    found = values(write(tmp_path / "a.csv", content), columns=NUMBERED)
    assert [list(row.values()) for row in found] == [
        line.split(",") for line in content.splitlines()
    ]
    assert list(found[0]) == NUMBERED


def test_a_header_line_is_none_of_the_rows_though_columns_are_numbers(tmp_path: Path) -> None:
    source = write(tmp_path / "a.csv", "label,text\n1,bad\n0,fine\n")
    with pytest.warns(UserWarning, match=r"read as a header line \(label, text\); --no-header"):
        (first, _) = values(source, columns=NUMBERED)
    assert first == {"label": "1", "text": "bad"}
    assert (find_column(first, "1"), find_column(first, "2")) == ("text", "2")
    unnamed = write(tmp_path / "b.csv", "0,1\npos,good\n")  # as pandas names columns without names
    assert values(unnamed, columns=NUMBERED) == [{"0": "pos", "1": "good"}]


@pytest.mark.parametrize(("header", "count"), [(True, 1), (False, 2)])
def test_the_user_may_say_whether_there_is_a_header_line(
    tmp_path: Path, header: bool, count: int
) -> None:
    write(tmp_path / "a.csv", "1,good\n0,bad\n")
    table = Table(find_table(tmp_path / "a.csv").source, "csv", header=header)
    assert len(values(table, columns=["text"])) == count


@pytest.mark.parametrize(
    "row", [{"1": "0", "good film": "bad film"}, {"good": "bad", "a film to see": "a film to miss"}]
)
def test_a_column_missing_from_names_that_look_like_data_is_refused_with_the_remedy(
    row: dict[str, str],
) -> None:
    with pytest.raises(UserError, match=r"no header line, say --no-header .* --text 1 --label 0$"):
        require_column(row, "text", "a.csv:2", flag="--text", may_be_number=True)


def test_a_label_before_the_first_space_is_found_as_trec_and_fasttext_write_it(
    tmp_path: Path,
) -> None:
    trec = write(tmp_path / "a.label", "DESC:manner How did it go ?\nENTY:cremat What film ?\n")
    assert values(trec)[0] == {"label": "DESC:manner", "text": "How did it go ?"}
    fasttext = write(tmp_path / "a.txt", "__label__a one text\n__label__b another\n")
    assert values(fasttext)[1] == {"label": "__label__b", "text": "another"}
