"""The lock on a run folder, which the main process holds for all processes of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from electra.config import UserError
from electra.file_lock import folder_lock
from electra.runs.run_dir import check_output_dir


class Processes(Protocol):
    """The processes of a run, of which the main one writes."""

    @property
    def is_main(self) -> bool: ...
    def broadcast(self, value: Any) -> Any: ...


@contextlib.contextmanager
def run_lock(folder: Path, world: Processes) -> Iterator[None]:
    """Hold a run folder; raise UserError in every process where another command holds it."""
    check_output_dir(folder)
    refusal = None
    with contextlib.ExitStack() as held:
        if world.is_main:
            try:
                held.enter_context(folder_lock(folder))
            except UserError as error:
                refusal = str(error)
        if refusal := world.broadcast(refusal):
            raise UserError(refusal)
        try:
            yield
        except FileNotFoundError:
            if world.is_main or folder.exists():
                raise
            raise UserError(
                f"{folder} is gone: the main process has refused this run; its message says why"
            ) from None
