"""The page for everybody: on a phone, by keyboard, light and dark."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

pytest.importorskip("playwright.sync_api", reason="needs playwright")

from playwright.sync_api import expect

from tests.web.page.browser import PHONE, Visit, settle, words
from tests.web.page.server import QUESTION, SENTENCE

pytestmark = pytest.mark.e2e

# ---- everybody -----------------------------------------------------------------------------------

STATES: list[tuple[str, dict[str, str]]] = [
    ("pair", {"text": f"{SENTENCE} {'x' * 80}", "hidden": "4-7,17-20"}),
    ("pair", {"view": "curves"}),
    ("classes", {"text": "dog " * 40}),
    ("classes", {"view": "table"}),
    ("tags", {"text": "anna lives in paris " * 4}),
    ("joint", QUESTION),
    ("choices", {"text": "anna lives in", "options": "paris\nthe dog\na cat\na mat"}),
    ("hostile", {"text": "the dog"}),
    ("pair", {"text": ""}),
]
# The colour of each visible text beside the first opaque ground behind it.
CONTRASTS = """() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  const read = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return canvas.getImageData(0, 0, 1, 1).data;
  };
  const light = (data) => [...data].slice(0, 3).map((byte) => byte / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const low = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const owner = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !owner.checkVisibility()) continue;
    if (owner.closest(".unseen, .skip, noscript, option, :disabled")) continue;
    let ground = owner;
    while (read(getComputedStyle(ground).backgroundColor)[3] < 255) ground = ground.parentElement;
    const style = getComputedStyle(owner);
    const ink = owner instanceof SVGElement ? style.fill : style.color;
    const [one, other] = [light(read(ink)), light(read(getComputedStyle(ground).backgroundColor))]
      .sort((a, b) => b - a);
    const contrast = (one + 0.05) / (other + 0.05);
    if (contrast < 4.5) low.push(`${owner.className} ${walker.currentNode.data}: ${contrast}`);
  }
  return low;
}"""


def test_nothing_is_wider_than_a_phone(visit: Callable[..., Visit], place: dict[str, int]) -> None:
    here = visit(viewport=PHONE, is_mobile=True, has_touch=True)
    for model, state in STATES:
        page = here.open(model=place[model], beside=place["discriminator"], **state)
        settle(page)
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= PHONE["width"], (model, state)
    here.open(text=SENTENCE)
    words(here.page).nth(1).tap()
    expect(here.page.locator(".card h4")).to_have_text("dog")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_contrast(
    visit: Callable[..., Visit], place: dict[str, int], scheme: str
) -> None:
    here = visit(color_scheme=scheme, reduced_motion="reduce")
    for model, state in STATES:
        page = here.open(model=place[model], **state)
        settle(page)
        assert page.evaluate(CONTRASTS) == [], (model, state)
    page = here.open(text=SENTENCE)
    expect(words(page)).to_have_count(6)
    for chance in (0, 0.25, 0.5, 0.75, 1):
        page.locator(".piece").first.evaluate("(n, p) => n.style.setProperty('--p', p)", chance)
        assert page.evaluate(CONTRASTS) == [], chance
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, re.findall(r"\d+", ground))) < 60) == (scheme == "dark")


def test_the_tab_key_walks_the_page_from_top_to_bottom(visit: Callable[..., Visit]) -> None:
    page = visit().open(text=SENTENCE, hidden="4-7")
    page.reload()  # the Tab key begins at the top
    expect(page.locator(".card")).to_have_count(1)
    names = []
    for _ in range(14):
        page.keyboard.press("Tab")
        names.append(
            page.evaluate(
                "(document.activeElement.name || document.activeElement.id "
                "|| document.activeElement.textContent)"
            )
        )
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert names[:7] == ["skip", "model", "beside", "Try", "Curves", "text", names[6]]
    assert names[9:13] == ["Draw again", "Show all words", "temperature", "the"]


def test_the_page_stands_still_while_it_loads(visit: Callable[..., Visit]) -> None:
    here = visit()
    here.context.add_init_script(
        """window.shift = 0;
        new PerformanceObserver((list) => {
          for (const entry of list.getEntries()) window.shift += entry.value;
        }).observe({type: "layout-shift", buffered: true});"""
    )
    page = here.open(text=SENTENCE)
    expect(words(page)).to_have_count(6)
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert page.evaluate("window.shift") < 0.1
