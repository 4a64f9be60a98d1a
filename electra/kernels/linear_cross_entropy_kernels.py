"""Triton kernels of `linear_cross_entropy`, on tiles of logits that never leave the registers."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tile_log_sum_exp(
    hidden,
    weight,
    bias,
    labels,
    tile_log_sums,
    tempered_log_sums,
    label_logits,
    N,
    V,
    tiles,
    inverse_temperature,
    TEMPERED: tl.constexpr,
    E: tl.constexpr,
    WIDTH_TILE: tl.constexpr,
    ROWS: tl.constexpr,
    VOCAB_TILE: tl.constexpr,
    VOCAB_PER_PROGRAM: tl.constexpr,
):
    """Write log Σ exp ℓ of each row and tile, the same of ℓ / temperature, and ℓ of each label."""
    block, first, last = program_tiles(N, V, ROWS, VOCAB_TILE, VOCAB_PER_PROGRAM)
    rows = block * ROWS + tl.arange(0, ROWS)
    row_mask = rows < N
    label = tl.load(labels + rows, mask=row_mask, other=-1).to(tl.int32)
    first_columns = load_columns(hidden, rows, N, 0, E, WIDTH_TILE)
    tile_offsets = rows.to(tl.int64) * tiles
    for tile in range(first, last):
        vocab_ids = tile * VOCAB_TILE + tl.arange(0, VOCAB_TILE)
        logits = tile_logits(
            first_columns, hidden, weight, bias, rows, vocab_ids, N, V, E, WIDTH_TILE
        )
        tl.store(tile_log_sums + tile_offsets + tile, log_sum_exp(logits), mask=row_mask)
        if TEMPERED:
            target = tempered_log_sums + tile_offsets + tile
            tl.store(target, log_sum_exp(logits * inverse_temperature), mask=row_mask)
        label_logit = tl.sum(tl.where(vocab_ids[None, :] == label[:, None], logits, 0.0), 1)
        tl.store(label_logits + rows, label_logit, mask=row_mask & (label // VOCAB_TILE == tile))


@triton.jit
def loss_and_sample(
    hidden,
    weight,
    bias,
    tile_log_sums,
    tempered_log_sums,
    label_logits,
    uniform,
    log_sums,
    losses,
    sampled,
    V,
    tiles,
    inverse_temperature,
    SAMPLED: tl.constexpr,
    E: tl.constexpr,
    WIDTH_TILE: tl.constexpr,
    VOCAB_TILE: tl.constexpr,
    PADDED_TILES: tl.constexpr,
):
    """Write the loss of one row, and the token that it draws."""
    row, tile = tl.program_id(0).to(tl.int64), tl.arange(0, PADDED_TILES)
    tile_log_sum = tl.load(
        tile_log_sums + row * tiles + tile, mask=tile < tiles, other=-float("inf")
    )
    highest = tl.max(tile_log_sum, 0)
    log_sum = highest + tl.log(tl.sum(tl.exp(tile_log_sum - highest), 0))
    tl.store(log_sums + row, log_sum)
    tl.store(losses + row, log_sum - tl.load(label_logits + row))
    if SAMPLED:
        tile_log_sum = tl.load(
            tempered_log_sums + row * tiles + tile, mask=tile < tiles, other=-float("inf")
        )
        chosen = sample_index(tile_log_sum, tl.load(uniform + 2 * row), PADDED_TILES)
        vocab_ids = chosen * VOCAB_TILE + tl.arange(0, VOCAB_TILE)
        logits = tl.load(bias + vocab_ids, mask=vocab_ids < V, other=-float("inf"))
        for start in range(0, E, WIDTH_TILE):
            column = start + tl.arange(0, WIDTH_TILE)
            vector = tl.load(hidden + row * E + column, mask=column < E, other=0.0).to(tl.float32)
            weights = load_columns(weight, vocab_ids, V, start, E, WIDTH_TILE).to(tl.float32)
            logits += tl.sum(weights * vector[None, :], 1)
        second = tl.load(uniform + 2 * row + 1)
        token = sample_index(logits * inverse_temperature, second, VOCAB_TILE)
        tl.store(sampled + row, (chosen * VOCAB_TILE + token).to(tl.int64))


@triton.jit
def logit_gradients(
    hidden,
    weight,
    bias,
    labels,
    log_sums,
    d_losses,
    d_logits,
    partial,
    N,
    V,
    stride,
    E: tl.constexpr,
    WIDTH_TILE: tl.constexpr,
    ROWS: tl.constexpr,
    VOCAB_TILE: tl.constexpr,
    VOCAB_PER_PROGRAM: tl.constexpr,
):
    """Write dℓ, and its sums over each block of rows, which add up to dbias later, in an order that
    never changes.
    """
    block, first, last = program_tiles(N, V, ROWS, VOCAB_TILE, VOCAB_PER_PROGRAM)
    rows = block * ROWS + tl.arange(0, ROWS)
    row_mask = rows < N
    label = tl.load(labels + rows, mask=row_mask, other=-1).to(tl.int32)
    # ∞ beyond N, so that all probabilities are zero there.
    log_sum = tl.load(log_sums + rows, mask=row_mask, other=float("inf"))
    d_loss = tl.load(d_losses + rows, mask=row_mask, other=0.0)
    first_columns = load_columns(hidden, rows, N, 0, E, WIDTH_TILE)
    target = d_logits + rows[:, None].to(tl.int64) * stride
    for tile in range(first, last):
        vocab_ids = tile * VOCAB_TILE + tl.arange(0, VOCAB_TILE)
        logits = tile_logits(
            first_columns, hidden, weight, bias, rows, vocab_ids, N, V, E, WIDTH_TILE
        )
        probs = tl.exp(logits - log_sum[:, None])
        gradient = (
            tl.where(vocab_ids[None, :] == label[:, None], probs - 1, probs) * d_loss[:, None]
        )
        # Up to `stride`, a multiple of 64, and not up to V: then whole vectors are stored or none.
        tl.store(
            target + vocab_ids[None, :],
            gradient.to(d_logits.dtype.element_ty),
            mask=row_mask[:, None] & (vocab_ids < stride)[None, :],
        )
        tl.store(
            partial + block.to(tl.int64) * V + vocab_ids, tl.sum(gradient, 0), mask=vocab_ids < V
        )


@triton.jit
def program_tiles(
    N, V, ROWS: tl.constexpr, VOCAB_TILE: tl.constexpr, VOCAB_PER_PROGRAM: tl.constexpr
):
    """Return the program's block of rows and range of tiles.

    Programs that run together share both: 32 blocks of rows go through the vocabulary side by side,
    and stay in the cache meanwhile.
    """
    blocks, stretches = tl.cdiv(N, ROWS), tl.cdiv(V, VOCAB_PER_PROGRAM)
    program = tl.program_id(0)
    block, stretch = tl.swizzle2d(program // stretches, program % stretches, blocks, stretches, 32)
    first = stretch * (VOCAB_PER_PROGRAM // VOCAB_TILE)
    last = tl.cdiv(tl.minimum((stretch + 1) * VOCAB_PER_PROGRAM, V), VOCAB_TILE)
    return block, first, last


@triton.jit
def tile_logits(
    first_columns,
    hidden,
    weight,
    bias,
    rows,
    vocab_ids,
    N,
    V,
    E: tl.constexpr,
    WIDTH_TILE: tl.constexpr,
):
    """Return logits [rows, vocab_ids] in float32, −∞ beyond V. `first_columns` of `hidden` are all
    of them if E ≤ WIDTH_TILE.
    """
    first_weights = load_columns(weight, vocab_ids, V, 0, E, WIDTH_TILE)
    logits = tl.dot(first_columns, tl.trans(first_weights), input_precision="ieee")
    for start in range(WIDTH_TILE, E, WIDTH_TILE):
        logits = tl.dot(
            load_columns(hidden, rows, N, start, E, WIDTH_TILE),
            tl.trans(load_columns(weight, vocab_ids, V, start, E, WIDTH_TILE)),
            logits,
            input_precision="ieee",
        )
    return logits + tl.load(bias + vocab_ids, mask=vocab_ids < V, other=-float("inf"))[None, :]


@triton.jit
def load_columns(matrix, rows, count, start, E: tl.constexpr, WIDTH_TILE: tl.constexpr):
    """Load columns from `start` to `start + WIDTH_TILE` of some rows; zero beyond [count, E]."""
    column = start + tl.arange(0, WIDTH_TILE)
    return tl.load(
        matrix + rows.to(tl.int64)[:, None] * E + column[None, :],
        mask=(rows < count)[:, None] & (column < E)[None, :],
        other=0.0,
    )


@triton.jit
def log_sum_exp(logits):
    """Return log Σ exp over the last axis."""
    max_logit = tl.max(logits, 1)
    return max_logit + tl.log(tl.sum(tl.exp(logits - max_logit[:, None]), 1))


@triton.jit
def sample_index(logits, uniform, COUNT: tl.constexpr):
    """Return the index that a number in [0, 1) draws from softmax(logits).

    Sums are rounded, and a number may fall beyond the last index or on one of probability zero:
    that is never drawn.
    """
    index = tl.arange(0, COUNT)
    probs = tl.exp(logits - tl.max(logits, 0))
    cumulative = tl.cumsum(probs, 0)
    target = uniform * tl.max(cumulative, 0)
    last = tl.max(tl.where(probs > 0, index, 0), 0)
    return tl.min(tl.where((probs > 0) & (cumulative > target), index, last), 0)
