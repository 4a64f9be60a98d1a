"""Who may ask: names of the machine, pages of other sites, tokens, rates; and the headers."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from electra.web.guard import RateLimit
from electra.web.models import Served
from electra.web.requests import Limits, RequestError
from electra.web.routes import build_app

TOKEN = "a-token-of-many-characters"
BODY = {"text": "the dog"}


@pytest.fixture
def remote(served: list[Served]) -> TestClient:
    """A server that needs a token."""
    app = build_app(served, limits=Limits(), token=TOKEN)
    return TestClient(app, base_url="http://machine.example:8000")


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:9", "127.0.0.1:8000", "127.1.2.3", "[::1]:8000", "LOCALHOST"]
)
def test_the_names_of_this_machine_are_answered(client: TestClient, host: str) -> None:
    assert client.get("/api/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "192.168.0.2", "", "[::1", "127.0.0.1@x"]
)
@pytest.mark.parametrize("path", ["/", "/api/models", "/page/app.js"])
def test_a_name_that_was_bound_to_this_machine_is_refused(
    client: TestClient, host: str, path: str
) -> None:
    answer = client.get(path, headers={"Host": host})
    assert answer.status_code == 403
    assert "http://localhost" in answer.json()["error"]


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:8000", 200),
        ("http://LOCALHOST:8000", 200),
        ("https://evil.example", 403),
        ("http://localhost:9999", 403),
        ("null", 403),
        ("file://localhost:8000", 403),
        ("http://[", 403),
    ],
)
def test_a_page_of_another_site_cannot_post(
    client: TestClient, api: dict[str, str], origin: str, status: int
) -> None:
    headers = {"Origin": origin}
    answer = client.post(f"{api['pair']}/tokens", json=BODY, headers=headers)
    assert answer.status_code == status


def test_no_other_site_may_read_an_answer(client: TestClient) -> None:
    answer = client.options("/api/models", headers={"Origin": "http://evil.example"})
    assert answer.status_code == 403
    answer = client.get("/api/models", headers={"Origin": "http://evil.example"})
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("path", ["/api/models", "/api/health", "/nowhere"])
def test_every_answer_has_the_security_headers(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    assert headers["content-security-policy"].startswith("default-src 'self';")
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "authorization", ["", "Bearer", "Bearer wrong", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}é"]
)
def test_without_the_token_nothing_of_a_model_is_told(
    remote: TestClient, authorization: str
) -> None:
    headers = {"Authorization": authorization.encode("latin-1")}
    for method, path in (("GET", "/api/models"), ("POST", "/api/models/0/tokens")):
        answer = remote.request(method, path, headers=headers)  # type: ignore[arg-type]
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert TOKEN not in answer.text


def test_with_the_token_any_name_of_the_machine_is_answered(remote: TestClient) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert remote.get("/api/models", headers=headers).status_code == 200
    answer = remote.post("/api/models/0/tokens", json=BODY, headers=headers)
    assert answer.status_code == 200
    foreign = headers | {"Origin": "https://evil.example"}
    answer = remote.post("/api/models/0/tokens", json=BODY, headers=foreign)
    assert answer.status_code == 403


def test_the_page_and_the_health_of_a_server_need_no_token(remote: TestClient) -> None:
    assert remote.get("/api/health").status_code == 200
    assert remote.get("/").status_code in (200, 404)  # the page asks for the token itself


def test_a_client_that_asks_too_often_is_told_when_to_come_back(served: list[Served]) -> None:
    app = build_app(served, limits=Limits(), rate=1)
    client = TestClient(app, base_url="http://localhost")
    answers = [client.get("/api/health") for _ in range(12)]
    assert [answer.status_code for answer in answers[:4]] == [200] * 4
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert int(refused.headers["retry-after"]) >= 1
    assert "requests a second" in refused.json()["error"]


def test_a_client_is_answered_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("electra.web.guard.time.monotonic", lambda: now)
    limit = RateLimit(2, burst_seconds=1)
    limit.check("a")
    limit.check("a")
    with pytest.raises(RequestError):
        limit.check("a")
    limit.check("b")
    now = 0.6
    limit.check("a")


def test_the_clients_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("electra.web.guard.MAX_CLIENTS", 3)
    limit = RateLimit(1)
    for client in "abcdef":
        limit.check(client)
    assert list(limit.clients) == ["d", "e", "f"]
