"""A transformer block as one differentiable function: matrix products by cuBLAS, one kernel between
each two.

Everything the backward pass needs is kept in low precision; what dropped out is computed again. A
gradient that reaches a token by two ways is summed inside the product that brings the second, and
every bias gradient comes from a kernel that reads those values anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from electra.kernels.activation import gelu, gelu_gradients
from electra.kernels.attention import attend
from electra.kernels.attention_backward import SavedAttention, attend_gradients
from electra.kernels.deferred_grads import DeferredGradients, sum_gradients
from electra.kernels.dropout import DropoutSite
from electra.kernels.low_precision import LowPrecisionCopies
from electra.kernels.norm import add_norm, add_norm_gradients
from electra.kernels.packing import PackedRows
from electra.kernels.weight_grads import WeightGrads

SITES = 3  # dropout sites of a block: attention probabilities, and both branches


class BlockWeights(NamedTuple):
    """The parameters of a block; matrices are [out, in]."""

    qkv: Tensor
    qkv_bias: Tensor
    output: Tensor
    output_bias: Tensor
    attention_norm: Tensor
    attention_norm_bias: Tensor
    expand: Tensor
    expand_bias: Tensor
    contract: Tensor
    contract_bias: Tensor
    feedforward_norm: Tensor
    feedforward_norm_bias: Tensor


class BlockSettings(NamedTuple):
    """What is the same for every token of a pass."""

    heads: int
    dropout: float
    attention_dropout: float
    keys: Tensor  # [blocks · SITES, 2] of dropout in this pass
    first_key_row: int  # of this block's sites

    @property
    def dropout_sites(self) -> tuple[DropoutSite, DropoutSite, DropoutSite]:
        """Return the sites of attention probabilities, attention branch and feed-forward branch."""
        first = self.first_key_row
        return (
            DropoutSite(self.attention_dropout, self.keys, first),
            DropoutSite(self.dropout, self.keys, first + 1),
            DropoutSite(self.dropout, self.keys, first + 2),
        )


def block(
    hidden: Tensor,
    rows: PackedRows,
    settings: BlockSettings,
    weights: BlockWeights,
    low_precision: LowPrecisionCopies,
    passes: BlockPasses | None = None,
) -> Tensor:
    """Return the output [N, D] of one transformer block, in the low precision of `hidden`."""
    passes = passes or BlockPasses(block_forward, block_backward)
    output = BlockFunction.apply(hidden, rows, settings, low_precision, passes, *weights)
    return cast(Tensor, output)


class SavedBlock(NamedTuple):
    """The tensors that the backward pass reads; activations are [N, …]."""

    hidden: Tensor
    qkv: Tensor
    context: Tensor
    log_sums: Tensor
    attention: Tensor
    middle: Tensor  # after the attention's norm
    expanded: Tensor
    activated: Tensor
    feedforward: Tensor
    qkv_weight: Tensor
    output_weight: Tensor
    expand_weight: Tensor
    contract_weight: Tensor
    attention_norm: Tensor
    feedforward_norm: Tensor


class BlockPasses(NamedTuple):
    """The forward and the backward pass of a block, which other kernels may compute than these."""

    forward: Callable[..., tuple[Tensor, SavedBlock]]
    backward: Callable[..., tuple[Tensor, tuple[Tensor | None, ...]]]


class BlockFunction(torch.autograd.Function):
    """hidden → attention → add & norm → feed-forward → add & norm."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        rows: PackedRows,
        settings: BlockSettings,
        low_precision: LowPrecisionCopies,
        passes: BlockPasses,
        *parameters: Tensor,
    ) -> Tensor:
        weights = BlockWeights(*parameters)
        low = BlockWeights(*(low_precision(weight, hidden.dtype) for weight in weights))
        output, saved = passes.forward(hidden, rows, settings, weights, low)
        ctx.rows, ctx.settings, ctx.passes = rows, settings, passes
        ctx.weights, ctx.low_precision = weights, low_precision
        ctx.save_for_backward(*saved)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        saved = SavedBlock(*ctx.saved_tensors)
        deferred = ctx.low_precision.deferred
        d_hidden, d_weights = ctx.passes.backward(
            gradients[0], saved, ctx.rows, ctx.settings, ctx.weights, deferred
        )
        return d_hidden, None, None, None, None, *d_weights


