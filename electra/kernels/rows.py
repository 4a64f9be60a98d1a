"""Which tokens look at which: rows that lie one after the other.

A batch [B, T] is mostly text, but in rows of 512 a fifth may be padding, and every matrix product
would go through it. So a batch may come packed: its real tokens row after row, and what little
padding is left at the end, cut into rows of its own that nobody else looks at and that get no
gradient. Every token has a row then, and no kernel needs to know of padding. Where a batch is not
packed, its tokens stay where they are, and a row's padding is the row after it.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor


class Rows(NamedTuple):
    """[N, D] tokens as rows: the r-th is tokens `bounds[r]` to `bounds[r + 1]`."""

    bounds: Tensor  # [rows + 1] int32, from 0 to N; a row may be empty
    longest: int  # tokens that a row may have
    packed: (
        Tensor | None
    )  # [N] which of the B · T tokens each one is; None where that is all of them, in order
    shape: torch.Size  # [B, T]

    @classmethod
    def of(cls, attention_mask: Tensor) -> Rows:
        """Of a batch whose `real` [B, T] says where there is text: at the beginning of each row."""
        if (packing := getattr(attention_mask, "packing", None)) is not None:
            return cls(
                packing.cu_seqlens,
                attention_mask.shape[1],
                packing.token_indices,
                attention_mask.shape,
            )
        begins = torch.arange(
            0,
            attention_mask.numel() + 1,
            attention_mask.shape[1],
            device=attention_mask.device,
            dtype=torch.int32,
        )
        ends = begins[:-1] + attention_mask.sum(dim=1, dtype=torch.int32)
        bounds = torch.cat([torch.stack([begins[:-1], ends], dim=1).flatten(), begins[-1:]])
        return cls(bounds, attention_mask.shape[1], None, attention_mask.shape)

    def pack(self, hidden: Tensor) -> Tensor:
        """[B, T, D] → [N, D]."""
        flat = hidden.flatten(0, 1)
        return flat if self.packed is None else cast(Tensor, Pack.apply(flat, self.packed))

    def unpack(self, tokens: Tensor) -> Tensor:
        """[N, D] → [B, T, D], zero where padding was left out."""
        if self.packed is not None:
            tokens = cast(Tensor, Unpack.apply(tokens, self.packed, self.shape.numel()))
        return tokens.view(*self.shape, -1)


class Pack(torch.autograd.Function):
    """Torch would add up what flows back, in case a token was taken twice."""

    @staticmethod
    def forward(ctx: Any, flat: Tensor, packed: Tensor) -> Tensor:
        ctx.save_for_backward(packed)
        ctx.tokens = len(flat)
        return flat.index_select(0, packed)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (packed,) = ctx.saved_tensors
        return spread(gradients[0], packed, ctx.tokens), None


class Unpack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor, packed: Tensor, count: int) -> Tensor:
        ctx.save_for_backward(packed)
        return spread(tokens, packed, count)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (packed,) = ctx.saved_tensors
        return gradients[0].index_select(0, packed), None, None


def spread(tokens: Tensor, packed: Tensor, count: int) -> Tensor:
    """[count, D] with each token where it was."""
    return tokens.new_zeros(count, tokens.shape[1]).index_copy_(0, packed, tokens)
