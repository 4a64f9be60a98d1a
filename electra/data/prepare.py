"""Text files to shards in one go: a vocabulary of their own, then the rows. What is there already
is used again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from electra.config import SettingError, UserError
from electra.data.corpus import Progress
from electra.data.sharding import shard
from electra.data.sources import Report, warn
from electra.data.vocabulary import train_wordpiece
from electra.data.wordpiece import WordPiece


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """How text is cut. All but `length` matter only when vocabulary and shards are made from a
    corpus.
    """

    length: int = 128
    vocab_size: int = 30_522
    cased: bool = False
    keep_accents: bool = False
    held_out: float = 0.005

    def __post_init__(self) -> None:
        if self.length < 8:
            raise SettingError("length", "is too short for a sentence; use at least 8", self)
        if not 0 < self.held_out < 1:
            raise SettingError(
                "held_out", "is a share of the documents; use a number like 0.005", self
            )


def prepare(
    corpus: Sequence[str | Path],
    folder: Path,
    settings: DataConfig,
    *,
    tokenizer: Path | None = None,
    seed: int = 0,
    text_field: str = "text",
    stage: Callable[[str], Progress],
    report: Report = warn,
) -> Path:
    """Vocabulary and shards of a corpus under `folder`, for a recipe; returns where the shards are.

    `stage` is called with the name of each step of the work and gives whoever watches its progress.
    """
    try:
        if tokenizer is None:
            wordpiece = train_wordpiece(
                corpus,
                folder / "tokenizer",
                vocab_size=settings.vocab_size,
                lowercase=not settings.cased,
                keep_accents=settings.keep_accents,
                text_field=text_field,
                progress=stage("vocabulary"),
                report=report,
            )
        else:
            wordpiece = WordPiece.load(tokenizer)
        shard(
            corpus,
            tokenizer=wordpiece,
            output_dir=folder / "shards",
            length=settings.length,
            held_out=settings.held_out,
            seed=seed,
            text_field=text_field,
            progress=stage("shards"),
            report=report,
        )
    except UserError as error:
        if "--overwrite" not in str(error):
            raise
        raise UserError(
            f"{error} (this folder belongs to an earlier start: remove {folder}, or choose another "
            f"--output-dir)"
        ) from None
    return folder / "shards"
