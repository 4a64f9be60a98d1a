"""The process: its socket, its token, 200 clients at a time, and a clean stop."""

from __future__ import annotations

import asyncio
import csv
import io
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from electra.__main__ import main
from electra.config import UserError
from electra.web.models import Served
from electra.web.requests import Limits
from electra.web.server import TOKEN, address, bind, choose_token
from electra.web.tokens import TokensRequest
from tests.wording import wording_of

wording = wording_of(__file__)
CLIENTS = 200


def test_a_busy_port_is_refused_before_models_are_loaded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with bind("127.0.0.1", 0) as busy:
        port = busy.getsockname()[1]
        assert main(["serve", "/no/such/model", "--port", str(port)]) == 2
    assert re.search(wording("busy"), capsys.readouterr().err)


@pytest.mark.parametrize(
    ("argv", "key"),
    [
        ([], "no_model"),
        (["/no/such/model", "--port", "0"], "no_folder"),
        (["x", "--port", "70000"], "port"),
        (["x", "--host", "a" * 70], "host"),
        (["x", "--host", "192.0.2.1"], "address"),
        (["x", "--rate-limit", "-1"], "rate"),
    ],
)
def test_a_server_that_cannot_start_says_why(
    argv: list[str], key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *argv]) == 2
    assert re.search(wording(key), capsys.readouterr().err)


def test_what_is_missing_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("electra.cli.serve.find_spec", lambda name: None)
    assert main(["serve", "x"]) == 2
    assert "pip install starlette uvicorn" in capsys.readouterr().err


def test_loopback_needs_no_token_and_every_other_host_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    assert [choose_token(host) for host in ("127.0.0.1", "localhost", "::1")] == [None] * 3
    for host in ("0.0.0.0", "192.168.0.1", "::", "machine", "127.0.0.1.evil.example"):
        token = choose_token(host)
        assert token is not None
        assert len(token) >= 32
    assert choose_token("0.0.0.0") != choose_token("0.0.0.0")


def test_a_token_of_the_environment_is_taken_also_on_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(TOKEN, "0123456789abcdef")
    assert choose_token("127.0.0.1") == "0123456789abcdef"
    monkeypatch.setenv(TOKEN, "short")
    with pytest.raises(UserError, match="at least 16"):
        choose_token("127.0.0.1")


def test_the_address_to_open_holds_the_token() -> None:
    with bind("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
        assert address(bound, "127.0.0.1", None) == f"http://127.0.0.1:{port}/"
        named = f"http://{socket.gethostname()}:{port}/?token=abc"
        assert address(bound, "0.0.0.0", "abc") == named
        assert address(bound, "::1", None) == f"http://[::1]:{port}/"


# ---- a real server -------------------------------------------------------------------------------


@contextmanager
def running(*models: Path, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, and its address."""
    argv = [sys.executable, "-m", "electra", "serve", *map(str, models), "--port", "0"]
    process = subprocess.Popen(
        argv,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
    )
    try:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        opened = (re.search(r"open (http://\S+:\d+)", line) for line in lines)
        match = next(filter(None, opened), None)
        assert match is not None
        yield process, match[1]
    finally:
        process.kill()
        process.wait()


def distinct_text(number: int) -> str:
    words = "dog cat mat home paris rome anna berg".split()
    return " ".join(words[number // 8**place % 8] for place in range(4)) + " ran" * (number % 5)


async def ask(client: httpx.AsyncClient, number: int) -> Mapping[str, Any]:
    """The answer to one client's own question: to the one model or to the other."""
    text = distinct_text(number)
    if number % 2:
        body: dict[str, Any] = {"text": text, "hidden": [1, 2], "seed": number}
        answer = await client.post("/api/models/0/tokens", json=body)
    else:
        given = {"text": text, "text_pair": str(number)}
        answer = await client.post("/api/models/1/predict", json={"inputs": [given]})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def check_answer(number: int, answer: Mapping[str, Any], served: list[Served]) -> None:
    """Compare an answer with that to the same question alone."""
    text = distinct_text(number)
    if number % 2:
        request = TokensRequest(text, (1, 2), seed=number, temperature=1.0)
        (expected,) = served[0].compute("tokens", [request])
        assert answer["filled"] == expected["filled"]
        for token, same in zip(answer["tokens"], expected["tokens"], strict=True):
            assert token["text"] == same["text"]
            assert token["replaced"] == pytest.approx(same["replaced"], abs=1e-6)
    else:
        answerer = served[3].answerer_for_inputs()
        inputs = [{"text": text, "text_pair": str(number)}]
        (given,) = answerer.parse({"inputs": inputs}, Limits())
        ((alone, notes),) = answerer.answer([given.example])
        expected = answerer.describe(given, alone, notes)
        assert answer["answers"][0]["score"] == pytest.approx(expected["score"], abs=1e-5)


@pytest.mark.slow
def test_200_clients_at_a_time_get_their_own_answers_each(
    folders: dict[str, Path], served: list[Served]
) -> None:
    async def ask_all(address: str) -> list[Mapping[str, Any]]:
        limits = httpx.Limits(max_connections=CLIENTS)
        async with httpx.AsyncClient(base_url=address, limits=limits, timeout=240) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(CLIENTS)))

    with running(folders["pair"], folders["scores"]) as (process, address):
        answers = asyncio.run(ask_all(address))
        health = httpx.get(f"{address}/api/health").json()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert len(answers) == CLIENTS
    assert health == {"status": "ok", "queued": 0}
    for number, answer in enumerate(answers):
        check_answer(number, answer, served)
    # The comparison tells most answers apart: they differ by more than its tolerance.
    scores = [round(answer["answers"][0]["score"], 4) for answer in answers[::2]]
    assert len(set(scores)) > 0.7 * len(scores)
    assert len({answer["filled"] for answer in answers[1::2]}) > 0.9 * len(scores)


