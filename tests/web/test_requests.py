"""Bodies and JSON: bounded, strict, and refused with a sentence."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from electra.config import UserError
from electra.web.requests import RequestError, as_request_error, parse_object, read_body


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[]", "this is an array"),
        (b"null", "this is null"),
        (b'"a"', "this is a string"),
        (b'{"temperature": NaN}', "NaN is no JSON number"),
        (b'{"temperature": -Infinity}', "-Infinity is no JSON number"),
        (b'{"text": "\\ud800"}', "half of a surrogate pair"),
        (b'{"a": ' + b"[" * 200 + b"]" * 200 + b"}", "nested more than 100 deep"),
        (b"[" * 200_000, "nested"),
        (b'{"inputs": ["a"], "inputs": []}', "the key 'inputs' is there more than once"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "a number has 5,000 digits"),
    ],
)
def test_what_is_no_plain_json_object_is_refused(body: bytes, part: str) -> None:
    with pytest.raises(RequestError) as refused:
        parse_object(body)
    assert refused.value.status == 400
    assert part in str(refused.value)


def test_the_name_of_a_file_keeps_its_spelling_at_the_start_of_a_message() -> None:
    assert str(as_request_error(UserError("table.csv:2: too long"))) == "table.csv:2: too long."
    assert str(as_request_error(UserError("label 3 is unknown"))) == "Label 3 is unknown."


def test_a_whole_surrogate_pair_and_a_nul_are_text(client: TestClient, api: dict[str, str]) -> None:
    content = '{"text": "\\ud83d\\ude00 the\\u0000 dog"}'
    headers = {"Content-Type": "application/json"}
    answer = client.post(f"{api['pair']}/tokens", content=content, headers=headers)
    assert answer.status_code == 200
    assert answer.json()["words"][0] == {"text": "😀", "start": 0, "end": 2}


def test_a_body_of_another_type_is_refused(client: TestClient, api: dict[str, str]) -> None:
    for content_type in ("text/plain", "", "application/x-www-form-urlencoded"):
        headers = {"Content-Type": content_type}
        answer = client.post(f"{api['pair']}/tokens", content='{"text": "a"}', headers=headers)
        assert answer.status_code == 415
        assert "application/json" in answer.json()["error"]


def test_a_chunked_body_without_an_end_is_refused() -> None:
    received = 0

    async def receive() -> Any:
        nonlocal received
        received += 1
        return {"type": "http.request", "body": b"abcd", "more_body": True}

    scope = {"type": "http", "method": "POST", "headers": []}
    with pytest.raises(RequestError) as refused:
        asyncio.run(read_body(Request(scope, receive), limit=10, seconds=1))
    assert refused.value.status == 413
    assert received == 11  # more than is kept, so that a client that ends reads the refusal


def test_a_declared_length_is_refused_before_the_body_is_read() -> None:
    async def receive() -> Any:
        raise AssertionError("the body was read")

    scope = {"type": "http", "method": "POST", "headers": [(b"content-length", b"41")]}
    with pytest.raises(RequestError) as refused:
        asyncio.run(read_body(Request(scope, receive), limit=10, seconds=1))
    assert refused.value.status == 413


def test_a_body_that_does_not_arrive_is_given_up() -> None:
    async def receive() -> Any:
        await asyncio.sleep(60)

    scope = {"type": "http", "method": "POST", "headers": []}
    with pytest.raises(RequestError) as refused:
        asyncio.run(read_body(Request(scope, receive), limit=10, seconds=0.01))
    assert refused.value.status == 408


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"text": None}, "'text' is null"),
        ({"text": ["a"]}, "'text' is an array"),
        ({"hidden": [True]}, "'hidden' must be"),
        ({"hidden": [-1]}, "'hidden' must be"),
        ({"hidden": [1.0]}, "'hidden' must be"),
        ({"hidden": "0"}, "'hidden' must be"),
        ({"hidden": [99]}, "word 99"),
        ({"seed": -1}, "'seed' must be"),
        ({"seed": 2**60}, "'seed' must be"),
        ({"seed": 1.0}, "'seed' must be"),
        ({"temperature": 0}, "'temperature' must be"),
        ({"temperature": "1"}, "'temperature' must be"),
        ({"temperature": True}, "'temperature' must be"),
        ({"temperature": 10**400}, "'temperature' must be"),
        ({"temprature": 1.0}, "did you mean temperature?"),
        ({"text": ""}, "no words"),
    ],
    ids=str,
)
def test_a_value_of_the_wrong_kind_is_refused_with_its_key(
    client: TestClient, api: dict[str, str], change: dict[str, Any], part: str
) -> None:
    body = json.dumps({"text": "the dog"} | change)
    headers = {"Content-Type": "application/json"}
    answer = client.post(f"{api['pair']}/tokens", content=body, headers=headers)
    assert answer.status_code == 400
    assert part in answer.json()["error"]
