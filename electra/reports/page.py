"""A page as blocks, and the two forms it takes: Markdown for a code host, HTML that needs nothing
beside it.

Blocks hold plain text; the marks of both forms are put in here, and everything shown is escaped
here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Heading:
    level: int
    text: str
    anchor: str = ""


@dataclass(frozen=True)
class Paragraph:
    text: str


@dataclass(frozen=True)
class Banner:
    """What nobody may overlook."""

    headline: str
    lines: Sequence[str]


@dataclass(frozen=True)
class Bullets:
    items: Sequence[tuple[str, str]]  # what comes first in bold, may be empty; and the rest


@dataclass(frozen=True)
class Contents:
    entries: Sequence[tuple[str, str]]  # text, anchor


@dataclass(frozen=True)
class Grid:
    """A table: its first column names the row, the others are numbers unless `is_text`."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    is_text: bool = False


@dataclass(frozen=True)
class Picture:
    name: str  # of the file, without .svg
    title: str
    svg: str


@dataclass(frozen=True)
class Fold:
    """Shown when asked for."""

    title: str
    text: str


Block = Heading | Paragraph | Banner | Bullets | Contents | Grid | Picture | Fold

INK = "#767676"  # of axes and text in a figure: 4.5 : 1 on white, 4.2 : 1 on a dark page


# ---- Markdown ------------------------------------------------------------------------------------


def markdown(blocks: Iterable[Block]) -> str:
    return "\n\n".join(marked(block) for block in blocks) + "\n"


def marked(block: Block) -> str:
    match block:
        case Heading(level, text, anchor):
            return (
                f'<a id="{escape(anchor)}"></a>\n\n' if anchor else ""
            ) + f"{'#' * level} {plain(text)}"
        case Paragraph(text):
            return plain(text)
        case Banner(headline, lines):
            return "\n>\n".join(
                [f"> [!WARNING]\n> **{plain(headline)}**", *(f"> {plain(line)}" for line in lines)]
            )
        case Bullets(items):
            return "\n".join(
                f"- {f'**{plain(lead)}** ' if lead else ''}{plain(text)}" for lead, text in items
            )
        case Contents(entries):
            return "\n".join(f"- [{plain(text)}](#{escape(anchor)})" for text, anchor in entries)
        case Grid(head, rows, is_text):
            rule = ["---", *["---" if is_text else "---:"] * (len(head) - 1)]
            return "\n".join(
                "| " + " | ".join(cells) + " |"
                for cells in (
                    [plain(cell) for cell in head],
                    rule,
                    *([plain(cell) for cell in row] for row in rows),
                )
            )
        case Picture(name, title, _):
            return f"![{plain(title)}]({name}.svg)\n\n*{plain(title)}*"
        case Fold(title, text):
            longest = max((len(run) for run in re.findall("`+", text)), default=0)
            fence = "`" * max(3, longest + 1)
            return f"<details><summary>{escape(title)}</summary>\n\n{fence}toml\n{text}\n{fence}\n\n</details>"


def plain(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    line = re.sub(r"([\\`*_\[\]<>|~&$])", r"\\\1", " ".join(text.split()))
    return re.sub(
        r"^(\d*)([#+\-.)])(?=[\s#+\-.)]|$)", r"\1\\\2", line
    )  # nor a heading, nor an item of a list


# ---- HTML ----------------------------------------------------------------------------------------

STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1e; --soft: #5f6368; --paper: #ffffff; --rule: #d0d4d9; --warn: #fff3cd;
        --edge: #b35900; --even: #f6f7f9; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --soft: #a6abb3; --paper: #15181c; --rule: #3a4048; --warn: #3a2a00; --edge: #ffb14a;
          --even: #1c2026; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 62rem; color: var(--ink); background: var(--paper);
       font: 16px/1.55 system-ui, sans-serif; }
h2 { margin-top: 3.5rem; padding-top: 1rem; border-top: 1px solid var(--rule); }
h1, h2, h3 { line-height: 1.25; }
a { color: inherit; }
.banner { margin: 1.5rem 0; padding: .8rem 1.2rem; border: 3px solid var(--edge); border-radius: 6px;
          background: var(--warn); }
.banner p { margin: .4rem 0; }
.banner strong { font-size: 1.15em; }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .7rem; border-bottom: 1px solid var(--rule); text-align: right; vertical-align: top; }
td { white-space: nowrap; }
th:first-child, td:first-child, table.text th, table.text td { text-align: left; white-space: normal; }
tbody tr:nth-child(even) { background: var(--even); }
figure { margin: 2rem 0; }
figure svg { max-width: 100%; height: auto; color: var(--soft); }
figcaption { color: var(--soft); font-size: .9rem; }
pre { overflow-x: auto; padding: .8rem; background: var(--even); font-size: .85rem; }
summary { cursor: pointer; }
@media print {
  body { max-width: none; padding: 0; font-size: 11pt; }
  figure, .banner, tr { break-inside: avoid; }
  .wide { overflow: visible; }
  pre { white-space: pre-wrap; }
  details::details-content { content-visibility: visible; display: block; }
}
""".strip()


def html(blocks: Iterable[Block], *, title: str) -> str:
    """Nothing is fetched and nothing runs: the policy in the head holds the page to that."""
    body = "\n".join(tagged(block) for block in blocks)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; style-src '
        "'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{STYLE}\n</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def tagged(block: Block) -> str:
    match block:
        case Heading(level, text, anchor):
            place = f' id="{escape(anchor)}"' if anchor else ""
            return f"<h{level}{place}>{escape(text)}</h{level}>"
        case Paragraph(text):
            return f"<p>{escape(text)}</p>"
        case Banner(headline, lines):
            rest = "".join(f"<p>{escape(line)}</p>" for line in lines)
            return f'<div class="banner" role="note"><p><strong>{escape(headline)}</strong></p>{rest}</div>'
        case Bullets(items):
            return (
                "<ul>"
                + "".join(
                    f"<li>{f'<b>{escape(lead)}</b> ' if lead else ''}{escape(text)}</li>"
                    for lead, text in items
                )
                + "</ul>"
            )
        case Contents(entries):
            links = "".join(
                f'<li><a href="#{escape(anchor)}">{escape(text)}</a></li>'
                for text, anchor in entries
            )
            return f"<nav><ul>{links}</ul></nav>"
        case Grid(head, rows, is_text):
            return tagged_grid(head, rows, "text" if is_text else "numbers")
        case Picture(_, title, _):
            return f"<figure>{inlined(block)}<figcaption>{escape(title)}</figcaption></figure>"
        case Fold(title, text):
            return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"


def tagged_grid(head: Sequence[str], rows: Sequence[Sequence[str]], kind: str) -> str:
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows
    )
    return (
        '<div class="wide"><table '
        f'class="{kind}"><thead><tr>{top}</tr></thead>\n<tbody>\n{body}</tbody></table>'
        "</div>"
    )


def inlined(picture: Picture) -> str:
    """An SVG inside of a page: names that are its own among several, and axes in the ink of the
    page.
    """
    svg = picture.svg[picture.svg.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{picture.name}-", svg)
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(picture.title)}"', 1)
