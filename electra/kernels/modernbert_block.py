"""A ModernBERT block as one differentiable function, made like the paper's (`block`).

    stream, normed ─ attention of normed ─ add to stream ─ norm ─ GeGLU ─ add to stream ─ next norm

LayerNorm stands before each branch, and every addition to the residual stream is one kernel with
the norm that follows it. So a block takes the stream and its norm, and ends with the norm of the
next block, or of the encoder. The stream has the precision of the matrix products: rounded after
each sum, as the paper's block rounds after each norm.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from electra.kernels.activation import geglu, geglu_gradients
from electra.kernels.attention import attend
from electra.kernels.attention_backward import SavedAttention, attend_gradients
from electra.kernels.deferred_grads import DeferredGradients, sum_gradients
from electra.kernels.dropout import DropoutSite
from electra.kernels.low_precision import LowPrecisionCopies
from electra.kernels.norm import add_pre_norm, add_pre_norm_gradients
from electra.kernels.packing import PackedRows
from electra.kernels.rotary import RotaryPositions
from electra.kernels.weight_grads import product_gradient
from electra.model.modernbert_encoder import NORM_EPSILON

SITES = 3  # dropout sites of a block: attention probabilities, attention branch, GeGLU


class ModernBertWeights(NamedTuple):
    """The parameters of a block and the weight of the norm after it; matrices are [out, in]."""

    qkv: Tensor
    output: Tensor
    feedforward_norm: Tensor
    expand: Tensor
    contract: Tensor
    next_norm: Tensor


class LowMatrices(NamedTuple):
    """The matrices of a block in low precision."""

    qkv: Tensor
    output: Tensor
    expand: Tensor
    contract: Tensor


class ModernBertSettings(NamedTuple):
    """What is the same for every token of a pass."""

    heads: int
    dropout: float
    attention_dropout: float
    keys: Tensor  # [blocks · SITES, 2] of dropout in this pass
    first_key_row: int  # of this block's sites
    positions: RotaryPositions

    @property
    def dropout_sites(self) -> tuple[DropoutSite, DropoutSite, DropoutSite]:
        """Return the sites of attention probabilities, attention branch and GeGLU."""
        first = self.first_key_row
        return (
            DropoutSite(self.attention_dropout, self.keys, first),
            DropoutSite(self.attention_dropout, self.keys, first + 1),
            DropoutSite(self.dropout, self.keys, first + 2),
        )

    @property
    def no_dropout(self) -> DropoutSite:
        """Return the site of the feed-forward branch, which nothing drops out of."""
        return DropoutSite(0.0, self.keys, self.first_key_row)


def modernbert_block(
    stream: Tensor,
    normed: Tensor | None,
    rows: PackedRows,
    settings: ModernBertSettings,
    weights: ModernBertWeights,
    low_precision: LowPrecisionCopies,
) -> tuple[Tensor, Tensor]:
    """Return the residual stream [N, D] after a block, and the next norm of it.

    `normed` is the norm of `stream`; None before the first block, which reads the stream itself.
    """
    output = ModernBertFunction.apply(stream, normed, rows, settings, low_precision, *weights)
    return cast("tuple[Tensor, Tensor]", output)


class SavedModernBert(NamedTuple):
    """The tensors that the backward pass reads; activations are [N, …]."""

    normed: Tensor
    qkv: Tensor
    context: Tensor
    log_sums: Tensor
    middle: Tensor  # the stream after attention
    middle_normed: Tensor
    expanded: Tensor
    activated: Tensor
    stream: Tensor  # after the block
    qkv_weight: Tensor
    output_weight: Tensor
    expand_weight: Tensor
    contract_weight: Tensor
    feedforward_norm: Tensor
    next_norm: Tensor


class ModernBertFunction(torch.autograd.Function):
    """(stream, normed) → attention → add, norm → feed-forward → add, norm."""

    @staticmethod
    def forward(
        ctx: Any,
        stream: Tensor,
        normed: Tensor | None,
        rows: PackedRows,
        settings: ModernBertSettings,
        low_precision: LowPrecisionCopies,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        weights = ModernBertWeights(*parameters)
        ctx.rows, ctx.settings, ctx.is_first = rows, settings, normed is None
        ctx.weights, ctx.low_precision = weights, low_precision
        if normed is None:
            normed = stream
        matrices = (weights.qkv, weights.output, weights.expand, weights.contract)
        low = LowMatrices(*(low_precision(matrix, stream.dtype) for matrix in matrices))
        *output, saved = block_forward((stream, normed), rows, settings, weights, low)
        ctx.save_for_backward(*saved)
        return output[0], output[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        saved = SavedModernBert(*ctx.saved_tensors)
        d_stream, d_normed = gradients
        if d_normed is None:  # only a hidden state that is not the last was read
            d_normed = torch.zeros_like(saved.stream)
        if d_stream is not None:
            d_stream = d_stream.contiguous()
        above = (d_normed.contiguous(), d_stream)
        settings = (ctx.rows, ctx.settings, ctx.weights, ctx.low_precision.deferred)
        d_stream, d_normed, d_weights = block_backward(
            above, saved, *settings, is_first=ctx.is_first
        )
        return d_stream, d_normed, None, None, None, *d_weights


def block_forward(
    inputs: tuple[Tensor, Tensor],
    rows: PackedRows,
    settings: ModernBertSettings,
    weights: ModernBertWeights,
    low: LowMatrices,
) -> tuple[Tensor, Tensor, SavedModernBert]:
    """Return the stream after the block, its norm, and what the backward pass needs."""
    stream, normed = inputs
    at_probs, at_attention, at_geglu = settings.dropout_sites
    qkv = normed @ low.qkv.t()
    context, log_sums = attend(qkv, rows, settings.heads, at_probs, settings.positions)
    attention = context @ low.output.t()
    norm = weights.feedforward_norm
    middle, middle_normed = add_pre_norm(attention, stream, norm, at_attention, NORM_EPSILON)
    expanded = middle_normed @ low.expand.t()
    activated = geglu(expanded, at_geglu)
    feedforward = activated @ low.contract.t()
    output, output_normed = add_pre_norm(
        feedforward, middle, weights.next_norm, settings.no_dropout, NORM_EPSILON
    )
    attention_part = (normed, qkv, context, log_sums, middle, middle_normed)
    norms = (weights.feedforward_norm, weights.next_norm)
    saved = SavedModernBert(*attention_part, expanded, activated, output, *low, *norms)
    return output, output_normed, saved


def block_backward(
    above: tuple[Tensor, Tensor | None],
    saved: SavedModernBert,
    rows: PackedRows,
    settings: ModernBertSettings,
    weights: ModernBertWeights,
    deferred: DeferredGradients | None,
    *,
    is_first: bool,
) -> tuple[Tensor, Tensor | None, tuple[Tensor | None, ...]]:
    """Return the gradients of stream, normed and parameters, those that are not deferred; `above`
    are those of the output's norm and, unless nothing else reads it, of the output.
    """
    at_probs, at_attention, at_geglu = settings.dropout_sites
    d_feedforward, d_middle, last_sums = add_pre_norm_gradients(
        above, saved.stream, saved.next_norm, settings.no_dropout, NORM_EPSILON
    )
    d_contract = product_gradient(weights.contract, d_feedforward, saved.activated, deferred)
    d_activated = d_feedforward @ saved.contract_weight
    d_expanded = geglu_gradients(d_activated, saved.expanded, at_geglu)
    d_expand = product_gradient(weights.expand, d_expanded, saved.middle_normed, deferred)
    above = (d_expanded @ saved.expand_weight, d_middle)

    d_attention, d_stream, first_sums = add_pre_norm_gradients(
        above, saved.middle, saved.feedforward_norm, at_attention, NORM_EPSILON
    )
    d_output = product_gradient(weights.output, d_attention, saved.context, deferred)
    d_context = d_attention @ saved.output_weight
    attention = SavedAttention(saved.qkv, saved.context, saved.log_sums, settings.positions)
    d_qkv, _ = attend_gradients(attention, d_context, rows, at_probs, has_bias=False)
    d_qkv_weight = product_gradient(weights.qkv, d_qkv, saved.normed, deferred)
    d_normed = None
    if is_first:  # the stream itself was read
        d_stream.addmm_(d_qkv, saved.qkv_weight)
    else:
        d_normed = d_qkv @ saved.qkv_weight
    norms = (weights.next_norm, weights.feedforward_norm)
    d_next_norm, d_feedforward_norm = sum_gradients((last_sums, first_sums), norms, deferred)
    d_attention_part = (d_qkv_weight, d_output, d_feedforward_norm)
    return d_stream, d_normed, (*d_attention_part, d_expand, d_contract, d_next_norm)
