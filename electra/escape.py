"""Show text that others wrote, such as names and labels, as text: on a terminal, in Markdown, in
HTML, and in the name of a file.
"""

from __future__ import annotations

import hashlib
import html
import re
from collections.abc import Callable
from contextvars import ContextVar

# C0 without tab and newline, DEL, C1, separators of lines, what reorders text, half characters.
CONTROL = re.compile(r"[\0-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
PLAIN_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}")
MAX_NAME = 80  # characters; a file system takes 255 bytes
# What a message becomes before it is shown: in the API, keywords stand in it for flags.
reword: ContextVar[Callable[[str], str]] = ContextVar("reword", default=str)


def printable(text: str) -> str:
    r"""Replace characters that control a terminal, or reorder its text, by escapes such as \x1b."""
    return CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """Return text with every run of white space as one space, and its control characters shown."""
    return " ".join(printable(text).split())


def first_line(error: object) -> str:
    """Return the first line of another library's error: some print pages of advice below it."""
    return str(error).strip().partition("\n")[0]


def escape_html(text: str) -> str:
    """Escape text for HTML, also inside of a quoted attribute."""
    return html.escape(printable(text))


def escape_markdown(text: str) -> str:
    """Escape text so that Markdown shows it as it is, on one line."""
    line = re.sub(r"([\\`*_\[\]<>|~&$])", r"\\\1", one_line(text))
    # Nor may it begin a heading or an item of a list.
    return re.sub(r"^(\d*)([#+\-.)])(?=[\s#+\-.)]|$)", r"\1\\\2", line)


def file_name(text: str) -> str:
    """Return a text as a name for files and anchors: of a-z, 0-9, "." and "-".

    A text with other characters gets a hash, so that two of them have different names.
    """
    name = re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")[:MAX_NAME]
    if PLAIN_NAME.fullmatch(text):
        return name
    return f"{name}-{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:8]}".lstrip("-")
