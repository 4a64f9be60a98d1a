"""The blocks that a page consists of. They hold plain text; `markdown` and `html` render them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Of axes and text in a figure: contrast 4.5 : 1 on white, 4.2 : 1 on a dark page.
INK = "#767676"


@dataclass(frozen=True)
class Heading:
    """A heading of level 1 to 6, with an anchor that links can point to."""

    level: int
    text: str
    anchor: str = ""


@dataclass(frozen=True)
class Paragraph:
    """One paragraph of text."""

    text: str


@dataclass(frozen=True)
class Banner:
    """A warning with a headline that no reader may overlook."""

    headline: str
    lines: Sequence[str]


@dataclass(frozen=True)
class Bullets:
    """A list of items."""

    items: Sequence[tuple[str, str]]  # the beginning in bold, which may be empty; and the rest


@dataclass(frozen=True)
class Contents:
    """A table of contents."""

    entries: Sequence[tuple[str, str]]  # text, anchor


@dataclass(frozen=True)
class Grid:
    """A table: its first column names the row, the others are numbers unless `is_text`."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    is_text: bool = False


@dataclass(frozen=True)
class Examples:
    """A table of texts, parts of which are marked: right, wrong, missed, or a note."""

    head: Sequence[str]
    rows: Sequence[Sequence[Sequence[tuple[str, str]]]]  # cells of (text, mark)


@dataclass(frozen=True)
class Heatmap:
    """A table of counts by true label and answer, each cell as dark as its share of the row."""

    labels: Sequence[str]
    counts: Sequence[Sequence[int]]


@dataclass(frozen=True)
class Picture:
    """A figure as SVG."""

    name: str  # of the file, without .svg
    title: str
    svg: str


@dataclass(frozen=True)
class Fold:
    """A text that is shown on a click."""

    title: str
    text: str


Block = (
    Heading | Paragraph | Banner | Bullets | Contents | Grid | Examples | Heatmap | Picture | Fold
)
