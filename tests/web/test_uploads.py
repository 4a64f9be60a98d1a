"""Tables that are dropped on the page."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from electra.__main__ import main
from electra.web.models import Served
from electra.web.requests import Limits
from electra.web.routes import build_app

TABLE = "id,text,note\n1,the dog sat,=1+1\n2,a cat ran,<b>\n3,,é\n"
CSV = {"Content-Type": "text/csv"}


def test_a_table_comes_back_as_electra_predict_writes_it(
    client: TestClient, api: dict[str, str], folders: dict[str, Path], tmp_path: Path
) -> None:
    answer = client.post(f"{api['classes']}/table", content=TABLE, headers=CSV)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert "attachment" in answer.headers["content-disposition"]
    (tmp_path / "in.csv").write_text(TABLE, encoding="utf8")
    folder, output = str(folders["classes"]), tmp_path / "out.csv"
    assert main(["predict", folder, str(tmp_path / "in.csv"), "--output", str(output)]) == 0
    expected = list(csv.DictReader(io.StringIO(output.read_text(encoding="utf8"))))
    found = list(csv.DictReader(io.StringIO(answer.text)))
    assert [list(row) for row in found] == [list(row) for row in expected]
    for row, same in zip(found, expected, strict=True):
        assert (row["text"], row["note"], row["label"]) == (
            same["text"],
            same["note"],
            same["label"],
        )
        assert float(row["probability"]) == pytest.approx(float(same["probability"]), abs=1e-6)


def test_more_rows_than_a_chunk_stay_in_order(client: TestClient, api: dict[str, str]) -> None:
    rows = "".join(f"{number},{'dog ' * (number % 9)}cat\n" for number in range(75))
    answer = client.post(f"{api['classes']}/table", content="id,text\n" + rows, headers=CSV)
    found = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["id"] for row in found] == [str(number) for number in range(75)]
    assert found[1]["probability"] == found[10]["probability"]


@pytest.mark.parametrize(
    ("name", "content_type", "content", "column"),
    [
        ("classes", "text/tab-separated-values", "text\tx\nthe dog\t1\n", "label"),
        ("classes", "application/jsonl", '{"text": "the dog"}\n', "label"),
        ("scores", "text/csv", "a,b\nthe dog,a cat\n", "score"),
        ("tags", "text/csv; charset=utf-8", "tokens\nanna lives in paris\n", "tags"),
        ("spans", "text/csv", "question,context\nwho ran,the dog ran\n", "answer"),
        ("choices", "application/jsonl", '{"context": "a", "options": ["b", "c", "d"]}', "choice"),
    ],
)
def test_every_kind_of_model_answers_a_table(
    client: TestClient,
    api: dict[str, str],
    name: str,
    content_type: str,
    content: str,
    column: str,
) -> None:
    headers = {"Content-Type": content_type}
    answer = client.post(f"{api[name]}/table", content=content, headers=headers)
    assert answer.status_code == 200, answer.text
    (row,) = csv.DictReader(io.StringIO(answer.text))
    assert row[column]


def test_a_query_names_the_columns(client: TestClient, api: dict[str, str]) -> None:
    content = "said\nthe dog\n"
    refused = client.post(f"{api['classes']}/table", content=content, headers=CSV)
    assert refused.status_code == 400
    assert "with the parameter text" in refused.json()["error"]
    named = client.post(f"{api['classes']}/table?text=said", content=content, headers=CSV)
    assert named.status_code == 200
    unknown = client.post(f"{api['classes']}/table?labels=x", content=content, headers=CSV)
    assert unknown.status_code == 400
    assert "'labels'" in unknown.json()["error"]


@pytest.mark.parametrize(
    ("content", "status", "part"),
    [
        (b"", 400, ""),
        (b"text\n", 400, "no rows"),
        (b"\x00\xff\xfe", 400, ""),
        (b'text\n"unclosed', 400, ""),
        (b"PK\x03\x04" + bytes(range(256)) * 4, 400, ""),
        (b"text,label\na,b,c,d\n", 400, ""),
        (b"text\n" + b"a" * 30_000, 413, "shorten it"),
        (b"text\n" + b"a\n" * 10_001, 413, "more than 10,000 rows"),
        (b"text\n" + b"a" * 5_000_001, 413, "longer than 5,000,000 bytes"),
    ],
    ids=["empty", "header", "nul", "quote", "zip", "ragged", "cell", "rows", "bytes"],
)
def test_a_broken_or_too_long_table_is_refused_without_a_path(
    client: TestClient, api: dict[str, str], content: bytes, status: int, part: str
) -> None:
    answer = client.post(f"{api['classes']}/table", content=content, headers=CSV)
    assert answer.status_code == status, answer.text
    assert part in answer.json()["error"]
    assert "/tmp" not in answer.text
    assert "upload." not in answer.text


def test_another_type_of_file_is_refused(client: TestClient, api: dict[str, str]) -> None:
    headers = {"Content-Type": "application/octet-stream"}
    answer = client.post(f"{api['classes']}/table", content=b"a", headers=headers)
    assert answer.status_code == 415
    assert "text/csv" in answer.json()["error"]


def test_too_many_tables_at_a_time_are_refused(served: list[Served]) -> None:
    app = build_app(served, limits=Limits(tables=0))
    client = TestClient(app, base_url="http://localhost")
    answer = client.post("/api/models/2/table", content=TABLE, headers=CSV)
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "5"
