"""Attention with dropout, as a CPU computes it quickly."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.model.dropout import scaled_keep_mask


def attend(query: Tensor, key: Tensor, value: Tensor, *, visible: Tensor, dropout: float) -> Tensor:
    """Return softmax(QKᵀ/√K) V of [B, H, T, K] each; `visible` is [B, 1, 1 or T, T].

    Torch's own function, but for training on a CPU with dropout. There it has no fused kernel, and
    multiplies by transposed matrices one small one at a time, which OpenBLAS does up to eight times
    more slowly than by the same ones copied into order.
    """
    is_float = query.dtype in (torch.float32, torch.float64)
    if dropout and query.requires_grad and query.device.type == "cpu" and is_float:
        context = CPUAttention.apply(query, key, value, visible, dropout)  # type: ignore[no-untyped-call]
        return cast(Tensor, context)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=visible, dropout_p=dropout)


class CPUAttention(torch.autograd.Function):
    """softmax(QKᵀ/√K) V with dropout; every matrix on the right of a product lies in order."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, visible: Tensor, dropout: float
    ) -> Tensor:
        query = query / math.sqrt(query.shape[-1])
        key, value = key.contiguous(), value.contiguous()
        scores = query @ key.mT.contiguous()
        probs = scores.masked_fill_(~visible, -math.inf).softmax(dim=-1)  # [B, H, T, T]
        keep = scaled_keep_mask(probs, dropout)
        ctx.save_for_backward(query, key, value, probs, keep)
        return (probs * keep) @ value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, probs, keep = cast(tuple[Tensor, ...], ctx.saved_tensors)
        d_context = gradients[0].contiguous()
        d_scores = (d_context @ value.mT.contiguous()).mul_(keep)
        d_scores = d_scores.sub_((d_scores * probs).sum(dim=-1, keepdim=True)).mul_(probs)
        d_query = (d_scores @ key) / math.sqrt(query.shape[-1])
        return d_query, d_scores.mT @ query, (probs * keep).mT @ d_context, None, None
