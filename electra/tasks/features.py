"""What an encoder reads: examples as rows of ids, kept column by column, and batches of rows that
are equally long.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from electra.data.shuffle import random_key
from electra.data.wordpiece import WordPiece

Array = npt.NDArray[Any]
IGNORED = -100  # the target of a token that is not scored, and of padding; torch's own word for it
# sorted by length among themselves: large enough that hardly a token is padding, and still shuffled
POOL_BATCHES = 64


class TaskBatch(NamedTuple):
    """Rows for one pass, and their targets: [R] for rows, [R, T] for tokens."""

    input_ids: Tensor  # [R, T] int64
    token_type_ids: Tensor  # [R, T] 0 for the first segment, 1 for the second
    attention_mask: Tensor  # [R, T] False where padded
    labels: dict[str, Tensor]

    def to(self, device: torch.device) -> TaskBatch:
        input_ids, token_type_ids, attention_mask = (
            tensor.to(device, non_blocking=True) for tensor in self[:3]
        )
        return TaskBatch(
            input_ids,
            token_type_ids,
            attention_mask,
            {name: label.to(device, non_blocking=True) for name, label in self.labels.items()},
        )


@dataclass(slots=True)
class Row:
    """`[CLS] A [SEP] B [SEP]`: one row, the example it belongs to, and whatever the task's head
    must know of it.
    """

    example: int
    ids: Sequence[int]
    second: int | None = None  # where segment B begins
    values: dict[str, float] = field(default_factory=dict)  # one of each for the row
    tokens: dict[str, Sequence[int]] = field(default_factory=dict)  # one of each for every token
    was_cut: bool = False


@dataclass(frozen=True)
class Features:
    """Many rows, column by column: their tokens end to end, and where each row begins."""

    ids: Array  # int32 [tokens]
    begins: Array  # int64 [rows + 1]
    seconds: Array  # int32 [rows]
    examples: Array  # int64 [rows]
    cut: Array  # bool [rows]: text that did not fit was left out
    values: dict[str, Array]
    tokens: dict[str, Array]
    together: int = 1  # rows that stay in one batch, in this order: the options of one choice

    @classmethod
    def of(cls, rows: Iterable[Row], *, together: int = 1) -> Features:
        found = list(rows)
        lengths = [len(row.ids) for row in found]
        first = found[0] if found else Row(0, [])
        return cls(
            ids=np.fromiter(
                (i for row in found for i in row.ids), dtype=np.int32, count=sum(lengths)
            ),
            begins=np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64),
            seconds=np.array(
                [
                    n if row.second is None else row.second
                    for row, n in zip(found, lengths, strict=True)
                ],
                dtype=np.int32,
            ),
            examples=np.array([row.example for row in found], dtype=np.int64),
            cut=np.array([row.was_cut for row in found], dtype=bool),
            values={name: column([row.values[name] for row in found]) for name in first.values},
            tokens={
                name: np.fromiter(
                    (v for row in found for v in row.tokens[name]),
                    dtype=np.int64,
                    count=sum(lengths),
                )
                for name in first.tokens
            },
            together=together,
        )

    def __len__(self) -> int:
        """Units of batching: rows, or as many rows as stay together."""
        return len(self.examples) // self.together

    @cached_property
    def lengths(self) -> Array:
        """Of each unit: its longest row."""
        rows: Array = np.diff(self.begins)
        return rows.reshape(len(self), self.together).max(axis=1) if len(self) else rows

    @cached_property
    def sizes(self) -> Array:
        """Of each unit: the tokens in all its rows."""
        tokens: Array = np.diff(self.begins).reshape(len(self), self.together).sum(axis=1)
        return tokens

    def take(self, units: Array, *, multiple: int = 1, most: int | None = None) -> TaskBatch:
        """A batch as wide as its longest row, or the next multiple, but for a network that reads no
        more than `most`.
        """
        rows = (np.asarray(units)[:, None] * self.together + np.arange(self.together)).reshape(-1)
        lengths = self.begins[rows + 1] - self.begins[rows]
        width = -(-int(lengths.max()) // multiple) * multiple
        width = width if most is None else min(width, most)
        places = np.arange(width)
        attention_mask = places < lengths[:, None]
        source = np.minimum(self.begins[rows][:, None] + places, len(self.ids) - 1)
        token_type_ids = (places >= self.seconds[rows][:, None]) & attention_mask
        labels = {name: torch.from_numpy(values[rows]) for name, values in self.values.items()}
        labels |= {
            name: torch.from_numpy(np.where(attention_mask, values[source], IGNORED))
            for name, values in self.tokens.items()
        }
        return TaskBatch(
            input_ids=torch.from_numpy(
                np.where(attention_mask, self.ids[source], 0).astype(np.int64)
            ),
            token_type_ids=torch.from_numpy(token_type_ids.astype(np.int64)),
            attention_mask=torch.from_numpy(attention_mask),
            labels=labels,
        )

    def save(self, path: Path) -> None:
        from safetensors.numpy import save_file

        named = {
            "ids": self.ids,
            "begins": self.begins,
            "seconds": self.seconds,
            "examples": self.examples,
            "cut": self.cut,
            "together": np.array([self.together]),
        }
        named |= {f"values.{name}": array for name, array in self.values.items()}
        named |= {f"tokens.{name}": array for name, array in self.tokens.items()}
        save_file(named, path)

    @classmethod
    def load(cls, path: Path) -> Features:
        from safetensors.numpy import load_file

        named = load_file(path)
        plain = {name: named[name] for name in ("ids", "begins", "seconds", "examples", "cut")}
        values, tokens = (
            {
                name.removeprefix(kind): array
                for name, array in named.items()
                if name.startswith(kind)
            }
            for kind in ("values.", "tokens.")
        )
        return cls(**plain, values=values, tokens=tokens, together=int(named["together"][0]))


def column(values: Sequence[float]) -> Array:
    """Whole numbers stay whole: a class is an index, a score is not."""
    whole = all(isinstance(value, (int, np.integer)) for value in values)
    return np.array(values, dtype=np.int64 if whole else np.float32)


def pair(
    tokenizer: WordPiece, first: Sequence[int], second: Sequence[int] | None, *, length: int
) -> tuple[list[int], int | None, bool]:
    """(`[CLS] A [SEP] B [SEP]`, where B begins, whether something was cut): the longer one gives
    way first.
    """
    room = length - (2 if second is None else 3)
    if second is None:
        return [tokenizer.cls, *first[:room], tokenizer.sep], None, len(first) > room
    kept = len(first), len(second)
    if sum(kept) > room:
        short = min(min(kept), room // 2)
        kept = (room - short, short) if kept[0] > kept[1] else (short, room - short)
    ids = [tokenizer.cls, *first[: kept[0]], tokenizer.sep, *second[: kept[1]], tokenizer.sep]
    return ids, kept[0] + 2, len(first) + len(second) > room


# ---- batches -------------------------------------------------------------------------------------


def epoch_order(lengths: Array, *, batch_size: int, seed: int, epoch: int) -> list[Array]:
    """The batches of one epoch: shuffled, then sorted by length within pools, then shuffled again
    as batches.

    A function of the seed and the epoch alone, so a resumed run needs nothing but its step. The
    last batch is smaller.
    """
    rng = np.random.Generator(np.random.PCG64(random_key(seed, "epoch", epoch)))
    order = rng.permutation(len(lengths))
    pool = batch_size * POOL_BATCHES
    batches = []
    for start in range(0, len(order), pool):
        chosen = order[start : start + pool]
        chosen = chosen[np.argsort(lengths[chosen], kind="stable")]
        batches += [chosen[at : at + batch_size] for at in range(0, len(chosen), batch_size)]
    return [batches[i] for i in rng.permutation(len(batches))]


def by_length(lengths: Array, *, tokens: int) -> list[Array]:
    """All units once, longest first, in batches of about so many tokens: for reading, where order
    does not matter.
    """
    order, batches = np.argsort(-lengths, kind="stable"), []
    while len(order):
        count = max(1, tokens // max(1, int(lengths[order[0]])))
        batches.append(order[:count])
        order = order[count:]
    return batches
