"""The options of a pre-training run that are not settings of its recipe. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from electra.config import UserError
from electra.data.sources import DocumentUnit, check_outside_corpus
from electra.model.card_content import CardContent
from electra.shipped import resolve_shipped, suggest_shipped

ResumeSchedule = Literal["same", "stretch"]


@dataclass(frozen=True, kw_only=True)
class PretrainOptions:
    """Options of a pre-training run besides its recipe and its run folder.

    Parameters
    ----------
    corpus
        Text to train on. The vocabulary and the shards are written to OUTPUT_DIR/data unless they
        are there already.
    data
        Shards from `electra shard`, instead of a corpus.
    tokenizer
        With a corpus: use this tokenizer folder instead of training a vocabulary.
    text_field
        With a corpus: field or column that holds the text of rows, in all files but .txt; a number,
        counted from 0, names a column of CSV and TSV without a header line.
    document
        With a corpus: what is a document in .txt: what blank lines separate, or the whole file.
    resume
        auto (continue the run in the run folder, if there is one), never, or a checkpoint folder.
    resume_schedule
        When a run continues with other --max-steps: same (the default) refuses a number of steps
        with which the learning rate would rise, stretch follows the schedule of the new number.
    overwrite
        With resume set to never: start over in a folder that holds a run.
    init_from
        Start from the weights in a run folder, or in an ELECTRA or ModernBERT folder of
        transformers, with a fresh optimizer.
    language
        Language of the text, for the model cards: an ISO 639 code such as de, or several (de,en).
    license
        Licence of the models, for their cards: an identifier that the hub knows, such as apache-2.0
        or cc-by-sa-4.0, or other.
    quiet
        Print no progress.
    """

    corpus: Sequence[str | Path] | None = None
    data: Path | None = None
    tokenizer: Path | None = None
    text_field: str = "text"
    document: DocumentUnit = "blank-line"
    resume: str = "auto"
    resume_schedule: ResumeSchedule = "same"
    overwrite: bool = False
    init_from: Path | None = None
    language: str | None = None
    license: str | None = None
    quiet: bool = False

    def __post_init__(self) -> None:
        # Callers from Python may write paths as strings, and one path without a list.
        if isinstance(self.corpus, (str, PathLike)):
            object.__setattr__(self, "corpus", [self.corpus])
        for name in ("data", "tokenizer", "init_from"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, Path(value))
        if self.init_from is not None:
            object.__setattr__(self, "init_from", resolve_shipped(self.init_from))
        CardContent(self.language, self.license)  # refuses what no card can state

    def check(self, output_dir: Path) -> None:
        """Raise UserError where options contradict each other or the run folder."""
        if (self.corpus is None) == (self.data is None):
            raise UserError(
                "give either --corpus (text files) or --data (shards from `electra shard`)"
            )
        if self.corpus is not None and not self.corpus:
            raise UserError("name at least one file, folder or glob of text")
        check_outside_corpus(output_dir, self.corpus or ())
        if self.init_from is not None:
            check_init_from(self.init_from, output_dir)
        if self.data is not None and self.tokenizer is not None:
            raise UserError(
                "--tokenizer goes with --corpus; the shards of --data were cut with their own"
            )


@dataclass(frozen=True, kw_only=True)
class RecipeOverrides:
    """Options that override settings of a recipe.

    Parameters
    ----------
    max_steps
        Steps to train for; the warm-up stays as it is.
    budget
        Share of the recipe's steps to train for, as 1/16. A shorter run keeps the recipe's warm-up,
        up to a sixth of its steps; a longer one scales it.
    seed
        Seed of everything that is random.
    config
        TOML files that change settings of the recipe; later files override earlier ones, and
        flags override files.
    """

    max_steps: int | None = None
    budget: str | None = None
    seed: int | None = None
    config: Annotated[Sequence[Path] | None, Parameter(consume_multiple=True)] = None

    def flags(self) -> list[str]:
        """Return the options that are settings of the recipe as its flags."""
        flags = []
        for name, value in {"--max-steps": self.max_steps, "--seed": self.seed}.items():
            if value is not None:
                flags += [name, str(value)]
        return flags


def check_init_from(init_from: Path, output_dir: Path) -> None:
    """Raise UserError where `--init-from` is no folder, or is the run folder itself."""
    if not init_from.is_dir():
        raise UserError(
            f"--init-from {init_from}: no such folder; name a run or a model's folder"
            f"{suggest_shipped(init_from)}"
        )
    if init_from.resolve() == output_dir.resolve():
        raise UserError(
            f"--init-from {init_from} is also the --output-dir, where it would be overwritten"
        )
