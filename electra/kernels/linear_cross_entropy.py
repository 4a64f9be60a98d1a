"""The vocabulary's cross-entropy and one sample from it, without logits in memory.

    ℓ = predicted · tableᵀ + bias       [N, V], of which only tiles exist, in registers
    mₜ = log Σ exp ℓ over tile t        [N, tiles], all that is written
    loss = log Σ exp mₜ − ℓ[original]
    dℓ = (softmax(ℓ) − 1[original]) · dloss

A sample inverts the distribution function at one uniform number: exp mₜ says in which tile it
falls, and that tile's logits, computed again, say at which word. Gumbel noise would be a random
number for every word, and as many logarithms.

Backward computes ℓ again and writes dℓ in low precision, for two plain matrix products: dpredicted
and dtable.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels import low_precision_weight, weight_grad
from electra.kernels.column_sums import reduce_partials

ROWS = 128  # of a tile of logits
SHARE = 768  # words of a program: it reads its rows once for all of them
AT_ONCE = 16_384  # rows whose dℓ are in memory together: 1 GB for 30,522 words


def fused_linear_cross_entropy(
    predicted: Tensor,
    table: Tensor,
    bias: Tensor,
    originals: Tensor,
    *,
    uniform: Tensor | None = None,
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor | None]:
    """Losses [N], −log p(original), in float32; and the words [N] that `uniform` [N] in [0, 1)
    draws from softmax(logits / temperature).

    `predicted` [N, E] decides the precision of the products; `table` [V, E] and `bias` [V] are
    float32, and so are their gradients.
    """
    return cast(
        "tuple[Tensor, Tensor | None]",
        LinearCrossEntropy.apply(
            predicted.contiguous(), table, bias, originals.contiguous(), uniform, temperature
        ),
    )


class LinearCrossEntropy(torch.autograd.Function):
    """One pass over the vocabulary forward, one backward."""

    @staticmethod
    def forward(
        ctx: Any,
        predicted: Tensor,
        table: Tensor,
        bias: Tensor,
        originals: Tensor,
        uniform: Tensor | None,
        temperature: float,
    ) -> tuple[Tensor, Tensor | None]:
        low = low_precision_weight(table, predicted.dtype)
        (count, width), vocabulary = predicted.shape, len(low)
        fit = blocks(width)
        tiles = triton.cdiv(vocabulary, fit["WORDS"])
        tempered = uniform is not None and temperature != 1
        masses = bias.new_empty(1 + tempered, count, tiles)
        original_logits, totals, losses = (bias.new_empty(count) for _ in range(3))
        sampled = None if uniform is None else torch.empty_like(originals)
        word_masses[launch(count, vocabulary)](
            predicted,
            low,
            bias,
            originals,
            masses[0],
            masses[-1],
            original_logits,
            count,
            vocabulary,
            tiles,
            1 / temperature,
            TEMPERED=tempered,
            **fit,
        )
        word_answers[(count,)](
            predicted,
            low,
            bias,
            masses[0],
            masses[-1],
            original_logits,
            uniform,
            totals,
            losses,
            sampled,
            vocabulary,
            tiles,
            1 / temperature,
            SAMPLED=uniform is not None,
            E=width,
            PART=64,
            WORDS=fit["WORDS"],
            PADDED_TILES=triton.next_power_of_2(tiles),
            num_warps=4,
        )
        ctx.save_for_backward(predicted, low, bias, originals, totals)
        if sampled is not None:
            ctx.mark_non_differentiable(sampled)
        return losses, sampled

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        predicted, low, bias, originals, totals = cast("tuple[Tensor, ...]", ctx.saved_tensors)
        d_losses, vocabulary = gradients[0].contiguous(), len(bias)
        d_predicted, d_table = torch.empty_like(predicted), None
        padded = F.pad(low, (0, 0, 0, -vocabulary % 64))
        partial = bias.new_empty(triton.cdiv(len(predicted), ROWS), vocabulary)
        for start in range(0, len(predicted), AT_ONCE):
            rows = slice(start, start + AT_ONCE)
            count, width = predicted[rows].shape
            # cuBLAS has its fast kernels only for sizes that are multiples of eight; dℓ of the
            # words beyond V is zero.
            d_logits = predicted.new_empty(count, len(padded))
            word_gradients[launch(count, vocabulary)](
                predicted[rows],
                low,
                bias,
                originals[rows],
                totals[rows],
                d_losses[rows],
                d_logits,
                partial[start // ROWS :],
                count,
                vocabulary,
                d_logits.shape[1],
                **blocks(width),
            )
            torch.mm(d_logits, padded, out=d_predicted[rows])
            part = weight_grad(d_logits.T, predicted[rows])
            d_table = part if d_table is None else d_table.add_(part)
        assert d_table is not None
        return d_predicted, d_table[:vocabulary], reduce_partials(partial)[0], None, None, None


def launch(count: int, vocabulary: int) -> tuple[int]:
    return (triton.cdiv(count, ROWS) * triton.cdiv(vocabulary, SHARE),)


def blocks(width: int) -> dict[str, int]:
    """Narrow vectors are read whole, in programs small enough (registers, shared memory) for two at
    a time on each multiprocessor: one exponentiates while the other multiplies. Wide ones come in
    parts, and larger tiles read less.
    """
    if width <= 128:
        size = {"PART": max(16, triton.next_power_of_2(width)), "WORDS": 64, "maxnreg": 128}
    else:
        size = {"PART": 64, "WORDS": 128}
    return {"E": width, "ROWS": ROWS, "SHARE": SHARE, "num_warps": 8, "num_stages": 3, **size}


@triton.jit
def word_masses(
    predicted,
    table,
    bias,
    originals,
    masses,
    tempered,
    original_logits,
    N,
    V,
    tiles,
    coolness,
    TEMPERED: tl.constexpr,
    E: tl.constexpr,
    PART: tl.constexpr,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    SHARE: tl.constexpr,
):
    """log Σ exp ℓ of each row in each tile, also of ℓ · coolness (1 / temperature), and each
    original's ℓ.
    """
    block, first, last = share_of_program(N, V, ROWS, WORDS, SHARE)
    rows = block * ROWS + tl.arange(0, ROWS)
    here = rows < N
    original = tl.load(originals + rows, mask=here, other=-1).to(tl.int32)
    vectors = part_of(predicted, rows, N, 0, E, PART)
    for tile in range(first, last):
        words = tile * WORDS + tl.arange(0, WORDS)
        logits = tile_logits(vectors, predicted, table, bias, rows, words, N, V, E, PART)
        tl.store(masses + rows * tiles + tile, log_sum_exp(logits), mask=here)
        if TEMPERED:
            tl.store(tempered + rows * tiles + tile, log_sum_exp(logits * coolness), mask=here)
        found = tl.sum(tl.where(words[None, :] == original[:, None], logits, 0.0), 1)
        tl.store(original_logits + rows, found, mask=here & (original // WORDS == tile))


@triton.jit
def word_answers(
    predicted,
    table,
    bias,
    masses,
    tempered,
    original_logits,
    uniform,
    totals,
    losses,
    sampled,
    V,
    tiles,
    coolness,
    SAMPLED: tl.constexpr,
    E: tl.constexpr,
    PART: tl.constexpr,
    WORDS: tl.constexpr,
    PADDED_TILES: tl.constexpr,
):
    """One row's loss, and the word that it draws."""
    row, tile = tl.program_id(0), tl.arange(0, PADDED_TILES)
    mass = tl.load(masses + row * tiles + tile, mask=tile < tiles, other=-float("inf"))
    highest = tl.max(mass, 0)
    total = highest + tl.log(tl.sum(tl.exp(mass - highest), 0))
    tl.store(totals + row, total)
    tl.store(losses + row, total - tl.load(original_logits + row))
    if SAMPLED:
        mass = tl.load(tempered + row * tiles + tile, mask=tile < tiles, other=-float("inf"))
        chosen, left = drawn(mass, tl.load(uniform + row), PADDED_TILES)
        words = chosen * WORDS + tl.arange(0, WORDS)
        logits = tl.load(bias + words, mask=words < V, other=-float("inf"))
        for start in range(0, E, PART):
            part = start + tl.arange(0, PART)
            vector = tl.load(predicted + row * E + part, mask=part < E, other=0.0).to(tl.float32)
            logits += tl.sum(
                part_of(table, words, V, start, E, PART).to(tl.float32) * vector[None, :], 1
            )
        word, _ = drawn(logits * coolness, left, WORDS)
        tl.store(sampled + row, (chosen * WORDS + word).to(tl.int64))


