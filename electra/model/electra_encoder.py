"""The paper's transformer encoder: BERT's, with LayerNorm after each residual connection.

    input_ids ─────── word_embeddings ───────┐
    token_type_ids ── token_type_embeddings ─┼─ sum ─ norm ─ dropout ─ projection* ─ blocks
    positions ─────── position_embeddings ───┘

* only where the embedding width differs from the width of the blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from electra.model.dropout import Dropout
from electra.model.encoder import (
    Attention,
    Block,
    Encoder,
    Packing,
    check_length,
    initialise,
    initialise_glorot,
)
from electra.model.gelu import gelu
from electra.model.shape import EncoderShape

NORM_EPSILON = 1e-12
SEGMENTS = 2  # token types: 0 for [CLS] A [SEP], 1 for B [SEP]


class ElectraEncoder(Encoder):
    """BERT's encoder: LayerNorm after each residual connection, learned positions.

    Embeddings handed in are shared with whoever else holds them; the projection never is.
    """

    embeddings: ElectraEmbeddings

    def __init__(
        self, shape: EncoderShape, *, vocabulary: int, embeddings: ElectraEmbeddings | None = None
    ) -> None:
        super().__init__()
        self.shape = shape
        self.embeddings = embeddings or ElectraEmbeddings(shape, vocabulary=vocabulary)
        assert self.embeddings.word_embeddings.weight.shape == (vocabulary, shape.embedding)
        self.projection = None
        if shape.has_projection:
            self.projection = nn.Linear(shape.embedding, shape.width)
            initialise_glorot(self.projection)  # reference code: its framework's default
        self.blocks = nn.ModuleList(ElectraBlock(shape) for _ in range(shape.layers))

    def hidden_states(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        attention_mask: Tensor,
        packing: Packing | None = None,
    ) -> list[Tensor]:
        """Return the hidden states [B, T, D] of every layer, the embeddings' first."""
        hidden = self.embed(input_ids, token_type_ids)
        # The mask is passed even when every row is full: to find out would stop a GPU each step,
        # and on a CPU attention without it is no faster (27.3 against 27.9 ms forward and backward,
        # 16 rows of 128, 4 heads).
        visible = attention_mask[:, None, None, :]  # [B, 1, 1, T]: broadcast over heads and queries
        if self.shape.causal:
            length = attention_mask.shape[1]
            causal = torch.ones_like(attention_mask[0]).expand(length, -1).tril()
            visible = visible & causal  # [B, 1, T, T]
        states = [hidden]
        for block in self.blocks:
            states.append(block(states[-1], visible))
        return states

    def build_beside(self, shape: EncoderShape) -> ElectraEncoder:
        return ElectraEncoder(shape, vocabulary=self.vocabulary, embeddings=self.embeddings)

    def begin_with_token_type(self, token_type: int) -> None:
        table = self.embeddings.token_type_embeddings.weight
        with torch.no_grad():
            table[0] = table[token_type]

    def ignore_token_types(self) -> None:
        table = self.embeddings.token_type_embeddings.weight
        with torch.no_grad():
            table[1:] = table[0]

    def embed(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        """Return what the first block reads."""
        hidden: Tensor = self.embeddings(input_ids, token_type_ids)
        if self.projection is None:
            return hidden
        projected: Tensor = self.projection(hidden)
        return projected


class ElectraEmbeddings(nn.Module):
    """Sums a token's word, position and segment embeddings and normalises the sum."""

    def __init__(self, shape: EncoderShape, *, vocabulary: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(vocabulary, shape.embedding)
        self.position_embeddings = nn.Embedding(shape.positions, shape.embedding)
        self.token_type_embeddings = nn.Embedding(SEGMENTS, shape.embedding)
        self.norm = nn.LayerNorm(shape.embedding, eps=NORM_EPSILON)
        self.dropout = Dropout(shape.dropout)
        self.apply(initialise)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        """Return embeddings [B, T, E]."""
        check_length(input_ids.shape[1], self.position_embeddings.num_embeddings)
        words = self.word_embeddings(input_ids)
        positions = self.position_embeddings.weight[: input_ids.shape[1]]
        embeddings: Tensor = self.norm(
            words + positions + self.token_type_embeddings(token_type_ids)
        )
        dropped: Tensor = self.dropout(embeddings)
        return dropped


class ElectraBlock(Block):
    """Attention, then feed-forward; each is dropped out, added to its input and normalised."""

    def __init__(self, shape: EncoderShape) -> None:
        super().__init__()
        self.attention = Attention(shape)
        self.attention_norm = nn.LayerNorm(shape.width, eps=NORM_EPSILON)
        self.expand = nn.Linear(shape.width, shape.feedforward)
        self.contract = nn.Linear(shape.feedforward, shape.width)
        self.feedforward_norm = nn.LayerNorm(shape.width, eps=NORM_EPSILON)
        self.dropout = Dropout(shape.dropout)
        self.apply(initialise)

    def attend_and_transform(self, hidden: Tensor, *context: Tensor) -> Tensor:
        hidden = self.attention_norm(hidden + self.dropout(self.attention(hidden, *context)))
        transformed = self.contract(gelu(self.expand(hidden)))
        hidden = self.feedforward_norm(hidden + self.dropout(transformed))
        return hidden
