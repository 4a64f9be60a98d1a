"""The data that `electra evaluate` scores on, shared by the command line and Python. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from electra.config import UserError

if TYPE_CHECKING:
    from electra.data.tables import Table
    from electra.tasks.task import AnyTask

StringList = Annotated[list[str] | None, Parameter(consume_multiple=True)]


@dataclass(frozen=True, kw_only=True)
class EvaluationData:
    """The data to score on.

    Parameters
    ----------
    data
        Folder with the official files in their official layout, or a name on the hub.
    dev
        Files to score on, instead of those in --data.
    split
        dev or test, where the test data has its answers.
    """

    data: str | None = None
    dev: StringList = None
    split: Literal["dev", "test"] = "dev"

    def __post_init__(self) -> None:
        if self.dev and (self.data or self.split != "dev"):
            raise UserError(
                "--dev names files; leave out --data and --split, which choose files in a folder"
            )

    def find_tables(self, task: AnyTask) -> Mapping[str, Sequence[Table]]:
        """Return the files of each part of the data."""
        from electra.data.tables import find_table

        if self.dev:
            return {"dev": [find_table(path) for path in self.dev]}
        if not self.data:
            raise UserError("give --data (a folder or hub name) or --dev (files)")
        files = task.locate(self.data)
        tables = {"dev": files.dev, "test": files.test}[self.split]
        if not tables:
            raise UserError(f"{self.data}: no {self.split} data there; name files with --dev")
        return tables