@triton.jit
def word_gradients(
    predicted,
    table,
    bias,
    originals,
    totals,
    d_losses,
    d_logits,
    partial,
    N,
    V,
    stride,
    E: tl.constexpr,
    PART: tl.constexpr,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    SHARE: tl.constexpr,
):
    """dℓ, and its sums over each block of rows: added up later, in an order that never changes,
    they are dbias.
    """
    block, first, last = share_of_program(N, V, ROWS, WORDS, SHARE)
    rows = block * ROWS + tl.arange(0, ROWS)
    here = rows < N
    original = tl.load(originals + rows, mask=here, other=-1).to(tl.int32)
    total = tl.load(
        totals + rows, mask=here, other=float("inf")
    )  # so that rows beyond N have no shares
    d_loss = tl.load(d_losses + rows, mask=here, other=0.0)
    vectors = part_of(predicted, rows, N, 0, E, PART)
    target = d_logits + rows[:, None].to(tl.int64) * stride
    for tile in range(first, last):
        words = tile * WORDS + tl.arange(0, WORDS)
        logits = tile_logits(vectors, predicted, table, bias, rows, words, N, V, E, PART)
        share = tl.exp(logits - total[:, None])
        gradient = tl.where(words[None, :] == original[:, None], share - 1, share) * d_loss[:, None]
        # Up to `stride`, a multiple of 64, and not up to V: then whole vectors are stored or none.
        tl.store(
            target + words[None, :],
            gradient.to(d_logits.dtype.element_ty),
            mask=here[:, None] & (words < stride)[None, :],
        )
        tl.store(partial + block.to(tl.int64) * V + words, tl.sum(gradient, 0), mask=words < V)


