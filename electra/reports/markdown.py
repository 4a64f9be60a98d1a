"""Render a page as Markdown, for a code host."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from electra.escape import escape_html, escape_markdown, one_line, printable
from electra.reports.blocks import (
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


def render_markdown(blocks: Iterable[Block]) -> str:
    """Return the Markdown text of a page."""
    return "\n\n".join(render(block) for block in blocks) + "\n"


def render(block: Block) -> str:
    """Return the Markdown text of one block."""
    match block:
        case Heading():
            return render_heading(block)
        case Paragraph(text):
            return escape_markdown(text)
        case Banner(headline, lines):
            quoted = [f"> {escape_markdown(line)}" for line in lines]
            first = f"> [!WARNING]\n> **{escape_markdown(headline)}**"
            return "\n>\n".join([first, *quoted])
        case Bullets(items):
            return "\n".join(render_item(lead, text) for lead, text in items)
        case Contents(entries):
            links = [
                f"- [{escape_markdown(text)}](#{escape_html(anchor)})" for text, anchor in entries
            ]
            return "\n".join(links)
        case Grid():
            return render_grid(block)
        case Examples(head, rows):
            texts = [["".join(text for text, _ in cell) for cell in row] for row in rows]
            return render_grid(Grid(head, texts, is_text=True))
        case Heatmap(labels, counts):
            pairs = zip(labels, counts, strict=True)
            return render_grid(
                Grid(["truth", *labels], [[label, *map(str, row)] for label, row in pairs])
            )
        case Picture(name, title, _):
            title = escape_markdown(title)
            return f"![{title}]({name}.svg)\n\n*{title}*"
        case Fold(title, text):
            fence = code_fence(text)
            summary = f"<details><summary>{escape_html(one_line(title))}</summary>"
            return f"{summary}\n\n{fence}toml\n{printable(text)}\n{fence}\n\n</details>"


def render_heading(heading: Heading) -> str:
    text = f"{'#' * heading.level} {escape_markdown(heading.text)}"
    if not heading.anchor:
        return text
    return f'<a id="{escape_html(heading.anchor)}"></a>\n\n{text}'


def render_item(lead: str, text: str) -> str:
    if not lead:
        return f"- {escape_markdown(text)}"
    return f"- **{escape_markdown(lead)}** {escape_markdown(text)}"


def render_grid(grid: Grid) -> str:
    alignment = "---:"
    if grid.is_text:
        alignment = "---"
    rule = ["---", *[alignment] * (len(grid.head) - 1)]
    rows = [escape_cells(grid.head), rule, *map(escape_cells, grid.rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def escape_cells(cells: Sequence[str]) -> list[str]:
    return [escape_markdown(cell) for cell in cells]


def code_fence(text: str) -> str:
    """Return a fence that is longer than any in the text."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    return "`" * max(3, longest + 1)
