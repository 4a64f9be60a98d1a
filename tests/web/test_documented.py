"""The examples of docs/serve.md: every request is sent, and every answer has the keys shown."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from electra.web.requests import Limits

DOCUMENT = (Path(__file__).parents[2] / "docs" / "serve.md").read_text(encoding="utf8")
EXAMPLES = re.findall(r"```bash\n(curl [^`]*)```\n\n```json\n([^`]*)```", DOCUMENT)
KINDS = re.findall(r"^\| `([\w-]+)` \| (.*?) \| `(.*?)` \|$", DOCUMENT, re.MULTILINE)
NAMES = {
    "classify": "classes",
    "multi-label": "labels",
    "score": "scores",
    "tag": "tags",
    "span": "spans",
    "choose": "choices",
}


def shape(value: Any) -> Any:
    """The keys and types of a JSON value; of an array, those of its first item."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value[:1]]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return "number"
    return type(value).__name__


def test_the_document_has_its_examples() -> None:
    assert len(EXAMPLES) == 4
    assert [kind for kind, _, _ in KINDS] == list(NAMES)


@pytest.mark.parametrize(("command", "answer"), EXAMPLES)
def test_an_example_is_answered_as_shown(
    client: TestClient, api: dict[str, str], command: str, answer: str
) -> None:
    _, url, *options = shlex.split(command.replace("\\\n", " "))
    path = url.removeprefix("http://localhost:8000").replace("after=120", "after=0")
    path = path.replace("/api/models/1/", f"{api['classes']}/")
    body = None
    if "-d" in options:
        body = json.loads(options[options.index("-d") + 1])
    answered = client.request("POST" if body else "GET", path, json=body)
    assert answered.status_code == 200, answered.text
    found, shown = answered.json(), json.loads(answer)
    if "tokens" in found:
        found["tokens"] = [token for token in found["tokens"] if token["hidden"]]
    if "series" in found:
        found["series"] = [each for each in found["series"] if each["group"] == "auc"]
    if "models" in found:
        found["models"] = [found["models"][0] | {"labels": []}]
    assert shape(found) == shape(shown)


@pytest.mark.parametrize(("kind", "inputs", "answer"), KINDS)
def test_every_kind_of_model_answers_as_shown(
    client: TestClient, api: dict[str, str], kind: str, inputs: str, answer: str
) -> None:
    given = [json.loads(text) for text in re.findall(r"`(.*?)`", inputs)]
    answered = client.post(f"{api[NAMES[kind]]}/predict", json={"inputs": given})
    assert answered.status_code == 200, answered.text
    for found in answered.json()["answers"]:
        expected = shape(json.loads(answer))
        if not found.get("entities", True):
            expected["entities"] = []
        if found.get("labels") == []:
            expected["labels"] = []
        assert shape(found) == expected


def test_the_limits_are_those_of_the_server() -> None:
    limits = Limits()
    text = " ".join(DOCUMENT.split())
    assert f"at most {limits.characters:,} characters, a request {limits.inputs} inputs" in text
    assert f"and {limits.body_bytes // 10**6} MB, a table {limits.table_bytes // 10**6} MB" in text
    assert f"and {limits.table_rows:,} rows" in text
    assert f"At most {limits.queued_requests:,} requests wait" in text
    assert f"for at most {limits.stop_seconds:.0f} s" in text
