"""Frozen features: text → vectors, in the order of the text, written as they come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from electra import atomic
from electra.config import UserError
from electra.data.tables import Table, read_lines, read_rows, require_text
from electra.data.wordpiece import WordPiece
from electra.model.encoder import Encoder
from electra.model.layers import LayerReader, layer_width
from electra.tasks.features import Array, Features, Row, TaskBatch, by_length, pair

SHORTEST = 3  # [CLS], a token, [SEP]
POOLS = ("mean", "cls", "tokens")
SUFFIXES = (".parquet", ".npy")
# Texts that are sorted by length among themselves. Fewer pad more; more characters would be more
# vectors held at once.
CHUNK_TEXTS = 2048
CHUNK_CHARACTERS = 400_000
GROUP_BYTES = 32 * 1024 * 1024  # of vectors, in a row group of Parquet


class Embedded(NamedTuple):
    """A text and what the encoder makes of it."""

    text: str
    ids: Array  # with [CLS] and [SEP]
    vectors: Array  # float32 [D]; or [T, D], one for each of `ids`
    was_cut: bool


def texts(source: Table, column: str = "text") -> Iterator[str]:
    """A text for each line of plain text, blank ones too, or for each row of a table."""
    if source.format == "text":
        return (line for _, line in read_lines(source))
    return (require_text(row, column, where) for where, row in read_rows(source))


def embed(
    encoder: Encoder,
    tokenizer: WordPiece,
    given: Iterable[str],
    *,
    layer: str = "last",
    pool: str = "mean",
    length: int,
    batch_tokens: int = 16_384,
    device: torch.device | None = None,
) -> Iterator[Embedded]:
    """The vectors of each text, in order: the mean over its tokens ([CLS] and [SEP] count, as
    sentence-transformers has it), that of [CLS], or all of them. A text of more than `length`
    tokens is cut.
    """
    layer_width(layer, encoder.shape.width, layers=encoder.shape.layers)
    if pool not in POOLS:
        raise UserError(f"--pool {pool}: unknown; choose {', '.join(POOLS)}")
    if pool == "cls" and encoder.shape.causal:
        raise UserError(
            "--pool cls: this encoder is causal, and to it [CLS] is the same before every text; "
            "take mean"
        )
    if layer == "mix":
        raise UserError(
            "--layer mix: its weights are learnt with a task; without one choose another"
        )
    if not SHORTEST <= length <= encoder.shape.positions:
        raise UserError(
            f"--length {length}: this encoder has {encoder.shape.positions} positions; name a "
            "number from "
            f"{SHORTEST} up to that"
        )
    device = device or torch.device("cpu")
    return embedded_chunks(
        encoder.to(device).eval(),
        tokenizer,
        given,
        reader=LayerReader(encoder.shape.layers, layer),
        pool=pool,
        length=length,
        batch_tokens=batch_tokens,
        device=device,
    )


def embedded_chunks(
    encoder: Encoder,
    tokenizer: WordPiece,
    given: Iterable[str],
    *,
    reader: LayerReader,
    pool: str,
    length: int,
    batch_tokens: int,
    device: torch.device,
) -> Iterator[Embedded]:
    for chunk in chunks(given):
        features = rows_of(chunk, tokenizer, length=length)
        found: dict[int, Array] = {}
        for places in by_length(features.lengths, tokens=batch_tokens):
            batch = features.take(places).to(device)
            with torch.inference_mode():
                vectors = reader(
                    encoder.layers(batch.input_ids, batch.token_type_ids, batch.attention_mask)
                ).float()
            found.update(zip(places.tolist(), pooled(vectors, batch, pool), strict=True))
        for place, one in enumerate(chunk):
            ids = features.ids[features.begins[place] : features.begins[place + 1]]
            yield Embedded(one, ids, found[place], bool(features.cut[place]))


def chunks(given: Iterable[str]) -> Iterator[list[str]]:
    chunk: list[str] = []
    characters = 0
    for one in given:
        chunk.append(one)
        characters += len(one)
        if len(chunk) == CHUNK_TEXTS or characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def rows_of(chunk: list[str], tokenizer: WordPiece, *, length: int) -> Features:
    made = []
    for number, ids in enumerate(tokenizer.encode(chunk)):
        row, _, was_cut = pair(tokenizer, ids, None, length=length)
        made.append(Row(number, row, was_cut=was_cut))
    return Features.of(made)


def pooled(vectors: Tensor, batch: TaskBatch, pool: str) -> list[Array]:
    """What is kept of vectors [R, T, D], row by row."""
    if pool == "cls":
        return list(vectors[:, 0].cpu().numpy())
    if pool == "mean":
        attention_mask = batch.attention_mask[:, :, None]
        return list(((vectors * attention_mask).sum(1) / attention_mask.sum(1)).cpu().numpy())
    return [
        row[:count]
        for row, count in zip(
            vectors.cpu().numpy(), batch.attention_mask.sum(1).tolist(), strict=True
        )
    ]


# ---- writing -------------------------------------------------------------------------------------


class Written(NamedTuple):
    texts: int
    cut: int  # texts that were longer than a row


def write(path: Path, found: Iterable[Embedded], tokenizer: WordPiece, *, pool: str) -> Written:
    """`.parquet`: text and vector (or tokens and vectors), a row each. `.npy`: one float32 array
    [texts, D].
    """
    check_output(path, pool=pool)
    with atomic.open_write(path) as stream:
        written = (
            write_npy(stream, found)
            if path.suffix == ".npy"
            else write_parquet(stream, found, tokenizer, pool=pool)
        )
        if not written.texts:
            raise UserError(f"nothing to embed: the input holds no text, so {path} is not written")
        return written


def check_output(path: Path, *, pool: str) -> None:
    """Refuse, before any work, a file that cannot be written."""
    if path.suffix not in SUFFIXES:
        raise UserError(
            f"--output {path}: vectors are written as {' or '.join(SUFFIXES)}; found "
            f"{path.suffix or 'no suffix'}"
        )
    if path.suffix == ".npy" and pool == "tokens":
        raise UserError(
            f"--output {path}: texts have different numbers of tokens, which one array cannot "
            "hold; write "
            "--pool tokens to a .parquet file"
        )
    if not path.parent.is_dir():
        raise UserError(f"--output {path}: no folder {path.parent}; make it first")


def write_npy(stream: IO[bytes], found: Iterable[Embedded]) -> Written:
    count = cut = width = 0
    for one in found:
        if not count:
            width = len(one.vectors)
            write_header(stream, count=0, width=width)
        stream.write(one.vectors.astype("<f4").tobytes())
        count, cut = count + 1, cut + one.was_cut
    stream.seek(0)
    write_header(stream, count=count, width=width)
    return Written(count, cut)


def write_header(stream: IO[bytes], *, count: int, width: int) -> None:
    # NumPy leaves room in a header for the first axis to grow, so the one written at the end has
    # the same size.
    np.lib.format.write_array_header_1_0(
        stream, {"descr": "<f4", "fortran_order": False, "shape": (count, width)}
    )


def write_parquet(
    stream: IO[bytes], found: Iterable[Embedded], tokenizer: WordPiece, *, pool: str
) -> Written:
    import pyarrow
    import pyarrow.parquet

    count = cut = 0
    writer: Any = None
    try:
        for group in groups(found):
            rows = table_of(group, tokenizer, pool=pool)
            writer = writer or pyarrow.parquet.ParquetWriter(stream, rows.schema)
            writer.write_table(rows)
            count, cut = count + len(group), cut + sum(one.was_cut for one in group)
    finally:
        if writer:
            writer.close()
    return Written(count, cut)


def groups(found: Iterable[Embedded]) -> Iterator[list[Embedded]]:
    """So many that a file of them is quickly read, and can be read in parts."""
    group: list[Embedded] = []
    size = 0
    for one in found:
        group.append(one)
        size += one.vectors.nbytes
        if size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def table_of(group: Sequence[Embedded], tokenizer: WordPiece, *, pool: str) -> Any:
    import pyarrow

    flat = np.concatenate([one.vectors.reshape(-1) for one in group])
    vectors = pyarrow.FixedSizeListArray.from_arrays(
        pyarrow.array(flat), group[0].vectors.shape[-1]
    )
    columns = {"text": pyarrow.array([one.text for one in group])}
    if pool != "tokens":
        return pyarrow.table(columns | {"vector": vectors})
    begins = np.cumsum([0, *(len(one.ids) for one in group)])
    tokens = pyarrow.array([tokenizer.tokens(one.ids.tolist()) for one in group])
    lists = pyarrow.ListArray.from_arrays(pyarrow.array(begins, pyarrow.int32()), vectors)
    return pyarrow.table(columns | {"tokens": tokens, "vectors": lists})
