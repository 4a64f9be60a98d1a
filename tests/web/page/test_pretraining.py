"""The page of a pre-trained model in a browser: words, candidates and curves."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api", reason="needs playwright")

from playwright.sync_api import expect

from tests.web.conftest import write_journal
from tests.web.page.browser import Visit, chances_of, text_field, words
from tests.web.page.server import SENTENCE

pytestmark = pytest.mark.e2e

# ---- a pre-training run --------------------------------------------------------------------------


def test_a_click_hides_a_word_and_shows_five_candidates(visit: Callable[..., Visit]) -> None:
    here = visit()
    page = here.open(text=SENTENCE)
    words(page).nth(1).click()
    expect(words(page).nth(1)).to_have_attribute("aria-pressed", "true")
    card = page.get_by_role("region", name="Candidates for dog")
    expect(card).to_be_visible()
    rows = card.locator(".line")
    assert 5 <= rows.count() <= 6  # a sixth where the drawn one is none of the five
    chances = [
        float(re.sub("[^0-9.]", "", text)) for text in card.locator(".value").all_inner_texts()
    ]
    assert chances[:5] == sorted(chances[:5], reverse=True)
    expect(card.locator("em", has_text="drawn")).to_have_count(1)
    assert here.posted("/tokens")[-1]["hidden"] == [1]
    words(page).nth(1).click()
    expect(page.locator(".card")).to_have_count(0)


def test_words_are_hidden_by_keyboard_and_keep_the_focus(visit: Callable[..., Visit]) -> None:
    page = visit().open(text=SENTENCE)
    words(page).first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")
    expect(page.locator(".card h4")).to_have_text("dog")
    expect(words(page).nth(1)).to_be_focused()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    expect(page.locator(".card h4")).to_have_text(["dog", "mat"])
    expect(words(page).last).to_be_focused()
    page.get_by_role("button", name="Show all words").click()
    expect(page.locator(".card")).to_have_count(0)


def test_draw_again_draws_with_another_seed(visit: Callable[..., Visit]) -> None:
    here = visit()
    page = here.open(text=SENTENCE, hidden="4-7,15-16,17-20")
    again = page.get_by_role("button", name="Draw again")
    expect(page.locator(".card")).to_have_count(3)
    drawn = set()
    for _ in range(3):
        drawn.add(tuple(words(page).all_inner_texts()))
        with page.expect_response("**/tokens"):
            again.click()
        expect(page.locator(".panel").first).to_have_attribute("aria-busy", "false")
    assert len(drawn) > 1
    assert {each["seed"] for each in here.posted("/tokens")} == {0, 1, 2, 3}
    page.get_by_label("Temperature").fill("0.1")
    expect(page.locator("output")).to_have_text("0.1")
    page.wait_for_url("**temperature=0.1**")
    assert here.posted("/tokens")[-1]["temperature"] == 0.1


def test_nothing_is_drawn_before_a_word_is_hidden(visit: Callable[..., Visit]) -> None:
    page = visit().open(text=SENTENCE)
    expect(words(page)).to_have_count(6)
    expect(page.get_by_role("button", name="Draw again")).to_be_disabled()


def test_tokens_have_a_colour_and_show_their_number(visit: Callable[..., Visit]) -> None:
    page = visit().open(text="the dog sat on a mat homes")
    expect(words(page)).to_have_count(7)
    pieces = page.locator(".piece")
    assert pieces.count() > 7  # the last word is in pieces
    chances = chances_of(page)
    colours = pieces.evaluate_all("nodes => nodes.map(n => getComputedStyle(n).backgroundColor)")
    assert len(set(colours)) == len(set(chances)) > 1
    assert all(0 < chance < 1 for chance in chances)
    tip = page.get_by_role("tooltip")
    pieces.nth(1).hover()
    expect(tip).to_have_text(re.compile(rf"^dog\s+replaced {100 * chances[1]:.1f} %$"))
    page.mouse.move(5, 5)
    expect(tip).to_be_hidden()
    words(page).first.focus()
    expect(tip).to_have_text(re.compile(r"^the\s+replaced \d"))
    assert re.match(
        r"dog, replaced \d+\.\d %", words(page).nth(1).get_attribute("aria-label") or ""
    )
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()


def test_an_edited_word_changes_the_result(visit: Callable[..., Visit]) -> None:
    here = visit()
    page = here.open(text=SENTENCE)
    expect(words(page)).to_have_count(6)
    before = chances_of(page)
    words(page).nth(1).focus()
    page.keyboard.press("F2")
    page.keyboard.type("cat")
    page.keyboard.press("Enter")
    expect(text_field(page)).to_have_value("the cat sat on a mat")
    expect(words(page).nth(1)).to_have_text("cat")
    expect(words(page).nth(1)).to_be_focused()
    assert chances_of(page)[1] != before[1]
    words(page).nth(1).dblclick()
    page.keyboard.type("paris")
    page.keyboard.press("Escape")
    expect(text_field(page)).to_have_value("the cat sat on a mat")
    words(page).nth(1).dblclick()
    page.keyboard.type("anna")
    page.keyboard.press("Enter")
    expect(words(page).nth(1)).to_have_text("anna")
    assert here.posted("/tokens")[-1]["hidden"] == []


def test_a_hidden_word_stays_hidden_while_the_text_before_it_grows(
    visit: Callable[..., Visit],
) -> None:
    here = visit()
    page = here.open(text=SENTENCE, hidden="4-7")
    expect(page.locator(".card h4")).to_have_text("dog")
    text_field(page).press("Control+Home")
    sent = len(here.posted("/tokens"))
    page.keyboard.type("why did ", delay=20)
    expect(words(page).first).to_have_text("why")
    expect(words(page).nth(3)).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".card h4")).to_have_text("dog")
    assert here.posted("/tokens")[-1]["hidden"] == [3]
    assert len(here.posted("/tokens")) - sent < 8  # not one for each key


def test_a_candidate_goes_into_the_text(visit: Callable[..., Visit]) -> None:
    page = visit().open(text=SENTENCE, hidden="4-7")
    button = page.locator(".card button").first
    name = button.locator(".name").evaluate("node => node.firstChild.textContent")
    button.click()
    expect(text_field(page)).to_have_value(f"the {name} sat on a mat")
    expect(page.locator(".card")).to_have_count(0)


def test_a_discriminator_alone_hides_no_words(
    visit: Callable[..., Visit], place: dict[str, int]
) -> None:
    page = visit().open(model=place["discriminator"], text=SENTENCE, hidden="4-7")
    expect(words(page)).to_have_count(6)
    expect(words(page).first).not_to_have_attribute("aria-pressed", re.compile("."))
    expect(page.get_by_role("button", name="Draw again")).to_have_count(0)


def test_an_example_fills_an_empty_page(visit: Callable[..., Visit]) -> None:
    page = visit().open()
    expect(page.locator(".empty")).to_have_text("Type a sentence, or take an example.")
    example = page.get_by_role("group", name="Examples").get_by_role("button").first
    example.click()
    expect(text_field(page)).to_have_value(example.inner_text())
    expect(words(page).first).to_be_visible()


def test_an_example_for_a_discriminator_alone_has_a_wrong_word(
    visit: Callable[..., Visit], place: dict[str, int]
) -> None:
    page = visit().open(model=place["discriminator"])
    examples = page.get_by_role("group", name="Examples")
    expect(examples.get_by_role("button").first).to_have_text(re.compile("years in butter"))


def test_the_address_holds_the_view(visit: Callable[..., Visit]) -> None:
    here = visit()
    page = here.open(text=SENTENCE)
    words(page).nth(1).click()
    page.wait_for_url("**hidden=4-7**")
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    expect(text_field(page)).to_have_value(SENTENCE)
    expect(words(page).nth(1)).to_have_attribute("aria-pressed", "true")
    page.goto("about:blank")
    page.goto(f"{here.server}#model=99&beside=x&view=none&hidden=9-2,z&seed=-1&text=the")
    expect(words(page)).to_have_count(1)


TYPE_AND_LEAVE = """([text, leave]) => {
  const field = document.querySelector("textarea[name=text]");
  field.value = text;
  field.dispatchEvent(new Event("input"));
  const pause = performance.now() + 400;
  while (leave.startsWith("#") && performance.now() < pause);  // the page's timers are due now
  if (leave.startsWith("#")) window.location.hash = leave;
  else document.querySelector(leave).click();
}"""


def test_what_was_just_typed_does_not_undo_a_new_address(visit: Callable[..., Visit]) -> None:
    page = visit().open(text=SENTENCE)
    expect(words(page)).to_have_count(6)
    page.evaluate(TYPE_AND_LEAVE, ["a dog", "#text=anna+lives+in"])
    expect(words(page)).to_have_text(["anna", "lives", "in"])
    expect(text_field(page)).to_have_value("anna lives in")
    page.wait_for_url("**#text=anna+lives+in")


def test_another_view_keeps_what_was_just_typed(visit: Callable[..., Visit]) -> None:
    page = visit().open(text=SENTENCE)
    expect(words(page)).to_have_count(6)
    page.evaluate(TYPE_AND_LEAVE, ["a dog", "[data-view=curves]"])
    expect(page.locator(".chart").first).to_be_visible()
    page.get_by_role("link", name="Try").click()
    expect(text_field(page)).to_have_value("a dog")
    expect(words(page)).to_have_text(["a", "dog"])


# ---- curves --------------------------------------------------------------------------------------


def test_curves_grow_with_the_journal(
    visit: Callable[..., Visit], shown: dict[str, Path], place: dict[str, int]
) -> None:
    write_journal(shown["growing"], steps=4)
    page = visit().open(model=place["growing"])  # it has no networks yet: curves are its first view
    expect(page.get_by_role("link", name="Curves")).to_have_attribute("aria-current", "page")
    titles = page.locator(".chart h3")
    expect(titles).to_have_text(["Loss", "AUC", "Learning rate", "Tokens per second"])
    expect(page.locator(".run-state")).to_contain_text("step 4 of 100")
    loss = page.locator("[data-group=loss]")
    expect(loss.locator("path.baseline").first).to_have_css("stroke-dasharray", "5px, 4px")
    rate = page.locator("[data-group=rate]")
    expect(rate.locator("b")).to_have_text("4.00e-3")
    before = rate.locator("path.curve").get_attribute("d") or ""
    write_journal(shown["growing"], steps=12)
    expect(rate.locator("b")).to_have_text("1.20e-2")
    expect(page.locator(".run-state")).to_contain_text("step 12 of 100")
    after = rate.locator("path.curve").get_attribute("d") or ""
    assert (before.count("L"), after.count("L")) == (3, 11)


def test_a_curve_tells_its_values_to_pointer_and_keyboard(
    visit: Callable[..., Visit], place: dict[str, int]
) -> None:
    page = visit().open(model=place["pair"], view="curves")
    auc = page.locator("[data-group=auc]")
    expect(auc.locator(".values")).to_contain_text("0.540 baseline 0.500")
    plot = auc.locator(".plot")
    plot.hover(position={"x": 55, "y": 100})
    expect(auc.locator(".values b")).to_have_text("0.520")
    page.mouse.move(5, 5)
    expect(auc.locator(".values b")).to_have_text("0.540")
    plot.focus()
    page.keyboard.press("Home")
    expect(auc.locator(".values b")).to_have_text("0.520")
    expect(page.locator("#announcement")).to_contain_text("step 2")


def test_a_run_without_networks_says_when_they_come(
    visit: Callable[..., Visit], place: dict[str, int]
) -> None:
    page = visit().open(model=place["growing"], view="try", text=SENTENCE)
    expect(page.get_by_role("alert")).to_contain_text("has not exported its networks yet")
