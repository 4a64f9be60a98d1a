"""Options of `electra vocab` and `electra shard`, shared by the command line and Python."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from electra.config import Layer, UserError
from electra.data.sources import DocumentUnit
from electra.settings import differing_keys

MIN_VOCAB_SIZE = 100
MIN_LENGTH, MAX_LENGTH = 8, 2**16 - 1  # the ends of segments are stored as uint16


@dataclass(frozen=True, kw_only=True, slots=True)
class VocabularyOptions:
    """Options for training a WordPiece vocabulary.

    Parameters
    ----------
    vocab_size
        Number of entries.
    cased
        Distinguish upper and lower case.
    keep_accents
        Distinguish é from e in Latin text too. Other scripts always keep accents and marks.
    text_field
        Field or column that holds the text of rows, in all files but .txt; a number, counted
        from 0, names a column of CSV and TSV without a header line.
    overwrite
        Replace a vocabulary that is there already.
    """

    vocab_size: int = 30522
    cased: bool = False
    keep_accents: bool = False
    text_field: str = "text"
    overwrite: bool = False

    def __post_init__(self) -> None:
        if not MIN_VOCAB_SIZE <= self.vocab_size < 2**31:
            raise UserError(
                f"--vocab-size {self.vocab_size} must be at least {MIN_VOCAB_SIZE}; letters alone "
                "need about that many entries"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardOptions:
    """Options for cutting a corpus into shards.

    The number of a document seeds its cuts. Without `by_file` documents are numbered through the
    corpus: every part reads all of it and cuts only its own blocks, which suits a few parts of any
    files. With `by_file` they are numbered within their file, and a part reads only its own files.

    Parameters
    ----------
    length
        Tokens in a row.
    held_out
        Share of the documents set aside for measuring.
    part
        i/N: only this part of the work, for many machines. On the command line, the default is
        SLURM_ARRAY_TASK_ID of SLURM_ARRAY_TASK_COUNT.
    by_file
        With --part: read only the files of this part. Its rows differ from those without --by-file,
        and are the same for any N.
    seed
        Decides cuts and held-out documents.
    workers
        Processes; the result does not depend on it.
    text_field
        Field or column that holds the text of rows, in all files but .txt; a number, counted
        from 0, names a column of CSV and TSV without a header line.
    document
        What is a document in .txt: what blank lines separate, or the whole file.
    overwrite
        Start over in a folder that holds other shards.
    """

    length: int = 128
    held_out: float = 0.005
    part: str | None = None
    by_file: bool = False
    seed: int = 0
    workers: int | None = None
    text_field: str = "text"
    document: DocumentUnit = "blank-line"
    overwrite: bool = False

    def __post_init__(self) -> None:
        if not MIN_LENGTH <= self.length <= MAX_LENGTH:
            raise UserError(
                f"--length {self.length} must be between {MIN_LENGTH} and {MAX_LENGTH} tokens; "
                "128 and 512 are usual"
            )
        if not 0 <= self.held_out < 1:
            raise UserError(
                f"--held-out {self.held_out} is a share of the documents; it must be at least 0 "
                "and below 1"
            )
        if self.workers is not None and self.workers < 1:
            raise UserError(f"--workers {self.workers} must be at least 1")
        if self.document not in get_args(DocumentUnit):
            units = " or ".join(get_args(DocumentUnit))
            raise UserError(f"--document {self.document} must be {units}")
        number, total = self.part_numbers
        if not 1 <= number <= total:
            raise UserError(
                f"part {number}/{total} does not exist; parts are counted from 1, as in "
                f"1/{max(1, total)}"
            )

    @property
    def part_numbers(self) -> tuple[int, int]:
        """Return i and N of the part, or 1 and 1 for the whole corpus."""
        if self.part is None:
            return 1, 1
        match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", self.part)
        if match is None:
            raise UserError(f"--part {self.part}: write it as i/N, for example 1/8")
        return int(match[1]), int(match[2])

    @property
    def reads_some_files(self) -> bool:
        """Whether this part reads its own files alone, which may hold no text."""
        return self.by_file and self.part_numbers[1] > 1


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareOptions:
    """Options for making the vocabulary and the shards of a recipe in one go.

    Parameters
    ----------
    tokenizer
        Tokenizer folder to use instead of training a vocabulary.
    text_field
        Field or column that holds the text of rows, in all files but .txt; a number, counted
        from 0, names a column of CSV and TSV without a header line.
    document
        What is a document in .txt: what blank lines separate, or the whole file.
    seed
        Decides cuts and held-out documents.
    """

    tokenizer: Path | None = None
    text_field: str = "text"
    document: DocumentUnit = "blank-line"
    seed: int = 0


class OtherSettingsError(UserError):
    """A folder holds a result of another text, or made with other settings."""

    def __init__(self, problem: str, remedy: str) -> None:
        self.problem = problem
        super().__init__(f"{problem}; {remedy}")


def describe_changes(current: Layer, saved: Layer) -> str:
    """Return which settings differ from those that were saved with a result, or an empty string."""
    changes = []
    for key in differing_keys(current, saved):
        if key == "inputs":
            changes.append("the text is another")
        else:
            changes.append(f"{key} was {saved.get(key)!r}, now {current.get(key)!r}")
    return "; ".join(changes)
