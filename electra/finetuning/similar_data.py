"""Pairs and triplets of texts: read from tables, and how well vectors tell them apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from electra.config import UserError
from electra.data.tables import Table, parse_number, read_rows, require_column, require_text
from electra.finetuning.similar_settings import SimilarConfig
from electra.tasks.features import Array
from electra.tasks.metrics import pearson, spearmanr
from electra.tasks.texts import refuse_same_column

Form = Literal["pairs", "scores", "triplets"]
METRICS: dict[Form, str] = {
    "pairs": "retrieval_accuracy",
    "scores": "spearmanr",
    "triplets": "triplet_accuracy",
}
DEFAULTS = SimilarConfig()
LABEL = "label"  # a customary column, of what a pair is: MRPC, QQP, PAWS


@dataclass(frozen=True)
class Pairs:
    """Texts that belong together, with scores or with texts that do not."""

    form: Form
    texts: list[str]
    others: list[str]
    negatives: list[str]
    scores: list[float]

    def __len__(self) -> int:
        return len(self.texts)

    def columns(self) -> dict[str, Sequence[Any]]:
        """Return what sentence-transformers trains on, in the order that its losses take."""
        columns: dict[str, Sequence[Any]] = {"anchor": self.texts, "positive": self.others}
        if self.form == "triplets":
            columns["negative"] = self.negatives
        if self.form == "scores":
            columns["score"] = self.scores
        return columns

    def select(self, indices: Sequence[int]) -> Pairs:
        """Return some of the pairs."""
        lists = (self.texts, self.others, self.negatives, self.scores)
        chosen: Any = ([values[index] for index in indices if values] for values in lists)
        return Pairs(self.form, *chosen)

    def baseline(self) -> float:
        """Return the metric of vectors that know nothing."""
        return {"pairs": 1 / max(1, len(self)), "scores": 0.0, "triplets": 0.5}[self.form]

    def evaluate(self, embed: Callable[[Sequence[str]], Array]) -> dict[str, float]:
        """Return the scores of vectors, compared by their cosines."""
        first, second = unit_vectors(embed(self.texts)), unit_vectors(embed(self.others))
        cosines = (first * second).sum(axis=1)
        if self.form == "scores":
            true = np.array(self.scores)
            return {"spearmanr": spearmanr(true, cosines), "pearson": pearson(true, cosines)}
        if self.form == "triplets":
            others = (first * unit_vectors(embed(self.negatives))).sum(axis=1)
            return {"triplet_accuracy": float((cosines > others).mean())}
        # Of each text, how many other texts are nearer than its own. Equal texts are no mistake.
        ranks = ((first @ second.T) > cosines[:, None] + 1e-6).sum(axis=1)
        return {
            "retrieval_accuracy": float((ranks == 0).mean()),
            "mrr": float((1 / (1 + ranks)).mean()),
        }


def unit_vectors(vectors: Array) -> Array:
    """Return vectors of length 1."""
    scaled: Array = vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(min=1e-12)
    return scaled


def read_pairs(tables: Sequence[Table], config: SimilarConfig, *, is_dev: bool = False) -> Pairs:
    """Read the pairs of some tables; the columns of the first row say what all of them hold."""
    pairs: Pairs | None = None
    for table in tables:
        for where, row in read_rows(table):
            if pairs is None:
                pairs = Pairs(find_form(row, config, where, is_dev=is_dev), [], [], [], [])
            add_row(pairs, row, config, where)
    if pairs is None:
        raise UserError(f"{', '.join(map(str, tables))}: no examples")
    return pairs


def find_form(row: Mapping[str, Any], config: SimilarConfig, where: str, *, is_dev: bool) -> Form:
    """Return what a row holds: a triplet, a pair with a score, or a pair.

    Raise UserError where it lacks a column that was named. Dev data may hold another form than the
    training data, and so lack a column of that.
    """
    if config.text == config.text_pair:
        refuse_same_column(where, config.text, "--text", "--text-pair")
    form: Form = "pairs"
    if config.negative in row:
        form = "triplets"
    elif config.score in row:
        form = "scores"
    if form == "pairs" or not is_dev:
        for field in ("negative", "score"):
            column = getattr(config, field)
            if column != getattr(DEFAULTS, field):
                require_column(row, column, where, flag=f"--{field}")
    if form == "pairs" and LABEL in row and LABEL not in (config.text, config.text_pair):
        raise UserError(
            f"{where}: a column {LABEL!r} is not read, and without it the texts of every row would "
            f"be taken for similar ones; --score {LABEL} reads it as the similarity of the pair, "
            "from 0 to 1; or keep only the rows of similar texts, and remove that column"
        )
    return form


def add_row(pairs: Pairs, row: Mapping[str, Any], config: SimilarConfig, where: str) -> None:
    """Add the texts of a row; raise UserError where a column is missing or empty."""
    second = config.text_pair
    if second not in row and "positive" in row:
        second = "positive"
    pairs.texts.append(read_text(row, config.text, where))
    pairs.others.append(read_text(row, second, where))
    if pairs.form == "triplets":
        pairs.negatives.append(read_text(row, config.negative, where))
    if pairs.form == "scores":
        score = parse_number(row.get(config.score))
        if score is None or not 0 <= score <= 1:
            raise UserError(
                f"{where}: {config.score} is {row.get(config.score)!r}; a score is a number from 0 "
                "(not similar) to 1. Divide other scales by their largest score"
            )
        pairs.scores.append(score)


def read_text(row: Mapping[str, Any], column: str, where: str) -> str:
    text = require_text(row, column, where)
    if not text.strip():
        raise UserError(f"{where}: {column} is empty; remove the row")
    return text
