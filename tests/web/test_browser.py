"""The page in a browser, before a real server and tiny real models."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="needs playwright")

from playwright.sync_api import Browser, Locator, Page, expect

from tests.tasks.toys import NAMES, TOYS, Toy
from tests.web.browser import Visit, open_browser
from tests.web.conftest import write_journal

pytestmark = pytest.mark.e2e

SENTENCE = "the dog sat on a mat"
QUESTION = {
    "question": "who lives in paris",
    "text": "the dog ran home . anna lives in paris . acme visits acme corp",
}
HOSTILE = "<img src=x onerror=alert(1)>"
ABOUT_DOGS, ABOUT_CATS = (
    line.partition(",")[0] for line in TOYS["classes"].content.splitlines()[1:3]
)


# ---- the server, its models and the browser ------------------------------------------------------


def pair_rows() -> str:
    """Pairs of names: the same twice scores more than two different ones."""
    pairs = [(name, name, 0.75) for name in NAMES]
    pairs += [(name, other, 0.25) for name, other in zip(NAMES, NAMES[::-1], strict=True)]
    return "text,other,label\n" + "".join(f"{a},{b},{label}\n" for a, b, label in pairs)


def hostile_rows() -> str:
    rows = [f"the dog ran,{HOSTILE}", "a cat sat,cats"] * 4
    return "\n".join(["text,label", *rows]) + "\n"


@pytest.fixture(scope="session")
def shown(
    pair: Path,
    tiny: Path,
    by_heart: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Path]:
    """The folders that the browser's server shows."""
    folders = {"pair": pair, "discriminator": tiny}
    folders |= {name: by_heart(name) for name in ("classes", "joint", "tags", "choices")}
    root = tmp_path_factory.mktemp("shown")
    pairs = Toy("classify", "pairs.csv", pair_rows(), {"text_pair": "other"})
    pairs.learnt(tiny, root / "pairs")
    Toy("classify", "hostile.csv", hostile_rows()).learnt(tiny, root / HOSTILE)
    (root / "growing").mkdir()
    write_journal(root / "growing")
    return (
        folders
        | {"pairs": root / "pairs", "hostile": root / HOSTILE}
        | {"growing": root / "growing"}
    )


@pytest.fixture(scope="session")
def place(shown: dict[str, Path]) -> dict[str, int]:
    """The number of each model at the server."""
    return {name: index for index, name in enumerate(shown)}


class Server:
    """A process of `electra serve`."""

    def __init__(self, models: list[Path], *, port: int = 0, token: str = "") -> None:
        environment = os.environ | {"ELECTRA_SERVE_TOKEN": token, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "electra", "serve", *map(str, models)]
        self.process = subprocess.Popen(
            [*command, "--port", str(port)], stderr=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stderr is not None
        said = []
        for line in self.process.stderr:
            said.append(line)
            if found := re.search(r"open (http://[^/]+:(\d+)/)", line):
                self.address, self.port = found[1], int(found[2])
                return
        raise AssertionError("".join(said))

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=30)


@pytest.fixture(scope="session")
def server(shown: dict[str, Path]) -> Iterator[str]:
    process = Server(list(shown.values()))
    yield process.address
    process.stop()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="session")
def plain_visit(browser: Browser, server: str) -> Visit:
    return Visit(browser, server)


@pytest.fixture
def visit(browser: Browser, server: str, plain_visit: Visit) -> Iterator[Callable[..., Visit]]:
    """Return a function that opens the page: in the shared context, or with options in a new one.
    What went wrong in it fails the test.
    """
    visits: list[Visit] = []

    def begin(**context: Any) -> Visit:
        visits.append(plain_visit)
        if context:
            visits[-1] = Visit(browser, server, **context)
        visits[-1].begin()
        return visits[-1]

    yield begin
    for each in visits:
        each.check()
        if each is not plain_visit:
            each.context.close()


def words(page: Page) -> Locator:
    return page.locator(".panel").first.locator(".word")


def chances_of(page: Page) -> list[float]:
    """Return the discriminator's probability for each token."""
    read = "nodes => nodes.map(node => +node.style.getPropertyValue('--p'))"
    found: list[float] = page.locator(".piece").evaluate_all(read)
    return found


def text_field(page: Page) -> Locator:
    return page.locator("textarea[name=text]")


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


# ---- fine-tuned models ---------------------------------------------------------------------------


def test_classes_are_bars_with_the_likeliest_first(
    visit: Callable[..., Visit], place: dict[str, int]
) -> None:
    page = visit().open(model=place["classes"], text=ABOUT_DOGS)
    expect(page.locator(".headline")).to_have_text(re.compile(r"^dogs with [>\d]"))
    rows = page.locator(".bars .line")
    expect(rows.locator(".name")).to_have_text(["dogs", "cats"])
    widths = rows.locator(".bar").evaluate_all(
        "bars => bars.map(bar => parseFloat(getComputedStyle(bar, '::before').width))"
    )
    assert widths[0] > widths[1]
    text_field(page).fill(ABOUT_CATS)
    expect(page.locator(".headline strong")).to_have_text("cats")


def test_entities_are_marks_in_the_text(visit: Callable[..., Visit], place: dict[str, int]) -> None:
    page = visit().open(model=place["tags"], text="anna lives in paris")
    marks = page.locator(".passage mark")
    expect(marks).to_have_text(["annaPER", "parisLOC"])
    expect(page.locator(".headline")).to_have_text("2 entities")
    hues = marks.evaluate_all("nodes => nodes.map(n => getComputedStyle(n).backgroundColor)")
    assert len(set(hues)) == 2


def test_the_answer_is_marked_inside_its_passage(
    visit: Callable[..., Visit], place: dict[str, int]
) -> None:
    page = visit().open(model=place["joint"], **QUESTION)
    expect(page.locator(".headline strong")).to_have_text("anna")
    expect(page.locator(".passage mark")).to_have_text("anna")
    assert page.locator(".passage").inner_text() == QUESTION["text"]
    page.get_by_label("Question").fill("")
    expect(page.locator(".empty")).to_contain_text("Type a question")


def test_options_are_ranked(visit: Callable[..., Visit], place: dict[str, int]) -> None:
    options = "paris\nthe dog\na cat\na mat"
    page = visit().open(model=place["choices"], text="anna lives in", options=options)
    rows = page.locator(".bars .line")
    expect(rows).to_have_count(4)
    expect(rows.first.locator(".name")).to_have_text("paris")
    chances = [float(re.sub("[^0-9.]", "", t)) for t in rows.locator(".value").all_inner_texts()]
    assert chances == sorted(chances, reverse=True)
