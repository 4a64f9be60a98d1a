"""The files of the page are plain, local and never read data as markup."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import electra

PAGE = Path(electra.__file__).parent / "web" / "page"
FILES = sorted(PAGE.iterdir())
SCRIPTS = [path for path in FILES if path.suffix == ".js"]

each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
each_script = pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)


def page_text(path: Path) -> str:
    return path.read_text(encoding="utf8")


@each_script
def test_a_script_never_makes_markup_or_code_of_text(path: Path) -> None:
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|srcdoc|DOMParser|eval\(|"
    forbidden += r"new Function|createContextualFragment|setHTML|javascript:"
    assert re.findall(forbidden, page_text(path)) == []


@each_file
def test_a_file_names_no_address_outside_the_server(path: Path) -> None:
    addresses = re.findall(r"""https?://[^\s"')]+|["'(]//\w[^\s"')]*""", page_text(path))
    assert set(addresses) <= {"http://www.w3.org/2000/svg"}  # a name, which nobody fetches


def test_the_page_has_neither_inline_script_nor_inline_style() -> None:
    html = page_text(PAGE / "index.html")
    assert re.findall(r"<style|\sstyle=|\son\w+=", html) == []
    assert re.findall(r"<script(?![^>]*\ssrc=)", html) == []


@each_file
def test_what_a_file_loads_lies_beside_it(path: Path) -> None:
    named = re.findall(r"""(?:from "\./|"/page/)([\w.-]+)\"""", page_text(path))
    assert [name for name in named if not (PAGE / name).is_file()] == []


@each_script
def test_a_script_has_few_and_short_lines(path: Path) -> None:
    lines = page_text(path).splitlines()
    assert len(lines) <= 400
    assert [line for line in lines if len(line) > 100] == []
