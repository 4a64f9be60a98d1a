"""Embeddings: the hidden states of an encoder for each text, pooled and written to a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, get_args, get_type_hints

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from electra import atomic
from electra.config import UserError
from electra.data.sources import warn
from electra.data.tables import Table, read_lines, read_rows, require_text
from electra.data.wordpiece import WordPiece
from electra.model.encoder import Encoder
from electra.model.layers import LayerReader, layer_width
from electra.tasks.embed_options import DEFAULTS, EmbedOptions
from electra.tasks.features import (
    Array,
    Features,
    TaskBatch,
    encode_pair,
    group_by_length,
    split_into_chunks,
)
from electra.tasks.vocabulary_fit import VocabularyFit

if TYPE_CHECKING:
    import pyarrow

MIN_LENGTH = 3  # [CLS], a token, [SEP]
POOLS = get_args(get_args(get_type_hints(EmbedOptions)["pool"])[0])
PRECISIONS = get_args(get_type_hints(EmbedOptions)["precision"])
SUFFIXES = (".parquet", ".npy")
# Texts that are sorted by length among themselves. Fewer pad more; more characters would be more
# vectors held at once.
CHUNK_TEXTS = 2048
CHUNK_CHARACTERS = 400_000
# A CPU gains nothing from larger batches, and few texts would be padded to the longest of all.
BATCH_TOKENS = {"cpu": 4_096, "cuda": 16_384}
ROW_GROUP_BYTES = 32 * 1024 * 1024  # of vectors; Parquet is read by row groups


class Embedding(NamedTuple):
    """A text and its vectors."""

    text: str
    ids: Array  # with [CLS] and [SEP]
    vectors: Array  # float32 [D]; or [T, D], one for each of `ids`
    truncated: bool


def read_texts(source: Table, column: str = "text") -> Iterator[str]:
    """Yield a text for each line of plain text, or for each row of a table; keep blank ones, and
    warn of them at the end.
    """
    if source.format == "text":
        texts = (line for _, line in read_lines(source))
    else:
        rows = read_rows(source)
        texts = (
            require_text(row, column, where, flag="--text", may_be_missing=True)
            for where, row in rows
        )
    blank = 0
    for text in texts:
        blank += not text.strip()
        yield text
    if blank:
        warn(f"{source}: rows without text: {blank}; they are kept")


def embed(
    encoder: Encoder,
    tokenizer: WordPiece,
    texts: Iterable[str],
    options: EmbedOptions = DEFAULTS,
    *,
    device: torch.device | None = None,
) -> Iterator[Embedding]:
    """Return the embeddings of the texts, in order; warn, at the end, of texts that are mostly
    [UNK].
    """
    check_options(options, encoder)
    device = device or torch.device("cpu")
    return embed_chunks(encoder.to(device).eval(), tokenizer, texts, options, device=device)


def check_options(options: EmbedOptions, encoder: Encoder) -> None:
    """Raise UserError for an option that is unknown or that this encoder does not have."""
    shape = encoder.shape
    layer_width(options.layer, shape.width, layers=shape.layers)
    if options.pool not in (None, *POOLS):
        raise UserError(f"--pool {options.pool}: unknown; choose {', '.join(POOLS)}")
    if options.precision not in PRECISIONS:
        raise UserError(f"--precision {options.precision}: unknown; choose {', '.join(PRECISIONS)}")
    if options.pool == "cls" and shape.causal:
        raise UserError(
            "--pool cls: this encoder is causal, and to it [CLS] is the same before every text; "
            "take mean"
        )
    if options.layer == "mix":
        raise UserError(
            "--layer mix: its weights are learnt with a task; without one choose another"
        )
    if options.length is not None and not MIN_LENGTH <= options.length <= shape.positions:
        raise UserError(
            f"--length {options.length}: this encoder has {shape.positions} positions; name a "
            f"number from {MIN_LENGTH} up to that"
        )


def embed_chunks(
    encoder: Encoder,
    tokenizer: WordPiece,
    texts: Iterable[str],
    options: EmbedOptions,
    *,
    device: torch.device,
) -> Iterator[Embedding]:
    length = options.length or encoder.shape.positions
    reader = LayerReader(encoder.shape.layers, options.layer)
    batch_tokens = options.batch_tokens or BATCH_TOKENS.get(device.type, BATCH_TOKENS["cpu"])
    is_bf16, fit = options.precision == "bf16", VocabularyFit(tokenizer)
    autocast = torch.autocast(device.type, dtype=torch.bfloat16, enabled=is_bf16)
    for chunk in chunk_texts(texts):
        features = encode_texts(chunk, tokenizer, length=length)
        fit.add(features)
        vectors: dict[int, Array] = {}
        for units in group_by_length(features.lengths, tokens=batch_tokens):
            batch = features.collate(units).to(device)
            with torch.inference_mode(), autocast:
                layers = encoder.hidden_states(
                    batch.input_ids, batch.token_type_ids, batch.attention_mask
                )
                hidden = reader(layers).float()
            vectors.update(zip(units.tolist(), pool_vectors(hidden, batch, options), strict=True))
        for index, one in enumerate(chunk):
            ids = features.input_ids[features.offsets[index] : features.offsets[index + 1]]
            yield Embedding(one, ids, vectors[index], bool(features.truncated[index]))
    fit.warn()


def chunk_texts(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yield as many texts as may be held."""
    return split_into_chunks(texts, len, most=CHUNK_TEXTS, most_characters=CHUNK_CHARACTERS)


