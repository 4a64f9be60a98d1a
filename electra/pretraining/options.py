"""Where a pre-training run begins: its text or shards, its folder, and what it may continue or take
weights from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from electra.config import UserError
from electra.data.sources import check_outside_corpus


@dataclass(frozen=True, kw_only=True)
class PretrainOptions:
    """Where a run begins: its text or shards, its folder, and what it may continue or take weights
    from.
    """

    output_dir: Path
    corpus: Sequence[str | Path] | None = None
    data: Path | None = None
    tokenizer: Path | None = None
    text_field: str = "text"
    resume: str = "auto"
    overwrite: bool = False
    init_from: Path | None = None
    quiet: bool = False

    def __post_init__(self) -> None:
        if (self.corpus is None) == (self.data is None):
            raise UserError(
                "give either --corpus (text files) or --data (shards from `electra shard`)"
            )
        check_outside_corpus(self.output_dir, self.corpus or ())
        if self.init_from is not None and not self.init_from.is_dir():
            raise UserError(
                f"--init-from {self.init_from}: no such folder; name a run or a model's folder"
            )
        if self.init_from is not None and self.init_from.resolve() == self.output_dir.resolve():
            raise UserError(
                f"--init-from {self.init_from} is also the --output-dir, where it would be "
                "overwritten"
            )
        if self.data is not None and self.tokenizer is not None:
            raise UserError(
                "--tokenizer goes with --corpus; the shards of --data were cut with their own"
            )
