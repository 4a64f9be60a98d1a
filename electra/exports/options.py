"""The options of `electra export`, shared by the command line and Python. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Annotated, Literal

from cyclopts import Parameter

from electra.config import UserError

Format = Literal["onnx", "sentence-transformers"]
Paths = Annotated[
    Sequence[str | PathLike[str]], Parameter(consume_multiple=True, show_default=False)
]


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Options of an export besides its model, its format and its folder.

    Parameters
    ----------
    int8
        onnx: also write model.int8.onnx, whose weights have 8 bits, and measure what that costs.
    dev
        onnx: labelled files of the model's task, to score the exported model on.
    pool
        sentence-transformers: mean over the tokens, or cls. The default is mean, or what the model
        states.
    normalize
        sentence-transformers: scale each vector to length 1.
    length
        sentence-transformers: tokens at most. The default is the number of the model's positions.
    overwrite
        Replace an earlier export in the folder.
    """

    int8: bool = False
    dev: Paths = ()
    pool: Literal["mean", "cls"] | None = None
    normalize: Annotated[bool | None, Parameter(negative="--no-normalize")] = None
    length: int | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.dev, (str, PathLike)):
            object.__setattr__(self, "dev", [self.dev])

    def check(self, to: str) -> None:
        """Raise UserError for an option that another format has."""
        owned = {
            "onnx": {"--int8": self.int8, "--dev": bool(self.dev)},
            "sentence-transformers": {
                "--pool": self.pool is not None,
                "--normalize": self.normalize is not None,
                "--length": self.length is not None,
            },
        }
        for owner, flags in owned.items():
            for flag, is_given in flags.items():
                if is_given and owner != to:
                    raise UserError(f"{flag} goes with --to {owner}, not with --to {to}")


DEFAULTS = ExportOptions()
