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


@pytest.fixture(scope="module")
def site() -> dict[Path, Page]:
    printed = run(DOCS / "build_site.py")
    assert "warning" not in printed.lower(), printed
    return {path.resolve(): Page(path) for path in (ROOT / "site").rglob("*.html")}


@pytest.mark.slow
def test_the_site_builds_and_its_links_lead_somewhere(site: dict[Path, Page]) -> None:
    assert ROOT / "site" / "index.html" in site
    broken = []
    for path, page in site.items():
        if path.name == "404.html":  # its links are relative to a root that is unknown here
            continue
        for link in {*page.links, *page.resources}:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve()
            if not parts.path:
                target = path
            if target.is_dir():
                target /= "index.html"
            known = target not in site or unquote(parts.fragment) in site[target].anchors
            if not (target.is_file() and known):
                broken.append(f"{path.relative_to(ROOT)}: {link}")
    assert broken == []


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere(site: dict[Path, Page]) -> None:
    loaded = {resource for page in site.values() for resource in page.resources}
    assert len(loaded) > 10
    assert [each for each in loaded if urlsplit(each).scheme in ("http", "https")] == []
    assert [each for each in loaded if each.startswith("//")] == []
    for style in (ROOT / "site").rglob("*.css"):
        text = style.read_text(encoding="utf8")
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", text), style


@pytest.mark.slow
def test_the_api_reference_shows_signatures_and_parameters(site: dict[Path, Page]) -> None:
    page = (ROOT / "site" / "api.html").read_text(encoding="utf8")
    for name in ("pretrain", "finetune", "evaluate", "embed"):
        module = electra.PUBLIC[name]
        assert f'id="{module}.{name}"' in page
    text = re.sub(r"<[^>]+>", "", page)
    assert "max_steps: int | None = None" in text
    assert "Steps to train for" in text
    assert "Parameters\n----------" not in text
