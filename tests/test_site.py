"""The documents: every link leads somewhere, generated pages are current, and the site builds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import electra

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SITE = ROOT / "site"
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^```.*?^```$", flags=re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?P<path>[^)#\s]*)(?P<anchor>#[^)\s]*)?\)")


def anchors_of(document: Path) -> set[str]:
    """Return the anchors that GitHub, and our site, give to the headings of a document."""
    text = FENCE.sub("", document.read_text(encoding="utf8"))
    anchors: set[str] = set(re.findall(r'<a id="([^"]+)"', text))
    for heading in re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        anchors.add(anchor)
    return anchors


def run(program: Path) -> str:
    """Run a program of docs/ and return what it prints."""
    done = subprocess.run(
        [sys.executable, str(program)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def name_of(document: Path) -> str:
    return str(document.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_link_and_anchor_of_a_document_leads_somewhere(document: Path) -> None:
    broken = []
    for link in LINK.finditer(FENCE.sub("", document.read_text(encoding="utf8"))):
        path, anchor = link["path"], link["anchor"]
        if ":" in path:  # of another site
            continue
        target = document
        if path:
            target = document.parent / path
        found = target.exists()
        if found and anchor:
            found = anchor.removeprefix("#") in anchors_of(target)
        if not found:
            broken.append(link[0])
    assert broken == []


def test_the_reference_of_the_command_line_is_current() -> None:
    page = run(DOCS / "command_reference.py")
    assert (DOCS / "commands.md").read_text(encoding="utf8") == page, "run `make reference`"


def test_every_document_is_in_the_navigation_of_the_site() -> None:
    config = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf8"))
    listed = set(nav_pages(config["project"]["nav"]))
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    pages = {re.sub(r"(^|/)README\.md$", r"\1index.md", page) for page in pages}
    assert pages - listed == set(), "add them to zensical.toml"


def nav_pages(nav: list[object]) -> Iterator[str]:
    for entry in nav:
        assert isinstance(entry, dict)
        for value in entry.values():
            if isinstance(value, str):
                yield value
            else:
                yield from nav_pages(value)


def test_every_public_name_is_in_the_api_reference() -> None:
    page = (DOCS / "api.md").read_text(encoding="utf8")
    for name, module in electra.PUBLIC.items():
        assert f"::: {module}.{name}\n" in page, f"add ::: {module}.{name} to docs/api.md"


# ---- the site ------------------------------------------------------------------------------------


class Page(HTMLParser):
    """The anchors, the links and the loaded resources of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = {""}
        self.links: list[str] = []
        self.resources: list[str] = []
        self.feed(path.read_text(encoding="utf8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {key: value or "" for key, value in attributes}
        self.anchors |= {values.get("id", ""), values.get("name", "")}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif "src" in values:
            self.resources.append(values["src"])
        elif tag == "link" and values.get("rel") not in ("prev", "next", "canonical"):
            self.resources.append(values["href"])


@pytest.mark.slow  # one test, since the site is built in one place
def test_the_site_builds_without_warnings_and_is_whole() -> None:
    printed = run(DOCS / "build_site.py")
    assert "warning" not in printed.lower(), printed
    pages = {path.resolve(): Page(path) for path in SITE.rglob("*.html")}
    assert SITE / "index.html" in pages
    assert broken_links(pages) == []
    check_resources(pages)
    check_api_reference((SITE / "api.html").read_text(encoding="utf8"))


def broken_links(pages: dict[Path, Page]) -> list[str]:
    """Return the links whose page, file or anchor does not exist."""
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links are relative to a root that is unknown here
            continue
        for link in {*page.links, *page.resources}:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = path
            if parts.path:
                target = (path.parent / unquote(parts.path)).resolve()
            if target.is_dir():
                target /= "index.html"
            known = target not in pages or unquote(parts.fragment) in pages[target].anchors
            if not (target.is_file() and known):
                broken.append(f"{path.relative_to(SITE)}: {link}")
    return broken


def check_resources(pages: dict[Path, Page]) -> None:
    """A page loads scripts, styles, fonts and images from the site alone."""
    loaded = {resource for page in pages.values() for resource in page.resources}
    assert len(loaded) > 10
    assert [each for each in loaded if urlsplit(each).netloc] == []
    for style in SITE.rglob("*.css"):
        text = style.read_text(encoding="utf8")
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", text), style


def check_api_reference(page: str) -> None:
    """Functions that take the fields of a dataclass show them as keywords, each with its text."""
    for name, module in electra.PUBLIC.items():
        assert f'id="{module}.{name}"' in page
    text = re.sub(r"<[^>]+>", "", page)
    assert "max_steps: int | None = None" in text
    assert "Steps to train for" in text
    assert "----------" not in text
