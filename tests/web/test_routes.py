"""The endpoints: what is not there, what is hostile, and what a page is served."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from electra.web.models import Served
from electra.web.requests import Limits, RequestError
from electra.web.routes import PAGE, build_app, json_response

JSON = {"Content-Type": "application/json"}
KINDS = ("tokens", "predict", "table")
quick = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["text", "text_pair", "tokens", "context", "question", "options", "x"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/api/models/99/curves", 404),
        ("POST", "/api/models/99/tokens", 404),
        ("POST", "/api/models/x/tokens", 404),
        ("GET", f"/api/models/{'9' * 5000}/curves", 404),
        ("GET", "/api/models/00/curves", 404),
        ("POST", "/api/models/-1/tokens", 404),
        ("GET", "/api/models/0/tokens", 405),
        ("POST", "/api/models", 405),
        ("GET", "/page/..%2froutes.py", 404),
        ("GET", "/page/%2e%2e/routes.py", 404),
        ("GET", "/page/nothing.js", 404),
        ("POST", "/api/models/0/predict", 422),
        ("POST", "/api/models/2/tokens", 422),
        ("POST", "/api/models/0/table", 422),
    ],
)
def test_what_is_not_there_is_refused_in_json(
    client: TestClient, method: str, path: str, status: int
) -> None:
    answer = client.request(method, path)
    assert answer.status_code == status
    assert answer.json()["error"].endswith(".")


def test_the_health_of_the_server_counts_what_waits(client: TestClient) -> None:
    assert client.get("/api/health").json() == {"status": "ok", "queued": 0}


def test_the_files_of_the_page_are_served(client: TestClient) -> None:
    for path in PAGE.iterdir():
        answer = client.get(f"/page/{path.name}")
        assert answer.status_code == 200
        assert answer.content == path.read_bytes()
        assert answer.headers["content-type"].startswith(("text/", "image/"))


def is_refusal_or_answer(answer: Any) -> None:
    assert answer.status_code < 500, answer.text
    if answer.status_code != 200:
        message = answer.json()["error"]
        assert "Traceback" not in message
        assert "/tmp" not in message
        assert "site-packages" not in message


@quick
@given(body=st.binary(max_size=200), model=st.integers(0, 7), kind=st.sampled_from(KINDS))
def test_no_bytes_bring_the_server_down(
    client: TestClient, body: bytes, model: int, kind: str
) -> None:
    headers = JSON
    if kind == "table":
        headers = {"Content-Type": "text/csv"}
    path = f"/api/models/{model}/{kind}"
    is_refusal_or_answer(client.post(path, content=body, headers=headers))


@quick
@given(
    values=st.lists(st.text(st.characters(max_codepoint=255), max_size=12), min_size=4, max_size=4)
)
def test_no_header_brings_the_server_down(client: TestClient, values: list[str]) -> None:
    names = ("Host", "Origin", "Authorization", "Content-Type")
    encoded = [value.encode("latin-1") for value in values]
    headers = [(name.encode(), value) for name, value in zip(names, encoded, strict=True)]
    answer = client.post("/api/models/0/tokens", content=b"{}", headers=headers)  # type: ignore[arg-type]
    assert answer.status_code in (400, 403, 415)


@quick
@given(inputs=st.lists(values, max_size=3), model=st.integers(2, 7))
def test_no_json_brings_a_model_down(client: TestClient, inputs: Any, model: int) -> None:
    body = json.dumps({"inputs": inputs})
    path = f"/api/models/{model}/predict"
    is_refusal_or_answer(client.post(path, content=body, headers=JSON))


@quick
@given(
    text=st.text(st.characters(exclude_categories=[]), max_size=60),
    hidden=st.lists(st.integers(0, 8), max_size=3),
)
def test_no_text_brings_the_networks_down(client: TestClient, text: str, hidden: list[int]) -> None:
    body = json.dumps({"text": text, "hidden": hidden})
    answer = client.post("/api/models/0/tokens", content=body, headers=JSON)
    is_refusal_or_answer(answer)
    if answer.status_code == 200:
        units = text.encode("utf-16-le")
        for word in answer.json()["words"]:
            part = units[2 * word["start"] : 2 * word["end"]].decode("utf-16-le")
            assert part == word["text"]


@quick
@given(rows=st.lists(values, max_size=3), model=st.integers(2, 7), query=st.text(max_size=3))
def test_no_json_lines_bring_a_model_down(
    client: TestClient, rows: list[Any], model: int, query: str
) -> None:
    content = "\n".join(map(json.dumps, rows))
    headers = {"Content-Type": "application/jsonl"}
    path, params = f"/api/models/{model}/table", {"text": query}
    if model != 2:
        params = {}
    is_refusal_or_answer(client.post(path, content=content, headers=headers, params=params))


@quick
@given(rows=st.lists(st.text(max_size=30), max_size=4), model=st.integers(2, 7))
def test_no_table_brings_a_model_down(client: TestClient, rows: list[str], model: int) -> None:
    header = {
        2: "text",
        3: "a,b",
        4: "question,context",
        5: "tokens",
        6: "context,options",
        7: "text",
    }
    content = "\n".join([header[model], *rows]).encode(errors="replace")
    path = f"/api/models/{model}/table"
    is_refusal_or_answer(client.post(path, content=content, headers={"Content-Type": "text/csv"}))


def test_numbers_that_are_not_finite_are_a_refusal() -> None:
    with pytest.raises(RequestError) as refused:
        json_response({"score": float("nan")})
    assert refused.value.status == 422


def test_an_error_of_the_server_tells_nothing_of_it(
    served: list[Served], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise OSError("/secret/path")

    monkeypatch.setattr(served[0], "describe", fail)
    client = TestClient(build_app(served, limits=Limits()), base_url="http://localhost")
    answer = client.get("/api/models")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "/secret/path" in capsys.readouterr().err


def test_a_client_that_goes_away_takes_its_request_along(served: list[Served]) -> None:
    """The worker of this model is held by a request, so that another one waits in its queue."""
    worker = served[2].worker
    app = build_app(served, limits=Limits())
    body = json.dumps({"inputs": ["the dog"]}).encode()
    messages = [{"type": "http.request", "body": body}, {"type": "http.disconnect"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/api/models/2/predict"}
    scope |= {"headers": headers, "query_string": b"", "client": ("127.0.0.1", 1)}  # type: ignore[dict-item]
    with worker.changed:  # the thread cannot take a batch meanwhile

        async def run() -> None:
            task = asyncio.ensure_future(app(scope, receive, send))
            await task

        asyncio.run(run())
        assert len(worker.jobs) == 1
        assert worker.jobs[0].future.cancelled()
    assert sent[0]["status"] == 400
