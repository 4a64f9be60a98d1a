"""Cross-entropy over the vocabulary and one sample from it, without logits in memory.

    ℓ = hidden · weightᵀ + bias         [N, V], of which only tiles exist, in registers
    mₜ = log Σ exp ℓ over tile t        [N, tiles], all that is written
    loss = log Σ exp mₜ − ℓ[label]
    dℓ = (softmax(ℓ) − 1[label]) · dloss

A sample inverts two distribution functions, each at a uniform number of its own: exp mₜ says in
which tile the first falls, and the logits of that tile, computed again, say at which token the
second. What is left of one number after it chose a tile would have too few bits to choose a token.
Gumbel noise would be a random number for every token of the vocabulary, and as many logarithms.

Backward computes ℓ again and writes dℓ in low precision, for two plain matrix products: dhidden
and dweight.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from electra.kernels.column_sums import reduce_partials
from electra.kernels.linear_cross_entropy_kernels import (
    logit_gradients,
    loss_and_sample,
    tile_log_sum_exp,
)
from electra.kernels.low_precision import LowPrecisionCopies, weight_grad
from electra.kernels.tiles import tile_options

ROWS = 128  # of a tile of logits
VOCAB_PER_PROGRAM = 768  # logits of a row in one program, which reads the row once for all of them
MAX_LOGIT_ROWS = 16_384  # rows whose dℓ are in memory together: 1 GB for a vocabulary of 30,522


class SamplingInputs(NamedTuple):
    """How to draw one token for each row."""

    uniform: Tensor  # [N, 2] in [0, 1), for the tile and for the token inside it
    temperature: float


def fused_linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    labels: Tensor,
    low_precision: LowPrecisionCopies,
    *,
    uniform: Tensor | None = None,
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor | None]:
    """Return losses [N], −log p(label), in float32; and the tokens [N] that `uniform` [N, 2] in
    [0, 1) draws from softmax(logits / temperature).

    `hidden` [N, E] decides the precision of the products; `weight` [V, E] and `bias` [V] are
    float32, and so are their gradients.
    """
    sampling = None
    if uniform is not None:
        sampling = SamplingInputs(uniform.contiguous(), temperature)
    output = LinearCrossEntropy.apply(
        hidden.contiguous(), weight, bias, labels.contiguous(), low_precision, sampling
    )
    return cast("tuple[Tensor, Tensor | None]", output)


class LinearCrossEntropy(torch.autograd.Function):
    """Compute the losses in one pass over the vocabulary forward, and one backward."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor,
        labels: Tensor,
        low_precision: LowPrecisionCopies,
        sampling: SamplingInputs | None,
    ) -> tuple[Tensor, Tensor | None]:
        low_weight = low_precision(weight, hidden.dtype)
        log_sums, losses, sampled = losses_and_samples(hidden, low_weight, bias, labels, sampling)
        ctx.save_for_backward(hidden, low_weight, bias, labels, log_sums)
        if sampled is not None:
            ctx.mark_non_differentiable(sampled)
        return losses, sampled

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, low_weight, bias, labels, log_sums = cast("tuple[Tensor, ...]", ctx.saved_tensors)
        d_losses, vocab_size = gradients[0].contiguous(), len(bias)
        d_hidden = torch.empty_like(hidden)
        d_weight: Tensor | None = None
        # cuBLAS has its fast kernels only for sizes that are multiples of eight; dℓ beyond V is
        # zero.
        padded = F.pad(low_weight, (0, 0, 0, -vocab_size % 64))
        partials = bias.new_empty(triton.cdiv(len(hidden), ROWS), vocab_size)
        for start in range(0, len(hidden), MAX_LOGIT_ROWS):
            rows = slice(start, start + MAX_LOGIT_ROWS)
            count, width = hidden[rows].shape
            d_logits = hidden.new_empty(count, len(padded))
            logit_gradients[launch_grid(count, vocab_size)](
                hidden[rows],
                low_weight,
                bias,
                labels[rows],
                log_sums[rows],
                d_losses[rows],
                d_logits,
                partials[start // ROWS :],
                count,
                vocab_size,
                d_logits.shape[1],
                **launch_options(len(hidden), width),
            )
            torch.mm(d_logits, padded, out=d_hidden[rows])
            d_weight = accumulate(d_weight, weight_grad(d_logits.T, hidden[rows]))
        assert d_weight is not None
        return d_hidden, d_weight[:vocab_size], reduce_partials(partials)[0], None, None, None


def losses_and_samples(
    hidden: Tensor,
    low_weight: Tensor,
    bias: Tensor,
    labels: Tensor,
    sampling: SamplingInputs | None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return log Σ exp ℓ, losses and sampled tokens, [N] each."""
    (count, width), vocab_size = hidden.shape, len(low_weight)
    uniform, temperature = sampling or (None, 1.0)
    sums, label_logits = tile_sums(hidden, low_weight, bias, labels, temperature)
    tiles = sums.shape[2]
    log_sums, losses = bias.new_empty(count), bias.new_empty(count)
    sampled = None
    if uniform is not None:
        sampled = torch.empty_like(labels)
    loss_and_sample[(count,)](
        hidden,
        low_weight,
        bias,
        sums[0],
        sums[-1],
        label_logits,
        uniform,
        log_sums,
        losses,
        sampled,
        vocab_size,
        tiles,
        1 / temperature,
        SAMPLED=uniform is not None,
        E=width,
        WIDTH_TILE=64,
        VOCAB_TILE=launch_options(count, width)["VOCAB_TILE"],
        PADDED_TILES=triton.next_power_of_2(tiles),
        num_warps=4,
    )
    return log_sums, losses, sampled


def tile_sums(
    hidden: Tensor, low_weight: Tensor, bias: Tensor, labels: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return log Σ exp of each tile's logits, [1, N, tiles] or [2, N, tiles] with those at the
    temperature last; and the logits of the labels [N].
    """
    (count, width), vocab_size = hidden.shape, len(low_weight)
    options = launch_options(count, width)
    tiles = triton.cdiv(vocab_size, options["VOCAB_TILE"])
    is_tempered = temperature != 1
    sums = bias.new_empty(1 + is_tempered, count, tiles)
    label_logits = bias.new_empty(count)
    tile_log_sum_exp[launch_grid(count, vocab_size)](
        hidden,
        low_weight,
        bias,
        labels,
        sums[0],
        sums[-1],
        label_logits,
        count,
        vocab_size,
        tiles,
        1 / temperature,
        TEMPERED=is_tempered,
        **options,
    )
    return sums, label_logits


def accumulate(total: Tensor | None, part: Tensor) -> Tensor:
    """Add `part` to `total` in place, or begin with it."""
    if total is None:
        return part
    return total.add_(part)


def launch_grid(count: int, vocab_size: int) -> tuple[int]:
    """Return the number of programs: one for each block of rows and stretch of the vocabulary."""
    return (triton.cdiv(count, ROWS) * triton.cdiv(vocab_size, VOCAB_PER_PROGRAM),)


def launch_options(count: int, width: int) -> dict[str, int]:
    """Return tile sizes and compiler options for `count` vectors of `width`."""
    options = tile_options("linear_cross_entropy", size=width, count=count)
    width_tile = 64
    if width <= 128:
        width_tile = max(16, triton.next_power_of_2(width))
    sizes = {"E": width, "WIDTH_TILE": width_tile, "ROWS": ROWS}
    return {**sizes, "VOCAB_PER_PROGRAM": VOCAB_PER_PROGRAM, **options}


def linear_cross_entropy_reference(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    labels: Tensor,
    uniform: Tensor,
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Compute losses and samples in plain torch, for comparison."""
    logits = hidden @ weight.T + bias
    losses = F.cross_entropy(logits, labels, reduction="none")
    vocab_tile = launch_options(*hidden.shape)["VOCAB_TILE"]
    probs = (logits.detach() / temperature).softmax(-1)
    tiles = F.pad(probs, (0, -len(bias) % vocab_tile)).unflatten(-1, (-1, vocab_tile))
    chosen = invert_distribution(tiles.sum(-1), uniform[:, 0])
    token = invert_distribution(tiles[torch.arange(len(chosen)), chosen], uniform[:, 1])
    return losses, chosen * vocab_tile + token


def invert_distribution(weights: Tensor, uniform: Tensor) -> Tensor:
    """Return the indices [N] that numbers [N] in [0, 1) draw in proportion to weights [N, M]."""
    cumulative = weights.cumsum(-1)
    targets = uniform[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, targets, right=True).squeeze(1)
