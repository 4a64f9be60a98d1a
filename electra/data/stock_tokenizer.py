"""The rows that transformers' tokenizer of a folder makes, compared with ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from electra.data.sources import warn
from electra.data.wordpiece import Row, WordPiece, refuse_panics
from electra.escape import first_line

# What is compared: case, accents, digits, punctuation and a script without spaces.
TEXTS = ("Éva's CAFÉ 3.5 %", "a city: 东京")
SAMPLE_WORDS = 50  # of the vocabulary, as a third text
SHOWN = 40  # tokens of a row, in a message


@dataclass(frozen=True)
class RowDifference:
    """How the rows of transformers' tokenizer differ from ours; empty where they do not."""

    single: str
    pair: str
    stock_segments: list[int] | None  # of a pair; None where transformers cannot load it


def compare_rows(tokenizer: WordPiece, folder: Path, *, with_segments: bool) -> RowDifference:
    """Compare the rows of texts and of a pair with those of the tokenizer in a folder.

    Segments are compared where they are wanted; a tokenizer may leave them all out.
    """
    samples = sample_texts(tokenizer)
    try:
        with refuse_panics(str(folder)):
            stock = StockTokenizer(folder)
            rows = [stock.row(texts) for texts in samples]
    except Exception as error:  # transformers raises many types
        reason = f"it cannot be loaded: {type(error).__name__}: {first_line(error)}"
        return RowDifference(reason, "", None)
    differences = []
    for texts, theirs in zip(samples, rows, strict=True):
        ours = tokenizer.row(texts)
        differences.append(describe_difference(tokenizer, texts, theirs, ours))
    *singles, pair = differences
    if not pair and with_segments and any(theirs[1]) and theirs[1] != ours[1]:
        pair = "its token_type_ids are others"
    return RowDifference(next(filter(None, singles), ""), pair, theirs[1])


def warn_of_other_rows(tokenizer: WordPiece, folder: Path, names: Sequence[str]) -> None:
    """Warn where transformers' tokenizer makes other rows than ours of a model folder that we
    wrote, whose network has these inputs.
    """
    with_segments = "token_type_ids" in names
    found = compare_rows(tokenizer, folder, with_segments=with_segments)
    difference = found.single or found.pair
    if found.stock_segments is None:
        warn(f"{folder}: transformers' tokenizer of this folder was not compared: {found.single}")
        return
    if with_segments and not difference and not any(found.stock_segments or ()):
        difference = "it gives no token_type_ids"
    if difference:
        warn(
            f"{folder}: transformers' tokenizer of this folder makes other rows than electra, and "
            f"so its answers differ: {difference}"
        )


def describe_difference(tokenizer: WordPiece, texts: Sequence[str], theirs: Row, ours: Row) -> str:
    """Return the tokens of both rows, where they differ."""
    if theirs[0] == ours[0]:
        return ""
    found, expected = (" ".join(tokenizer.tokens(ids[:SHOWN])) for ids, _ in (theirs, ours))
    return f"of {' and '.join(map(repr, texts))[:80]} it makes {found}, and here {expected}"


def sample_texts(tokenizer: WordPiece) -> list[tuple[str, ...]]:
    """Return two texts, words of the vocabulary, and a pair."""
    words = sorted(filter(str.isalnum, tokenizer.backend_tokenizer.get_vocab()))
    sample = " ".join(words[:: max(1, len(words) // SAMPLE_WORDS)])
    return [*((text,) for text in (*TEXTS, sample)), TEXTS]


class StockTokenizer:
    """The tokenizer that transformers loads from a folder. It never runs code from there."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(
            str(folder), trust_remote_code=False, local_files_only=True
        )

    def row(self, texts: Sequence[str]) -> Row:
        """Return the row of a text or a pair; where it gives no token types, all are 0."""
        row = self.tokenizer(*texts, verbose=False)
        input_ids = list(row["input_ids"])
        return input_ids, list(row.get("token_type_ids") or [0] * len(input_ids))
