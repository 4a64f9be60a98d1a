"""What a report says, without Markdown's escapes."""

from __future__ import annotations

from collections.abc import Iterable

from electra.reports.blocks import Block
from electra.reports.markdown import render_markdown


def text_of(blocks: Iterable[Block]) -> str:
    return render_markdown(blocks).replace("\\", "")
