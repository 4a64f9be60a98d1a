"""A Chromium, and a page that keeps what it asked for and what went wrong in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Page, Request, expect, sync_playwright

FLAGS = (
    "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update "
    "--disable-sync --no-first-run"
).split()
NAMES = ("chromium", "chromium-browser", "google-chrome")
WIDE, PHONE = {"width": 1200, "height": 900}, {"width": 375, "height": 740}
PATIENCE_MS = 40_000  # a crowded machine is slow
# Chromium says of every answer with status 400 or more that the resource failed to load.
REFUSED = "Failed to load resource"
GO_TO = """hash => new Promise((done) => {
  window.addEventListener("hashchange", () => setTimeout(done), {once: true});
  window.location.hash = `${hash}&from=${Math.random()}`;
})"""


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Start the system's Chromium; skip the test where there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no Chromium: none of {', '.join(NAMES)} is installed")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield browser
        browser.close()


class Visit:
    """The page of a server in a fresh browser context."""

    def __init__(self, browser: Browser, server: str, **context: Any) -> None:
        self.server = server
        self.context = browser.new_context(**{"viewport": WIDE} | context)
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.requests: list[Request] = []
        self.problems: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", self.note_message)
        self.page.on("dialog", self.note_dialog)

    def note_message(self, message: Any) -> None:
        if message.type in ("error", "warning") and REFUSED not in message.text:
            self.problems.append(message.text)

    def note_dialog(self, dialog: Any) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def open(self, **state: object) -> Page:
        """Show the page with a state in its address. It is loaded once, and then told the state."""
        if self.page.url.startswith(self.server):
            self.page.evaluate(GO_TO, f"#{urlencode(state)}")
        else:
            self.page.goto(f"{self.server}#{urlencode(state)}", wait_until="commit")
            self.page.wait_for_selector("article.panel, .failure")
        return self.page

    def check(self) -> None:
        """Fail where the page asked another host, or where anything went wrong in it."""
        hosts = {
            urlsplit(request.url).netloc
            for request in self.requests
            if not request.url.startswith(("about:", "blob:"))
        }
        assert hosts <= {urlsplit(self.server).netloc}, hosts
        # A violation of the security policy is one of them.
        assert self.problems == [], self.problems

    def posted(self, ending: str) -> list[Mapping[str, Any]]:
        """Return the JSON of the requests to an endpoint."""
        return [each.post_data_json for each in self.requests if each.url.endswith(ending)]


def words(page: Page) -> Locator:
    return page.locator(".panel").first.locator(".word")


def chances_of(page: Page) -> list[float]:
    """Return the discriminator's probability for each token."""
    read = "nodes => nodes.map(node => +node.style.getPropertyValue('--p'))"
    found: list[float] = page.locator(".piece").evaluate_all(read)
    return found


def text_field(page: Page) -> Locator:
    return page.locator("textarea[name=text]")


def settle(page: Page) -> None:
    """Wait until every panel shows its answer."""
    expect(page.locator("article.panel").first).to_be_visible()
    expect(page.locator("[aria-busy=true], main .skeleton:visible")).to_have_count(0)