def block_forward(
    hidden: Tensor,
    rows: PackedRows,
    settings: BlockSettings,
    weights: BlockWeights,
    low: BlockWeights,
) -> tuple[Tensor, SavedBlock]:
    """Return the output of a block, and what its backward pass needs; `low` are the weights in low
    precision.
    """
    at_probs, at_attention, at_feedforward = settings.dropout_sites
    qkv = torch.addmm(low.qkv_bias, hidden, low.qkv.t())
    context, log_sums = attend(qkv, rows, settings.heads, at_probs)
    attention = torch.addmm(low.output_bias, context, low.output.t())
    norm = (weights.attention_norm, weights.attention_norm_bias)
    middle = add_norm(attention, hidden, *norm, at_attention)
    expanded = torch.addmm(low.expand_bias, middle, low.expand.t())
    activated = gelu(expanded)
    feedforward = torch.addmm(low.contract_bias, activated, low.contract.t())
    norm = (weights.feedforward_norm, weights.feedforward_norm_bias)
    output = add_norm(feedforward, middle, *norm, at_feedforward)
    activations = (hidden, qkv, context, log_sums, attention, middle, expanded, activated)
    matrices = (low.qkv, low.output, low.expand, low.contract)
    norms = (weights.attention_norm, weights.feedforward_norm)
    return output, SavedBlock(*activations, feedforward, *matrices, *norms)


def block_backward(
    d_output: Tensor,
    saved: SavedBlock,
    rows: PackedRows,
    settings: BlockSettings,
    weights: BlockWeights,
    deferred: DeferredGradients | None,
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """Return the gradients of the block's input and of its parameters, those that are not
    deferred.
    """
    at_probs, at_attention, at_feedforward = settings.dropout_sites
    weight_grads = WeightGrads(d_output.shape[1], deferred)
    d_feedforward, d_middle, last_sums = add_norm_gradients(
        d_output.contiguous(),
        saved.feedforward,
        saved.middle,
        saved.feedforward_norm,
        at_feedforward,
    )
    weight_grads.add(weights.contract, d_feedforward, saved.activated)
    d_expanded, expand_sums = gelu_gradients(d_feedforward @ saved.contract_weight, saved.expanded)
    weight_grads.add(weights.expand, d_expanded, saved.middle)
    d_middle.addmm_(d_expanded, saved.expand_weight)

    d_attention, d_hidden, first_sums = add_norm_gradients(
        d_middle, saved.attention, saved.hidden, saved.attention_norm, at_attention
    )
    weight_grads.add(weights.output, d_attention, saved.context)
    d_context = d_attention @ saved.output_weight
    attention = SavedAttention(saved.qkv, saved.context, saved.log_sums)
    d_qkv, qkv_sums = attend_gradients(attention, d_context, rows, at_probs, has_bias=True)
    assert qkv_sums is not None
    weight_grads.add(weights.qkv, d_qkv, saved.hidden)
    d_hidden.addmm_(d_qkv, saved.qkv_weight)

    partials = (last_sums, expand_sums, first_sums, qkv_sums)
    d_vectors = sum_gradients(partials, summed_weights(weights), deferred)
    return d_hidden, in_order_of_weights(weight_grads.all(), d_vectors)


def summed_weights(weights: BlockWeights) -> tuple[Tensor, ...]:
    """Return the biases and norms of a block in the order of its partial sums."""
    return (
        *(weights.feedforward_norm, weights.feedforward_norm_bias, weights.contract_bias),
        weights.expand_bias,
        *(weights.attention_norm, weights.attention_norm_bias, weights.output_bias),
        weights.qkv_bias,
    )


def in_order_of_weights(
    d_matrices: list[Tensor | None], d_vectors: list[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """Return the gradients of a block in the order of BlockWeights."""
    d_contract, d_expand, d_output, d_qkv = d_matrices
    d_last, d_last_bias, d_contract_bias, d_expand_bias, *d_attention = d_vectors
    d_first, d_first_bias, d_output_bias, d_qkv_bias = d_attention
    return (
        *(d_qkv, d_qkv_bias, d_output, d_output_bias, d_first, d_first_bias),
        *(d_expand, d_expand_bias, d_contract, d_contract_bias, d_last, d_last_bias),
    )
