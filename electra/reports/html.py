"""Render a page as one HTML file that needs no other file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from electra.escape import escape_html as escape
from electra.reports.blocks import (
    INK,
    Banner,
    Block,
    Bullets,
    Contents,
    Examples,
    Fold,
    Grid,
    Heading,
    Heatmap,
    Paragraph,
    Picture,
)

STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1e; --soft: #5f6368; --paper: #ffffff;
        --rule: #d0d4d9; --warn: #fff3cd; --edge: #b35900; --even: #f6f7f9;
        --heat: #0072b2; --right: #d3efe3; --wrong: #fbd9c5; --missed: #d9e6fb; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --soft: #a6abb3; --paper: #15181c; --rule: #3a4048;
          --warn: #3a2a00; --edge: #ffb14a; --even: #1c2026;
          --heat: #3d9be0; --right: #0d3b2b; --wrong: #5a2a10; --missed: #1d3663; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 62rem; color: var(--ink);
       background: var(--paper); font: 16px/1.55 system-ui, sans-serif; }
h2 { margin-top: 3.5rem; padding-top: 1rem; border-top: 1px solid var(--rule); }
h1, h2, h3 { line-height: 1.25; }
a { color: inherit; }
.banner { margin: 1.5rem 0; padding: .8rem 1.2rem; border: 3px solid var(--edge);
          border-radius: 6px; background: var(--warn); }
.banner p { margin: .4rem 0; }
.banner strong { font-size: 1.15em; }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .7rem; border-bottom: 1px solid var(--rule); text-align: right;
         vertical-align: top; }
td { white-space: nowrap; }
th:first-child, td:first-child, table.text th, table.text td { text-align: left;
                                                               white-space: normal; }
tbody tr:nth-child(even) { background: var(--even); }
table.examples td { max-width: 26rem; overflow-wrap: break-word; white-space: pre-line; }
table.examples td:first-child { min-width: 16rem; }
@media (max-width: 40rem) {
  body { padding: 1rem; }
  table.examples thead { display: none; }
  table.examples td { display: block; max-width: none; border: 0; padding: .15rem .5rem; }
  table.examples td::before { content: attr(data-head) ": "; color: var(--soft); }
  table.examples tr { display: block; padding: .5rem 0; border-bottom: 1px solid var(--rule); }
}
mark { color: inherit; padding: .05em .2em; border-radius: 3px; }
mark.right { background: var(--right); }
mark.wrong { background: var(--wrong); text-decoration: underline wavy; }
mark.missed { background: var(--missed); text-decoration: underline dashed; }
small { color: var(--soft); }
table.heat td { text-align: center; background:
  color-mix(in srgb, var(--heat) calc(var(--share, 0) * 55%), transparent); }
table.heat th { text-align: center; max-width: 12rem; overflow-wrap: break-word; }
table.heat td { min-width: 3.6rem; }
table.heat tbody th { text-align: left; font-weight: 600; }
table.heat tbody tr { background: none; }
table.heat small { display: block; color: inherit; opacity: .75; }
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
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def render_html(blocks: Iterable[Block], *, title: str) -> str:
    """Return the HTML text of a page. Its policy forbids it to fetch or to run anything."""
    body = "\n".join(render(block) for block in blocks)
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>",
        f"<style>\n{STYLE}\n</style>",
        "</head>",
        f"<body>\n{body}\n</body>",
        "</html>",
    ]
    return "\n".join(lines) + "\n"


def render(block: Block) -> str:
    """Return the HTML text of one block."""
    match block:
        case Heading():
            return render_heading(block)
        case Paragraph(text):
            return f"<p>{escape(text)}</p>"
        case Banner(headline, lines):
            rest = "".join(f"<p>{escape(line)}</p>" for line in lines)
            first = f"<p><strong>{escape(headline)}</strong></p>"
            return f'<div class="banner" role="note">{first}{rest}</div>'
        case Bullets(items):
            return f"<ul>{''.join(render_item(lead, text) for lead, text in items)}</ul>"
        case Contents(entries):
            links = "".join(render_link(text, anchor) for text, anchor in entries)
            return f"<nav><ul>{links}</ul></nav>"
        case Grid():
            return render_grid(block)
        case Examples():
            return render_examples(block)
        case Heatmap():
            return render_heatmap(block)
        case Picture(_, title, _):
            return f"<figure>{inline_svg(block)}<figcaption>{escape(title)}</figcaption></figure>"
        case Fold(title, text):
            return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"


def render_heading(heading: Heading) -> str:
    attribute = ""
    if heading.anchor:
        attribute = f' id="{escape(heading.anchor)}"'
    return f"<h{heading.level}{attribute}>{escape(heading.text)}</h{heading.level}>"


def render_item(lead: str, text: str) -> str:
    if not lead:
        return f"<li>{escape(text)}</li>"
    return f"<li><b>{escape(lead)}</b> {escape(text)}</li>"


def render_link(text: str, anchor: str) -> str:
    return f'<li><a href="#{escape(anchor)}">{escape(text)}</a></li>'


def render_grid(grid: Grid) -> str:
    kind = "numbers"
    if grid.is_text:
        kind = "text"
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in grid.head)
    body = "".join(render_row(row) for row in grid.rows)
    return (
        f'<div class="wide"><table class="{kind}"><thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}</tbody></table></div>"
    )


def render_row(cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>\n"


MARKS = {
    "right": ('<mark class="right">', "</mark>"),
    "wrong": ('<mark class="wrong">', "</mark>"),
    "missed": ('<mark class="missed">', "</mark>"),
    "note": ("<small>", "</small>"),
}


def render_examples(examples: Examples) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in examples.head)
    rows = []
    for row in examples.rows:
        cells = []
        for name, cell in zip(examples.head, row, strict=True):
            cells.append(f'<td data-head="{escape(name)}">{render_marked(cell)}</td>')
        rows.append(f"<tr>{''.join(cells)}</tr>\n")
    return (
        f'<div class="wide"><table class="text examples"><thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{''.join(rows)}</tbody></table></div>"
    )


def render_marked(cell: Sequence[tuple[str, str]]) -> str:
    parts = []
    for text, mark in cell:
        before, after = MARKS.get(mark, ("", ""))
        parts.append(f"{before}{escape(text)}{after}")
    return "".join(parts)


def render_heatmap(heatmap: Heatmap) -> str:
    """Return a table whose cells hold a count and its share of the row."""
    head = "".join(f'<th scope="col">{escape(label)}</th>' for label in heatmap.labels)
    rows = []
    for label, counts in zip(heatmap.labels, heatmap.counts, strict=True):
        total = max(1, sum(counts))
        cells = "".join(render_heat(count, count / total) for count in counts)
        rows.append(f'<tr><th scope="row">{escape(label)}</th>{cells}</tr>\n')
    return (
        '<div class="wide"><table class="heat"><thead><tr><th scope="col">truth ↓ answer →</th>'
        f"{head}</tr></thead>\n<tbody>\n{''.join(rows)}</tbody></table></div>"
    )


def render_heat(count: int, share: float) -> str:
    if not count:
        return "<td>0</td>"
    return f'<td style="--share:{share:.2f}">{count:,}<small>{100 * share:.0f} %</small></td>'


def inline_svg(picture: Picture) -> str:
    """Return an SVG for the inside of a page: its ids made unique, its axes in the page's ink."""
    svg = picture.svg[picture.svg.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{picture.name}-", svg)
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(picture.title)}"', 1)
