"""A transformer block as one differentiable function: matrix products by cuBLAS, one kernel between
each two.

Everything the backward pass needs is kept in low precision; what dropped out is computed again. A
gradient that reaches a token by two ways is summed inside the product that brings the second, and
every bias gradient comes from a kernel that reads those values anyway.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from electra.kernels.activation import gelu, gelu_gradients
from electra.kernels.attention import attend
from electra.kernels.attention_backward import SavedAttention, attend_gradients
from electra.kernels.column_sums import reduce_partials
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
) -> Tensor:
    """Return the output [N, D] of one transformer block, in the low precision of `hidden`."""
    return cast(Tensor, BlockFunction.apply(hidden, rows, settings, low_precision, *weights))


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


class BlockFunction(torch.autograd.Function):
    """hidden → attention → add & norm → feed-forward → add & norm."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        rows: PackedRows,
        settings: BlockSettings,
        low_precision: LowPrecisionCopies,
        *parameters: Tensor,
    ) -> Tensor:
        weights = BlockWeights(*parameters)
        low = BlockWeights(*(low_precision(weight, hidden.dtype) for weight in weights))
        output, saved = block_forward(hidden, rows, settings, weights, low)
        ctx.rows, ctx.settings = rows, settings
        ctx.save_for_backward(*saved)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        saved = SavedBlock(*ctx.saved_tensors)
        d_hidden, d_weights = block_backward(gradients[0], saved, ctx.rows, ctx.settings)
        return d_hidden, None, None, None, *d_weights


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
    d_output: Tensor, saved: SavedBlock, rows: PackedRows, settings: BlockSettings
) -> tuple[Tensor, BlockWeights]:
    """Return the gradients of the block's input and of its parameters."""
    at_probs, at_attention, at_feedforward = settings.dropout_sites
    weight_grads = WeightGrads(d_output.shape[1])
    d_feedforward, d_middle, last_sums = add_norm_gradients(
        d_output.contiguous(),
        saved.feedforward,
        saved.middle,
        saved.feedforward_norm,
        at_feedforward,
    )
    weight_grads.add(d_feedforward, saved.activated)
    d_expanded, expand_sums = gelu_gradients(d_feedforward @ saved.contract_weight, saved.expanded)
    weight_grads.add(d_expanded, saved.middle)
    d_middle.addmm_(d_expanded, saved.expand_weight)

    d_attention, d_hidden, first_sums = add_norm_gradients(
        d_middle, saved.attention, saved.hidden, saved.attention_norm, at_attention
    )
    weight_grads.add(d_attention, saved.context)
    d_context = d_attention @ saved.output_weight
    attention = SavedAttention(saved.qkv, saved.context, saved.log_sums)
    d_qkv, qkv_sums = attend_gradients(attention, d_context, rows, at_probs, has_bias=True)
    assert qkv_sums is not None
    weight_grads.add(d_qkv, saved.hidden)
    d_hidden.addmm_(d_qkv, saved.qkv_weight)

    d_contract, d_expand, d_output_weight, d_qkv_weight = weight_grads.all()
    last, d_expand_bias, first, d_qkv_bias = reduce_partials(
        last_sums, expand_sums, first_sums, qkv_sums
    )
    d_attention_part = (d_qkv_weight, d_qkv_bias, d_output_weight, first[2], first[0], first[1])
    d_feedforward_part = (d_expand, d_expand_bias, d_contract, last[2], last[0], last[1])
    return d_hidden, BlockWeights(*d_attention_part, *d_feedforward_part)