def encode_texts(texts: list[str], tokenizer: WordPiece, *, length: int) -> Features:
    encoded = enumerate(tokenizer.encode(texts))
    return Features.from_rows(
        encode_pair(index, tokenizer, ids, length=length) for index, ids in encoded
    )


def pool_vectors(hidden: Tensor, batch: TaskBatch, options: EmbedOptions) -> list[Array]:
    """Pool hidden states [R, T, D] row by row."""
    if options.pool == "tokens":
        vectors = hidden
    elif options.pool == "cls":
        vectors = hidden[:, 0]
    else:
        attention_mask = batch.attention_mask[:, :, None]
        vectors = (hidden * attention_mask).sum(1) / attention_mask.sum(1)
    if options.normalize:
        vectors = F.normalize(vectors, dim=-1)
    rows = list(vectors.cpu().numpy())
    if options.pool == "tokens":
        counts = batch.attention_mask.sum(1).tolist()
        rows = [row[:count] for row, count in zip(rows, counts, strict=True)]
    return rows


# ---- writing -------------------------------------------------------------------------------------


class WrittenCount(NamedTuple):
    texts: int
    truncated: int


def write_embeddings(
    path: Path, embeddings: Iterable[Embedding], tokenizer: WordPiece, *, pool: str | None
) -> WrittenCount:
    """Write a row each of text and vector (or tokens and vectors) to .parquet, or one .npy array.

    The array is float32 [texts, D].
    """
    check_output(path, pool=pool)
    with atomic.open_write(path) as stream:
        if path.suffix == ".npy":
            written = write_npy(stream, embeddings)
        else:
            written = write_parquet(stream, embeddings, tokenizer, pool=pool)
        if not written.texts:
            raise UserError(f"nothing to embed: the input holds no text, so {path} is not written")
        return written


def check_output(path: Path, *, pool: str | None) -> None:
    """Raise UserError, before any work, for a file that cannot be written."""
    if path.suffix not in SUFFIXES:
        raise UserError(
            f"--output {path}: vectors are written as {' or '.join(SUFFIXES)}; found "
            f"{path.suffix or 'no suffix'}"
        )
    if path.suffix == ".npy" and pool == "tokens":
        raise UserError(
            f"--output {path}: texts have different numbers of tokens, which one array cannot "
            "hold; write --pool tokens to a .parquet file"
        )
    atomic.check_output_file(path)


def write_npy(stream: IO[bytes], embeddings: Iterable[Embedding]) -> WrittenCount:
    count = truncated = width = 0
    for embedding in embeddings:
        if not count:
            width = len(embedding.vectors)
            write_header(stream, count=0, width=width)
        stream.write(embedding.vectors.astype("<f4").tobytes())
        count += 1
        truncated += embedding.truncated
    stream.seek(0)
    write_header(stream, count=count, width=width)
    return WrittenCount(count, truncated)


def write_header(stream: IO[bytes], *, count: int, width: int) -> None:
    # NumPy leaves room in a header for the first axis to grow, so the one written at the end has
    # the same size.
    np.lib.format.write_array_header_1_0(
        stream, {"descr": "<f4", "fortran_order": False, "shape": (count, width)}
    )


def write_parquet(
    stream: IO[bytes], embeddings: Iterable[Embedding], tokenizer: WordPiece, *, pool: str | None
) -> WrittenCount:
    import pyarrow.parquet

    count = truncated = 0
    writer: Any = None
    try:
        for group in row_groups(embeddings):
            arrow_table = to_arrow(group, tokenizer, pool=pool)
            writer = writer or pyarrow.parquet.ParquetWriter(stream, arrow_table.schema)
            writer.write_table(arrow_table)
            count += len(group)
            truncated += sum(embedding.truncated for embedding in group)
    finally:
        if writer:
            writer.close()
    return WrittenCount(count, truncated)


def row_groups(embeddings: Iterable[Embedding]) -> Iterator[list[Embedding]]:
    """Yield row groups that are quick to read, and not too large to read one at a time."""
    group: list[Embedding] = []
    size = 0
    for embedding in embeddings:
        group.append(embedding)
        size += embedding.vectors.nbytes
        if size >= ROW_GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def to_arrow(
    group: Sequence[Embedding], tokenizer: WordPiece, *, pool: str | None
) -> pyarrow.Table:
    import pyarrow

    flat = np.concatenate([embedding.vectors.reshape(-1) for embedding in group])
    width = group[0].vectors.shape[-1]
    vectors = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(flat), width)
    texts = pyarrow.array([embedding.text for embedding in group])
    if pool != "tokens":
        return pyarrow.table({"text": texts, "vector": vectors})
    offsets = np.cumsum([0, *(len(embedding.ids) for embedding in group)])
    tokens = pyarrow.array([tokenizer.tokens(embedding.ids.tolist()) for embedding in group])
    lists = pyarrow.ListArray.from_arrays(pyarrow.array(offsets, pyarrow.int32()), vectors)
    return pyarrow.table({"text": texts, "tokens": tokens, "vectors": lists})