@triton.jit
def share_of_program(N, V, ROWS: tl.constexpr, WORDS: tl.constexpr, SHARE: tl.constexpr):
    """A block of rows and a range of tiles. Programs that run together share both: 32 blocks of
    rows go through the vocabulary side by side, and stay in the cache meanwhile.
    """
    blocks, shares = tl.cdiv(N, ROWS), tl.cdiv(V, SHARE)
    program = tl.program_id(0)
    block, share = tl.swizzle2d(program // shares, program % shares, blocks, shares, 32)
    return block, share * (SHARE // WORDS), tl.cdiv(tl.minimum((share + 1) * SHARE, V), WORDS)


@triton.jit
def tile_logits(
    vectors, predicted, table, bias, rows, words, N, V, E: tl.constexpr, PART: tl.constexpr
):
    """[rows, words] in float32, −∞ beyond V. `vectors` is the first part of the rows, which is all
    of them if E ≤ PART.
    """
    logits = tl.dot(vectors, tl.trans(part_of(table, words, V, 0, E, PART)), input_precision="ieee")
    for start in range(PART, E, PART):
        logits = tl.dot(
            part_of(predicted, rows, N, start, E, PART),
            tl.trans(part_of(table, words, V, start, E, PART)),
            logits,
            input_precision="ieee",
        )
    return logits + tl.load(bias + words, mask=words < V, other=-float("inf"))[None, :]


@triton.jit
def part_of(matrix, rows, count, start, E: tl.constexpr, PART: tl.constexpr):
    """Columns `start` to `start + PART` of some rows; zero beyond the matrix [count, E]."""
    part = start + tl.arange(0, PART)
    return tl.load(
        matrix + rows[:, None] * E + part[None, :],
        mask=(rows < count)[:, None] & (part < E)[None, :],
        other=0.0,
    )


@triton.jit
def log_sum_exp(logits):
    highest = tl.max(logits, 1)
    return highest + tl.log(tl.sum(tl.exp(logits - highest[:, None]), 1))


@triton.jit
def drawn(logits, uniform, COUNT: tl.constexpr):
    """Which of the logits a number in [0, 1) draws, and how far into its share the number falls,
    again in [0, 1].

    Sums are rounded, and a number may fall beyond the last or on a place without a share: that is
    never drawn.
    """
    place = tl.arange(0, COUNT)
    share = tl.exp(logits - tl.max(logits, 0))
    reached = tl.cumsum(share, 0)
    wanted = uniform * tl.max(reached, 0)
    last = tl.max(tl.where(share > 0, place, 0), 0)
    chosen = tl.min(tl.where((share > 0) & (reached > wanted), place, last), 0)
    own = tl.sum(tl.where(place == chosen, share, 0.0), 0)
    before = tl.sum(tl.where(place == chosen, reached, 0.0), 0) - own
    return chosen, (wanted - before) / own


def linear_cross_entropy_reference(
    predicted: Tensor,
    table: Tensor,
    bias: Tensor,
    originals: Tensor,
    uniform: Tensor,
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The same in plain torch, for comparison."""
    logits = predicted @ table.T + bias
    losses = torch.nn.functional.cross_entropy(logits, originals, reduction="none")
    reached = (logits.detach() / temperature).softmax(-1).cumsum(-1)
    return losses, torch.searchsorted(reached, uniform[:, None], right=True).squeeze(1).clamp(
        max=len(bias) - 1
    )
