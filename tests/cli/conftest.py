"""Commands of a run that takes a second, and what they say when they fail."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from electra.__main__ import main
from tests.conftest import toy_flags

QUICK = {
    "--batch-size": "4",
    "--max-steps": "4",
    "--warmup-steps": "2",
    "--eval-steps": "4",
    "--eval-rows": "8",
    "--save-steps": "2",
}


def settings(**changed: object) -> list[str]:
    """Flags of a run that takes a second; a double underscore stands for a dot."""
    flags = {
        "--" + name.replace("__", ".").replace("_", "-"): str(value)
        for name, value in changed.items()
    }
    return toy_flags(QUICK | flags)


def pretrain_argv(
    folder: Path, *more: object, recipe: str = "tiny", data: Path | None = None, **changed: object
) -> list[str]:
    source = [] if data is None else ["--data", data]
    return [
        "pretrain",
        recipe,
        *settings(**changed),
        "--quiet",
        *map(str, [*source, "--output-dir", folder, *more]),
    ]


@pytest.fixture(scope="session")
def finished(toy_shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps. Tests that change it take a copy."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    assert main(pretrain_argv(folder, data=toy_shards)) == 0
    return folder


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def complaint(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must fail, and return its one message."""

    def of(*words: object, code: int = 2) -> str:
        capsys.readouterr()
        assert main([str(word) for word in words]) == code
        message = capsys.readouterr().err
        assert message.count("error: ") == 1, message
        assert "Traceback" not in message
        return message[message.index("error: ") + len("error: ") :].strip()

    return of
