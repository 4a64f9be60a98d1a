"""The server of the browser's tests with tiny real models, and the page before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.tasks.toys import Toy
from tests.web.conftest import write_journal
from tests.web.page.server import HOSTILE, Server, hostile_rows, pair_rows

if TYPE_CHECKING:  # the tests say what is missing where playwright is not installed
    from playwright.sync_api import Browser

    from tests.web.page.browser import Visit


@pytest.fixture(scope="session")
def shown(
    pair: Path,
    tiny: Path,
    by_heart: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Path]:
    """The folders that the browser's server shows."""
    folders = {"pair": pair, "discriminator": tiny}
    folders |= {name: by_heart(name) for name in ("classes", "joint", "tags", "choices")}
    root = tmp_path_factory.mktemp("shown")
    pairs = Toy("classify", "pairs.csv", pair_rows(), {"text_pair": "other"})
    pairs.learnt(tiny, root / "pairs")
    Toy("classify", "hostile.csv", hostile_rows()).learnt(tiny, root / HOSTILE)
    (root / "growing").mkdir()
    write_journal(root / "growing")
    return (
        folders
        | {"pairs": root / "pairs", "hostile": root / HOSTILE}
        | {"growing": root / "growing"}
    )


@pytest.fixture(scope="session")
def place(shown: dict[str, Path]) -> dict[str, int]:
    """The number of each model at the server."""
    return {name: index for index, name in enumerate(shown)}


@pytest.fixture(scope="session")
def server(shown: dict[str, Path]) -> Iterator[str]:
    process = Server(list(shown.values()))
    yield process.address
    process.stop()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from tests.web.page.browser import open_browser

    with open_browser() as opened:
        yield opened


@pytest.fixture
def visit(browser: Browser, server: str) -> Iterator[Callable[..., Visit]]:
    """Return a function that visits the server, as by a fresh browser with such options.
    What went wrong in it fails the test.
    """
    from tests.web.page.browser import Visit

    visits: list[Visit] = []

    def begin(address: str = server, **context: Any) -> Visit:
        visits.append(Visit(browser, address, **context))
        return visits[-1]

    yield begin
    for each in visits:
        each.context.close()
    for each in visits:
        each.check()
