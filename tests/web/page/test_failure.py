"""What goes wrong before the page, and what anybody may type into it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="needs playwright")

from playwright.sync_api import Browser, expect

from tests.web.page.browser import Visit, text_field, words
from tests.web.page.server import HOSTILE, SENTENCE, Server

TOKEN = "a-token-of-the-tests"

pytestmark = pytest.mark.e2e

# ---- what goes wrong -----------------------------------------------------------------------------


def test_a_text_that_is_too_long_is_said_with_the_limit(visit: Callable[..., Visit]) -> None:
    here = visit()
    page = here.open(text=SENTENCE)
    expect(words(page)).to_have_count(6)
    sent = len(here.posted("/tokens"))
    text_field(page).fill("a " * 10_001)
    expect(page.get_by_role("alert")).to_contain_text("20,002 characters")
    assert len(here.posted("/tokens")) == sent
    text_field(page).fill("a dog " * 60)
    expect(page.locator(".note")).to_contain_text("cut after 64 tokens")
    text_field(page).fill("a dog")
    expect(page.locator(".note")).to_have_count(0)


def test_a_text_that_a_classifier_cannot_read_is_said(
    visit: Callable[..., Visit], place: dict[str, int]
) -> None:
    page = visit().open(model=place["classes"], text="\N{CLOUD} \N{CLOUD} dog")
    expect(page.locator(".note")).to_contain_text("not in the model's vocabulary")
    text_field(page).fill("the dog ran")
    expect(page.locator(".note")).to_have_count(0)


def test_a_busy_server_is_asked_again(visit: Callable[..., Visit]) -> None:
    here = visit()
    page = here.open()
    busy = {"error": "The queue is full; try again in 1 s."}

    def refuse(route: Any) -> None:
        route.fulfill(status=503, headers={"Retry-After": "1"}, body=json.dumps(busy))

    page.route("**/tokens", refuse, times=1)
    text_field(page).fill(SENTENCE)
    expect(page.get_by_role("alert")).to_contain_text("The page tries again in 1 s.")
    expect(words(page)).to_have_count(6)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_kind_that_the_page_does_not_know_is_said(visit: Callable[..., Visit]) -> None:
    here = visit()
    model = {"model": 0, "name": "odd", "kind": "paint", "has_curves": False}
    answer = json.dumps({"models": [model], "limits": {}, "version": "1"})
    here.page.route("**/api/models", lambda route: route.fulfill(body=answer))
    page = here.open(text=SENTENCE)
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text("cannot show a model of the kind “paint”")
    page.goto("about:blank")


def test_the_page_shows_that_it_waits(visit: Callable[..., Visit]) -> None:
    here = visit()
    page = here.open()
    held: list[Any] = []
    page.route("**/tokens", lambda route: held.append(route), times=1)
    text_field(page).fill(SENTENCE)
    expect(page.locator("article.panel")).to_have_attribute("aria-busy", "true")
    while not held:
        page.wait_for_timeout(50)
    held[0].continue_()
    expect(words(page)).to_have_count(6)
    expect(page.locator("article.panel")).to_have_attribute("aria-busy", "false")


@pytest.fixture
def lone_server(pair: Path) -> Iterator[list[Server]]:
    """A server of its own with a token, in a list: the last one is stopped."""
    servers = [Server([pair], token=TOKEN)]
    yield servers
    servers[-1].stop()


def test_the_page_goes_on_when_its_server_is_back(
    browser: Browser, pair: Path, lone_server: list[Server]
) -> None:
    here = Visit(browser, lone_server[0].address)
    page = here.open()
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("token")
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Open").click()
    text_field(page).fill(SENTENCE)
    expect(words(page)).to_have_count(6)
    lone_server[0].stop()
    text_field(page).fill("the dog")
    expect(alert).to_contain_text("The server does not answer")
    lone_server.append(Server([pair], port=lone_server[0].port, token=TOKEN))
    expect(words(page)).to_have_count(2)
    fresh = Visit(browser, here.server)
    fresh.page.goto(f"{here.server}?token={TOKEN}#text=the")
    expect(words(fresh.page)).to_have_count(1)
    assert TOKEN not in fresh.page.url
    assert all(TOKEN not in request.url for request in fresh.requests[1:])
    here.context.close()
    fresh.context.close()


# ---- what anybody may type -----------------------------------------------------------------------


def test_hostile_text_is_shown_as_text(visit: Callable[..., Visit], place: dict[str, int]) -> None:
    here = visit()
    page = here.open(model=place["hostile"], text=f"the dog ran {HOSTILE}")
    expect(page.locator("h2")).to_have_text(HOSTILE)
    expect(page.locator(".bars .name")).to_contain_text([HOSTILE])
    page.get_by_label("Beside").select_option(str(place["pair"]))
    expect(page.locator(".sentence")).to_contain_text("onerror=alert")
    for model, state in (
        ("tags", {"text": HOSTILE}),
        ("joint", {"text": f"anna {HOSTILE}", "question": HOSTILE}),
        ("choices", {"text": HOSTILE, "options": "\n".join([HOSTILE] * 4)}),
    ):
        here.open(model=place[model], **state)
        expect(page.locator(".headline").first).to_be_visible()
    here.open(text=f"{HOSTILE} dog", hidden="0-200")
    expect(page.locator(".card").first).to_be_visible()
    assert page.locator("img").count() == 0