@pytest.mark.slow
def test_a_server_that_is_stopped_finishes_what_it_has_begun(folders: dict[str, Path]) -> None:
    rows = "".join(f"{number},{distinct_text(number)}\n" for number in range(1200))

    async def send(client: httpx.AsyncClient) -> httpx.Response:
        headers = {"Content-Type": "text/csv"}
        path = "/api/models/0/table"
        return await client.post(path, content="id,text\n" + rows, headers=headers)

    async def stop_amid(address: str, process: subprocess.Popen[str]) -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=address, timeout=240) as client:
            tasks = [asyncio.ensure_future(send(client)) for _ in range(3)]
            while (await client.get("/api/health")).json()["queued"] < 3:
                await asyncio.sleep(0.01)
            process.terminate()
            return await asyncio.gather(*tasks)

    with running(folders["classes"]) as (process, address):
        answers = asyncio.run(stop_amid(address, process))
        assert process.wait(30) == 0
        assert process.stderr is not None
        assert process.stderr.read() == "stopped\n"
    for answer in answers:
        assert answer.status_code == 200, answer.text
        found = list(csv.DictReader(io.StringIO(answer.text)))
        assert [row["id"] for row in found] == [str(number) for number in range(1200)]


@pytest.mark.slow
def test_a_server_on_the_network_answers_those_with_its_token(folders: dict[str, Path]) -> None:
    token = "0123456789abcdef0123"
    with running(folders["pair"], **{TOKEN: token}) as (_, address):
        assert httpx.get(f"{address}/api/models").status_code == 401
        headers = {"Authorization": f"Bearer {token}", "Host": "machine.example"}
        assert httpx.get(f"{address}/api/models", headers=headers).status_code == 200

        def endless() -> Iterator[bytes]:  # no Content-Length: the body comes in chunks
            while True:
                yield b" " * 100_000

        url = f"{address}/api/models/0/tokens"
        headers["Content-Type"] = "application/json"
        # The server closes the connection, which a client that still writes sees first.
        with suppress(httpx.WriteError):
            assert httpx.post(url, content=endless(), headers=headers).status_code == 413
        long = b" " * 6_000_000
        answer = httpx.post(url, content=long, headers=headers)
        assert answer.status_code == 413
        assert "4,000,000 bytes" in answer.json()["error"]
