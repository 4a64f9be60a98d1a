"""The wording of messages, in one file: tests name a message and assert its type and keys."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent


@cache
def read_wording() -> dict[str, dict[str, str]]:
    return tomllib.loads((TESTS / "wording.toml").read_text(encoding="utf8"))


def wording_of(file: str) -> Callable[[str], str]:
    """Return the reader of one test file's section of wording.toml."""
    section = str(Path(file).relative_to(TESTS).with_suffix(""))
    return lambda name: read_wording()[section][name]
