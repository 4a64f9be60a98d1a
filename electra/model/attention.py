"""Attention with dropout, as a CPU computes it quickly."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.model.dropout import kept


def attend(
    query: Tensor, key: Tensor, value: Tensor, *, attended: Tensor, dropout: float
) -> Tensor:
    """[B, H, T, K] each; `attended` is [B, 1, 1 or T, T]. Torch's own, but for training on a CPU
    with dropout: there it has no fused kernel, and multiplies by transposed matrices one small one
    at a time, which OpenBLAS does up to eight times more slowly than by the same ones copied into
    order.
    """
    if (
        dropout
        and query.requires_grad
        and query.device.type == "cpu"
        and query.dtype in (torch.float32, torch.float64)
    ):
        return cast(Tensor, CPUAttention.apply(query, key, value, attended, dropout))  # type: ignore[no-untyped-call]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=attended, dropout_p=dropout)


class CPUAttention(torch.autograd.Function):
    """softmax(QKᵀ/√K) V with some of the shares dropped; every matrix on the right of a product
    lies in order.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, attended: Tensor, dropout: float
    ) -> Tensor:
        query, key, value = query / math.sqrt(query.shape[-1]), key.contiguous(), value.contiguous()
        scores = query @ key.mT.contiguous()
        share = scores.masked_fill_(~attended, -math.inf).softmax(dim=-1)  # [B, H, T, T]
        keep = kept(share, dropout)
        ctx.save_for_backward(query, key, value, share, keep)
        return (share * keep) @ value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, share, keep = cast(tuple[Tensor, ...], ctx.saved_tensors)
        mixed = gradients[0].contiguous()
        scores = (mixed @ value.mT.contiguous()).mul_(keep)
        scores = scores.sub_((scores * share).sum(dim=-1, keepdim=True)).mul_(share)
        return (
            (scores @ key) / math.sqrt(query.shape[-1]),
            scores.mT @ query,
            (share * keep).mT @ mixed,
            None,
            None,
        )
