"""The page of fine-tuned models in a browser: answers, tables and two models side by side."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api", reason="needs playwright")

from playwright.sync_api import Page, expect

from tests.web.page.browser import Visit, text_field, words
from tests.web.page.server import ABOUT_CATS, ABOUT_DOGS, HOSTILE, QUESTION, SENTENCE

pytestmark = pytest.mark.e2e

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


def test_a_pair_has_a_score(visit: Callable[..., Visit], place: dict[str, int]) -> None:
    page = visit().open(model=place["pairs"], text="anna")
    expect(page.locator(".empty")).to_contain_text("Type a second text")
    scores = []
    for other in ("anna", "acme"):
        with page.expect_response("**/predict"):
            page.get_by_label("Second text").fill(other)
        expect(page.locator(".panel")).to_have_attribute("aria-busy", "false")
        scores.append(float(page.locator(".score").inner_text()))
    assert scores[0] > scores[1]


# ---- tables --------------------------------------------------------------------------------------


def upload(page: Page, name: str, content: bytes) -> None:
    file = {"name": name, "mimeType": "application/octet-stream", "buffer": content}
    page.locator("input[type=file]").set_input_files(files=[file])  # type: ignore[list-item]


def test_a_table_comes_back_with_answers(
    visit: Callable[..., Visit], place: dict[str, int]
) -> None:
    page = visit().open(model=place["classes"], view="table")
    rows = ["id,text", f"a,{ABOUT_DOGS}", f"b,{ABOUT_CATS}", f'c,"{HOSTILE}, ""x"""']
    upload(page, "pets.csv", "\n".join(rows).encode())
    expect(page.locator("thead th")).to_contain_text(["text", "label"])
    expect(page.locator("tbody tr")).to_have_count(3)
    expect(page.locator("tbody")).to_contain_text(HOSTILE)
    with page.expect_download() as caught:
        page.get_by_role("link", name="Download pets-answers.csv").click()
    assert caught.value.suggested_filename == "pets-answers.csv"
    with Path(caught.value.path()).open(encoding="utf8", newline="") as file:
        answered = list(csv.DictReader(file))
    assert [row["id"] for row in answered] == ["a", "b", "c"]
    assert answered[2]["text"] == f'{HOSTILE}, "x"'
    assert [row["label"] for row in answered[:2]] == ["dogs", "cats"]


def test_a_table_may_be_dropped_and_name_its_column(
    visit: Callable[..., Visit], place: dict[str, int]
) -> None:
    page = visit().open(model=place["classes"], view="table")
    page.get_by_label("Column of the text").fill("said")
    page.locator(".drop").evaluate(
        """place => {
          const given = new DataTransfer();
          given.items.add(new File(['{"said": "DOGS"}\\n'], "pets.jsonl"));
          place.dispatchEvent(new DragEvent("drop", {dataTransfer: given, bubbles: true}));
        }""".replace("DOGS", ABOUT_DOGS)
    )
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody")).to_contain_text("dogs")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("pets.pdf", b"%PDF", "Save it as .csv, .tsv or .jsonl"),
        ("pets.csv", b"", "pets.csv is empty"),
        ("pets.csv", b"other\nthe dog\n", "text"),
        ("pets.csv", b"text\n\xff\xfe\x00\x80\n", "UTF-8"),
        ("pets.jsonl", b"{not json\n", "JSON"),
        ("pets.csv", b"text\n" + b"a" * 5_100_000, "5 MB"),
    ],
    ids=["type", "empty", "column", "bytes", "json", "size"],
)
def test_a_broken_upload_is_refused_in_the_page(
    visit: Callable[..., Visit], place: dict[str, int], name: str, content: bytes, said: str
) -> None:
    page = visit().open(model=place["classes"], view="table")
    upload(page, name, content)
    expect(page.get_by_role("alert")).to_contain_text(said)
    upload(page, "good.csv", b"text\na dog\n")
    expect(page.locator("tbody tr")).to_have_count(1)


# ---- two models ----------------------------------------------------------------------------------


def test_two_models_answer_side_by_side(visit: Callable[..., Visit], place: dict[str, int]) -> None:
    page = visit().open(text=ABOUT_DOGS)
    page.get_by_label("Beside").select_option(str(place["classes"]))
    panels = page.locator("article.panel")
    expect(panels).to_have_count(2)
    expect(panels.nth(0).locator(".word")).to_have_text(ABOUT_DOGS.split())
    expect(panels.nth(1).locator(".headline strong")).to_have_text("dogs")
    left, right = (panels.nth(i).bounding_box() for i in range(2))
    assert left is not None
    assert right is not None
    assert left["y"] == right["y"]
    assert left["x"] + left["width"] <= right["x"]
    text_field(page).fill(ABOUT_CATS)
    expect(panels.nth(0).locator(".word")).to_have_text(ABOUT_CATS.split())
    expect(panels.nth(1).locator(".headline strong")).to_have_text("cats")
    page.go_back()
    expect(panels).to_have_count(1)


def test_two_runs_hide_the_same_word(visit: Callable[..., Visit], place: dict[str, int]) -> None:
    page = visit().open(text=SENTENCE, beside=place["discriminator"])
    panels = page.locator("article.panel")
    words(page).nth(1).click()
    expect(panels.nth(0).locator(".card h4")).to_have_text("dog")
    expect(panels.nth(1).locator(".word")).to_have_count(6)
