"""A transformer block as one differentiable function: matrix products by cuBLAS, one kernel between
each two.

Everything the backward pass needs is kept in low precision; what dropped out is computed again. A
gradient that reaches a token by two ways is summed inside the product that brings the second, and
every bias gradient falls out of a kernel that reads those values anyway.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from electra.kernels import weight_grad
from electra.kernels.activation import gelu, gelu_gradients
from electra.kernels.attention import attend, attend_gradients
from electra.kernels.column_sums import reduce_partials
from electra.kernels.dropout import DropoutSite
from electra.kernels.low_precision import LowPrecisionCopies
from electra.kernels.norm import add_norm, add_norm_gradients
from electra.kernels.packing import PackedRows

SITES = 3  # where a block drops values out: shares of attention, and both branches


class Weights(NamedTuple):
    """A block's parameters; matrices are [out, in]."""

    qkv: Tensor
    qkv_bias: Tensor
    output: Tensor
    output_bias: Tensor
    attention_scale: Tensor
    attention_shift: Tensor
    expand: Tensor
    expand_bias: Tensor
    contract: Tensor
    contract_bias: Tensor
    feedforward_scale: Tensor
    feedforward_shift: Tensor


class BlockSettings(NamedTuple):
    """What is the same for every token of a pass."""

    heads: int
    dropout: float
    attention_dropout: float
    keys: Tensor  # [blocks · SITES, 2] what drops out in this pass
    first_key_row: int  # of this block's sites

    @property
    def dropout_sites(self) -> tuple[DropoutSite, DropoutSite, DropoutSite]:
        rates = (self.attention_dropout, self.dropout, self.dropout)
        first, second, third = (
            DropoutSite(rate, self.keys, self.first_key_row + i) for i, rate in enumerate(rates)
        )
        return first, second, third


def block(
    hidden: Tensor,
    rows: PackedRows,
    settings: BlockSettings,
    weights: Weights,
    low_precision: LowPrecisionCopies,
) -> Tensor:
    """Return the output [N, D] of one transformer block, in the low precision of `hidden`."""
    return cast(Tensor, Block.apply(hidden, rows, settings, low_precision, *weights))


class Block(torch.autograd.Function):
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
        weights = Weights(*parameters)
        low = Weights(*(low_precision(weight, hidden.dtype) for weight in weights))
        at_scores, at_attention, at_feedforward = settings.dropout_sites
        qkv = torch.addmm(low.qkv_bias, hidden, low.qkv.t())
        mixed, log_sums = attend(qkv, rows, settings.heads, at_scores)
        attention = torch.addmm(low.output_bias, mixed, low.output.t())
        middle = add_norm(
            attention, hidden, weights.attention_scale, weights.attention_shift, at_attention
        )
        expanded = torch.addmm(low.expand_bias, middle, low.expand.t())
        active = gelu(expanded)
        feedforward = torch.addmm(low.contract_bias, active, low.contract.t())
        out = add_norm(
            feedforward,
            middle,
            weights.feedforward_scale,
            weights.feedforward_shift,
            at_feedforward,
        )
        ctx.rows, ctx.settings = rows, settings
        ctx.save_for_backward(
            hidden,
            qkv,
            mixed,
            log_sums,
            attention,
            middle,
            expanded,
            active,
            feedforward,
            low.qkv,
            low.output,
            low.expand,
            low.contract,
            weights.attention_scale,
            weights.feedforward_scale,
        )
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (
            hidden,
            qkv,
            mixed,
            log_sums,
            attention,
            middle,
            expanded,
            active,
            feedforward,
            qkv_weight,
            output_weight,
            expand_weight,
            contract_weight,
            attention_scale,
            feedforward_scale,
        ) = ctx.saved_tensors
        rows: PackedRows = ctx.rows
        settings: BlockSettings = ctx.settings
        at_scores, at_attention, at_feedforward = settings.dropout_sites

        d_feedforward, d_middle, last_sums = add_norm_gradients(
            gradients[0].contiguous(), feedforward, middle, feedforward_scale, at_feedforward
        )
        d_contract = weight_grad(d_feedforward.t(), active)
        d_expanded, expand_sums = gelu_gradients(d_feedforward @ contract_weight, expanded)
        d_expand = weight_grad(d_expanded.t(), middle)
        d_middle.addmm_(d_expanded, expand_weight)

        d_attention, d_hidden, first_sums = add_norm_gradients(
            d_middle, attention, hidden, attention_scale, at_attention
        )
        d_output = weight_grad(d_attention.t(), mixed)
        d_mixed = d_attention @ output_weight
        d_qkv, qkv_sums = attend_gradients(
            qkv, rows, mixed, d_mixed, log_sums, settings.heads, at_scores
        )
        d_weight = weight_grad(d_qkv.t(), hidden)
        d_hidden.addmm_(d_qkv, qkv_weight)
        last, d_expand_bias, first, d_qkv_bias = reduce_partials(
            last_sums, expand_sums, first_sums, qkv_sums
        )
        return (
            d_hidden,
            None,
            None,
            None,
            d_weight,
            d_qkv_bias,
            d_output,
            first[2],
            first[0],
            first[1],
            d_expand,
            d_expand_bias,
            d_contract,
            last[2],
            last[0],
            last[1],
        )
