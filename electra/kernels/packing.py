"""Rows of tokens for attention, with most padding left out.

A batch [B, T] is mostly text, but in rows of 512 a fifth may be padding, and every matrix product
would go through it. So a batch may come packed: its real tokens row after row, and what little
padding is left at the end, cut into rows of its own that no other token attends to and that get no
gradient. Every token has a row then, and no kernel needs to know of padding. Where a batch is not
packed, its tokens stay where they are, and the padding of a row is the row after it.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from electra.model.encoder import Packing


class PackedRows(NamedTuple):
    """[N, D] tokens as rows: row r holds tokens `cu_seqlens[r]` to `cu_seqlens[r + 1]`."""

    cu_seqlens: Tensor  # [rows + 1] int32, from 0 to N; a row may be empty
    max_seqlen: int  # tokens that a row may have
    # [N] which of the B · T tokens each one is; None where that is all of them, in order
    token_indices: Tensor | None
    shape: torch.Size  # [B, T]

    @classmethod
    def from_mask(cls, attention_mask: Tensor, packing: Packing | None = None) -> PackedRows:
        """Return the rows of a batch whose padding stands at the end of each row.

        `attention_mask` [B, T] is True where there is a token; `packing` is (token_indices,
        cu_seqlens) of a packed batch.
        """
        if packing is not None:
            token_indices, cu_seqlens = packing
            return cls(cu_seqlens, attention_mask.shape[1], token_indices, attention_mask.shape)
        starts = torch.arange(
            0,
            attention_mask.numel() + 1,
            attention_mask.shape[1],
            device=attention_mask.device,
            dtype=torch.int32,
        )
        ends = starts[:-1] + attention_mask.sum(dim=1, dtype=torch.int32)
        cu_seqlens = torch.cat([torch.stack([starts[:-1], ends], dim=1).flatten(), starts[-1:]])
        return cls(cu_seqlens, attention_mask.shape[1], None, attention_mask.shape)

    @property
    def packing(self) -> Packing | None:
        """Return (token_indices, cu_seqlens) of a packed batch."""
        if self.token_indices is None:
            return None
        return self.token_indices, self.cu_seqlens

    def unpack(self, tokens: Tensor) -> Tensor:
        """Return [B, T, D] of `tokens` [N, D], with zeros where padding was left out."""
        if self.token_indices is not None:
            count = self.shape.numel()
            tokens = cast(Tensor, UnpackTokens.apply(tokens, self.token_indices, count))
        return tokens.view(*self.shape, -1)


class UnpackTokens(torch.autograd.Function):
    """Put tokens back to their indices in the batch."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, token_indices: Tensor, count: int) -> Tensor:
        ctx.save_for_backward(token_indices)
        padded = tokens.new_zeros(count, tokens.shape[1])
        return padded.index_copy_(0, token_indices, tokens)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (token_indices,) = ctx.saved_tensors
        return gradients[0].index_select(0, token_indices), None, None
