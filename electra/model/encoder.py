"""What the encoders of all families have in common: hidden states of token ids, block by block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import (
    TorchFunctionMode,
    handle_torch_function,
    has_torch_function_unary,
)
from torch.utils.checkpoint import checkpoint

from electra.config import UserError
from electra.model.attention import attend
from electra.model.dropout import Dropout
from electra.model.shape import EncoderShape

INITIAL_DEVIATION = 0.02
# The indices in B · T of the tokens that are kept, and the cumulative lengths (cu_seqlens) of the
# rows they form: what an encoder may use to leave padding out.
Packing = tuple[Tensor, Tensor]


class Encoder(nn.Module, ABC):
    """Turns token ids into hidden states: embeddings, then blocks.

    A family of encoders is a subclass; `electra.model.families` builds the one that a shape names.
    """

    shape: EncoderShape
    embeddings: nn.Module  # its `word_embeddings` hold the table [V, E], as `.weight`
    blocks: nn.ModuleList

    @property
    def vocabulary(self) -> int:
        return len(self.word_embeddings)

    @property
    def word_embeddings(self) -> Tensor:
        """The table [V, E] that token ids are looked up in."""
        table: Tensor = self.embeddings.word_embeddings.weight  # type: ignore[union-attr, assignment]
        return table

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        attention_mask: Tensor,
        packing: Packing | None = None,
    ) -> Tensor:
        """Return the last hidden states [B, T, D].

        `input_ids`, `token_type_ids` and `attention_mask` (False where padded) are [B, T]. Plain
        modules compute padding like any other token and do not use `packing`.
        """
        return self.hidden_states(input_ids, token_type_ids, attention_mask, packing)[-1]

    @abstractmethod
    def hidden_states(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        attention_mask: Tensor,
        packing: Packing | None = None,
    ) -> list[Tensor]:
        """Return the hidden states [B, T, D] of every layer, the embeddings' first."""

    @abstractmethod
    def build_beside(self, shape: EncoderShape) -> Encoder:
        """Return another encoder of this family that shares this one's embeddings."""

    def begin_with_token_type(self, token_type: int) -> None:
        """Let the first segment begin with the embedding of this token type, if there are any."""
        return

    def ignore_token_types(self) -> None:
        """Read every token as of the first segment, if there are any."""
        return

    def set_dropout(self, rate: float) -> None:
        """Set every dropout rate: fine-tuning has its own, whatever pre-training had."""
        self.shape = replace(self.shape, dropout=rate, attention_dropout=rate)
        for module in self.modules():
            if isinstance(module, Dropout):
                module.rate = rate
            elif isinstance(module, Attention):
                module.dropout = rate


def check_length(length: int, positions: int) -> None:
    if length > positions:
        raise UserError(
            f"rows of {length} tokens do not fit a network with encoder.positions={positions}; "
            "cut shorter rows or raise encoder.positions"
        )


class Block(nn.Module, ABC):
    """One layer of an encoder: attention, then feed-forward."""

    attention: Attention
    expand: nn.Linear
    contract: nn.Linear
    stacked_in_expand = 1  # matrices, by rows: two where the feed-forward layer is gated
    activation_checkpointing = False  # backward computes the block again instead of keeping it

    def forward(self, hidden: Tensor, *context: Tensor) -> Tensor:
        """Return the hidden states [B, T, D] after this layer."""
        if self.activation_checkpointing and torch.is_grad_enabled():
            # Inside the module and not around it: whoever hooks on to its calls sees one, not two.
            # Torch winds its generators back, so that the same values drop out.
            recomputed: Tensor = checkpoint(
                self.attend_and_transform, hidden, *context, use_reentrant=False
            )
            return recomputed
        return self.attend_and_transform(hidden, *context)

    @abstractmethod
    def attend_and_transform(self, hidden: Tensor, *context: Tensor) -> Tensor: ...

    def weight_matrices(self) -> dict[Tensor, int]:
        """Return every weight matrix, with the number of matrices that it stacks by rows."""
        return {
            self.attention.query_key_value.weight: 3,
            self.attention.output.weight: 1,
            self.expand.weight: self.stacked_in_expand,
            self.contract.weight: 1,
        }


class Attention(nn.Module):
    """Multi-head self-attention over the tokens that `visible` marks."""

    def __init__(self, shape: EncoderShape, *, bias: bool = True) -> None:
        super().__init__()
        self.heads, self.head_width = shape.heads, shape.head_width
        self.dropout = shape.attention_dropout
        # One matrix product, not three.
        self.query_key_value = nn.Linear(shape.width, 3 * shape.width, bias=bias)
        self.output = nn.Linear(shape.width, shape.width, bias=bias)

    def forward(self, hidden: Tensor, visible: Tensor) -> Tensor:
        query, key, value = self.project(hidden)
        return self.attend(query, key, value, visible)

    def project(self, hidden: Tensor) -> Tensor:
        """Return queries, keys and values, [3, B, H, T, K]."""
        projected = self.query_key_value(hidden)
        split: Tensor = projected.unflatten(-1, (3, self.heads, self.head_width))
        return split.permute(2, 0, 3, 1, 4)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor) -> Tensor:
        dropout = self.dropout * self.training
        context = attend(query, key, value, visible=visible, dropout=dropout)
        output: Tensor = self.output(context.transpose(1, 2).flatten(2))
        return output


def set_activation_checkpointing(module: nn.Module, enabled: bool) -> None:
    """Let every block inside keep only its input: a third more work, a fraction of the memory."""
    for part in module.modules():
        if isinstance(part, Block):
            part.activation_checkpointing = enabled


def initialise(module: nn.Module) -> None:
    """Initialise a table or matrix as the reference code does.

    Weights come from a normal distribution cut at two deviations. Biases are zero.
    """
    if isinstance(module, (nn.Linear, nn.Embedding)):
        cut_normal_(module.weight, deviation=INITIAL_DEVIATION)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def initialise_glorot(layer: nn.Linear) -> None:
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)


def cut_normal_(weight: Tensor, *, deviation: float) -> Tensor:
    """Draw weights from a normal distribution that is cut at two deviations."""
    if has_torch_function_unary(weight):
        replaced: Tensor = handle_torch_function(
            cut_normal_, (weight,), weight, deviation=deviation
        )
        return replaced
    return nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)


class ZerosForRandomValues(TorchFunctionMode):
    """Fill fresh weights with zeros: for networks whose weights are then read from a folder.

    Drawing them takes longer than reading them.
    """

    REPLACED = (
        cut_normal_,
        nn.init.kaiming_uniform_,  # torch's default for matrices
        nn.init.uniform_,  # for biases
        nn.init.normal_,  # and for tables
        Tensor.normal_,
        Tensor.uniform_,
    )

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        if func in self.REPLACED:
            return nn.init.zeros_(args[0] if args else named["tensor"])
        return func(*args, **named)
