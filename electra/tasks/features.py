"""Features: examples as rows of token ids, stored column by column, and their batches."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from electra import atomic
from electra.data.shuffle import permutation
from electra.data.wordpiece import WordPiece

Array = npt.NDArray[Any]
Item = TypeVar("Item")
CHECKSUM = "checksum"  # in the metadata of a file of features
IGNORE_INDEX = -100  # the label of padding and of tokens that are not scored, as in torch
# Batches whose rows are sorted by length among themselves: enough that hardly a token is padding.
POOL_BATCHES = 64
# Of an epoch, so that which examples meet in a batch stays random in small data sets too.
MIN_POOLS = 8


class TaskBatch(NamedTuple):
    """The rows of one forward pass, and their labels: [R] for rows (several: [R, L]), [R, T] for
    tokens.
    """

    input_ids: Tensor  # [R, T] int64
    token_type_ids: Tensor  # [R, T] 0 for the first segment, 1 for the second
    attention_mask: Tensor  # [R, T] False where padded
    labels: dict[str, Tensor]

    def to(self, device: torch.device) -> TaskBatch:
        return TaskBatch(
            input_ids=self.input_ids.to(device, non_blocking=True),
            token_type_ids=self.token_type_ids.to(device, non_blocking=True),
            attention_mask=self.attention_mask.to(device, non_blocking=True),
            labels={
                name: label.to(device, non_blocking=True) for name, label in self.labels.items()
            },
        )


@dataclass(slots=True)
class Row:
    """One row, `[CLS] A [SEP] B [SEP]`, with the index of its example and its labels."""

    example: int
    input_ids: Sequence[int]
    second_start: int | None = None  # index of the first token of segment B
    # a number for each name, or a list of numbers
    row_labels: dict[str, Any] = field(default_factory=dict)
    token_labels: dict[str, Sequence[int]] = field(default_factory=dict)  # a value for every token
    truncated: bool = False


@dataclass(frozen=True)
class Features:
    """The rows of many examples, column by column: all tokens end to end, and each row's offset.

    A unit of batching is one row, or the `num_choices` rows of one multiple-choice question.
    """

    input_ids: Array  # int32 [tokens]
    offsets: Array  # int64 [rows + 1]
    second_starts: Array  # int32 [rows]; the row's length where it has no segment B
    examples: Array  # int64 [rows]: the index of the row's example
    truncated: Array  # bool [rows]: text that did not fit was left out
    row_labels: dict[str, Array]
    token_labels: dict[str, Array]
    num_choices: int = 1

    @classmethod
    def from_rows(cls, rows: Iterable[Row], *, num_choices: int = 1) -> Features:
        rows = list(rows)
        lengths = [len(row.input_ids) for row in rows]
        first = rows[0] if rows else Row(0, [])
        row_labels, token_labels = {}, {}
        for name in first.row_labels:
            row_labels[name] = label_array([row.row_labels[name] for row in rows])
        for name in first.token_labels:
            columns = (row.token_labels[name] for row in rows)
            token_labels[name] = concatenate(columns, np.int64, sum(lengths))
        return cls(
            input_ids=concatenate((row.input_ids for row in rows), np.int32, sum(lengths)),
            offsets=np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64),
            second_starts=np.array([second_start(row) for row in rows], dtype=np.int32),
            examples=np.array([row.example for row in rows], dtype=np.int64),
            truncated=np.array([row.truncated for row in rows], dtype=bool),
            row_labels=row_labels,
            token_labels=token_labels,
            num_choices=num_choices,
        )

    def __len__(self) -> int:
        """Return the number of units."""
        return len(self.examples) // self.num_choices

    @cached_property
    def lengths(self) -> Array:
        """The length of each unit's longest row."""
        lengths: Array = np.diff(self.offsets)
        if len(self):
            lengths = lengths.reshape(len(self), self.num_choices).max(axis=1)
        return lengths

    @cached_property
    def token_counts(self) -> Array:
        """The number of tokens in all rows of each unit."""
        counts: Array = np.diff(self.offsets).reshape(len(self), self.num_choices).sum(axis=1)
        return counts

    def collate(
        self, units: Array, *, pad_to_multiple_of: int = 1, max_length: int | None = None
    ) -> TaskBatch:
        """Build the batch of these units, padded to the next multiple up to `max_length`."""
        choices = np.arange(self.num_choices)
        rows = (np.asarray(units)[:, None] * self.num_choices + choices).reshape(-1)
        lengths = self.offsets[rows + 1] - self.offsets[rows]
        width = -(-int(lengths.max()) // pad_to_multiple_of) * pad_to_multiple_of
        if max_length is not None:
            width = min(width, max_length)
        positions = np.arange(width)
        attention_mask = positions < lengths[:, None]
        source = np.minimum(self.offsets[rows][:, None] + positions, len(self.input_ids) - 1)
        token_type_ids = (positions >= self.second_starts[rows][:, None]) & attention_mask
        input_ids = np.where(attention_mask, self.input_ids[source], 0)
        labels = {name: torch.from_numpy(values[rows]) for name, values in self.row_labels.items()}
        for name, values in self.token_labels.items():
            padded = np.where(attention_mask, values[source], IGNORE_INDEX)
            labels[name] = torch.from_numpy(padded)
        return TaskBatch(
            input_ids=torch.from_numpy(input_ids.astype(np.int64)),
            token_type_ids=torch.from_numpy(token_type_ids.astype(np.int64)),
            attention_mask=torch.from_numpy(attention_mask),
            labels=labels,
        )

    def save(self, path: Path) -> None:
        """Write a safetensors file with a checksum, which `load` reads."""
        from safetensors.numpy import save_file

        arrays = {
            "input_ids": self.input_ids,
            "offsets": self.offsets,
            "second_starts": self.second_starts,
            "examples": self.examples,
            "truncated": self.truncated,
            "num_choices": np.array([self.num_choices]),
        }
        arrays |= {f"row_labels.{name}": array for name, array in self.row_labels.items()}
        arrays |= {f"token_labels.{name}": array for name, array in self.token_labels.items()}
        with atomic.default_mode(path):
            save_file(arrays, path, metadata={CHECKSUM: checksum(arrays)})

    @classmethod
    def load(cls, path: Path) -> Features:
        """Read what `save` wrote; raise ValueError where the content is not the same."""
        from safetensors import safe_open

        with safe_open(path, framework="np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            written = (file.metadata() or {}).get(CHECKSUM)
        if checksum(arrays) != written:
            raise ValueError(f"{path}: its checksum is not the one it was written with")
        return cls(
            input_ids=arrays["input_ids"],
            offsets=arrays["offsets"],
            second_starts=arrays["second_starts"],
            examples=arrays["examples"],
            truncated=arrays["truncated"],
            row_labels=without_prefix(arrays, "row_labels."),
            token_labels=without_prefix(arrays, "token_labels."),
            num_choices=int(arrays["num_choices"][0]),
        )


def checksum(arrays: Mapping[str, Array]) -> str:
    """Return a hash of the names, types, shapes and values of arrays."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(repr((name, array.dtype.str, array.shape)).encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def concatenate(sequences: Iterable[Sequence[int]], dtype: npt.DTypeLike, count: int) -> Array:
    return np.fromiter(chain.from_iterable(sequences), dtype=dtype, count=count)


def second_start(row: Row) -> int:
    """Return where segment B begins; where there is none, the row's length."""
    if row.second_start is None:
        return len(row.input_ids)
    return row.second_start


def label_array(values: Sequence[float | Sequence[float]]) -> Array:
    """Return int64 for class indices, float32 for scores [rows] and indicators [rows, labels]."""
    if all(isinstance(value, (int, np.integer)) for value in values):
        return np.array(values, dtype=np.int64)
    return np.array(values, dtype=np.float32)


def without_prefix(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


def encode_pair(
    example: int,
    tokenizer: WordPiece,
    first: Sequence[int],
    second: Sequence[int] | None = None,
    *,
    length: int,
) -> Row:
    """Build `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`, truncated to `length`, the longer first."""
    if second is None:
        room = length - 2
        ids = [tokenizer.cls, *first[:room], tokenizer.sep]
        return Row(example, ids, truncated=len(first) > room)
    room = length - 3
    kept = len(first), len(second)
    if sum(kept) > room:
        short = min(min(kept), room // 2)
        kept = (room - short, short) if kept[0] > kept[1] else (short, room - short)
    ids = [tokenizer.cls, *first[: kept[0]], tokenizer.sep, *second[: kept[1]], tokenizer.sep]
    return Row(example, ids, kept[0] + 2, truncated=len(first) + len(second) > room)


def split_windows(
    first: Sequence[int], second: Sequence[int] | None, *, length: int
) -> list[tuple[Sequence[int], Sequence[int] | None]]:
    """Split a text or pair that does not fit in a row into windows of its longer text.

    Neighbours share a quarter of a window, so that a phrase at a border is whole in one of them. A
    shorter text stands in every row, cut to half of it.
    """
    if second is None:
        return [(part, None) for part in overlapping_parts(first, length - 2)]
    room = length - 3
    if len(first) + len(second) <= room:
        return [(first, second)]
    if len(first) > len(second):
        kept = second[: room // 2]
        return [(part, kept) for part in overlapping_parts(first, room - len(kept))]
    kept = first[: room // 2]
    return [(kept, part) for part in overlapping_parts(second, room - len(kept))]


def overlapping_parts(ids: Sequence[int], size: int) -> list[Sequence[int]]:
    """Return parts of at most `size` that share a quarter, or more at the end."""
    parts = []
    start, step = 0, max(1, size - size // 4)
    while start + size < len(ids):
        parts.append(ids[start : start + size])
        start += step
    parts.append(ids[max(0, len(ids) - size) :])
    return parts


# ---- batches -------------------------------------------------------------------------------------


def epoch_batches(
    lengths: Array, *, batch_size: int, seed: int, epoch: int, by_length: bool = True
) -> list[Array]:
    """Return the batches of one epoch: shuffled, sorted by length within pools, shuffled again.

    Unless `by_length`, a pool is one batch. The batches depend on the seed and the epoch alone, so
    a resumed run needs nothing but its step. One batch may be smaller than the others. NumPy's
    generator may change with its version, our `permutation` does not.
    """
    order = permutation(len(lengths), seed, "epoch", epoch)
    pool_size = batch_size
    if by_length:
        pool_size *= pool_batches(-(-len(lengths) // batch_size))
    batches = []
    for start in range(0, len(order), pool_size):
        pool = order[start : start + pool_size]
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        batches += [pool[at : at + batch_size] for at in range(0, len(pool), batch_size)]
    return [batches[index] for index in permutation(len(batches), seed, "batches", epoch)]


def pool_batches(batches: int) -> int:
    """Return how many of an epoch's batches are sorted by length among themselves."""
    return max(1, min(POOL_BATCHES, batches // MIN_POOLS))


def split_into_chunks(
    items: Iterable[Item], length: Callable[[Item], int], *, most: int, most_characters: int
) -> Iterator[list[Item]]:
    """Yield as many items as may be held in memory at a time, be they many or long."""
    chunk: list[Item] = []
    characters = 0
    for item in items:
        chunk.append(item)
        characters += length(item)
        if len(chunk) == most or characters >= most_characters:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def group_by_length(lengths: Array, *, tokens: int) -> list[Array]:
    """Return all units once, longest first, in batches of about `tokens` tokens: for inference."""
    order, batches = np.argsort(-lengths, kind="stable"), []
    while len(order):
        count = max(1, tokens // max(1, int(lengths[order[0]])))
        batches.append(order[:count])
        order = order[count:]
    return batches
