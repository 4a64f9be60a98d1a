"""The paper's transformer encoder: BERT's, with LayerNorm after each residual connection.

    input_ids ─────── word_embeddings ───────┐
    token_type_ids ── token_type_embeddings ─┼─ sum ─ norm ─ dropout ─ projection* ─ blocks
    positions ─────── position_embeddings ───┘

* only where the embedding width differs from the width of the blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from electra.config import UserError
from electra.model.attention import attend
from electra.model.dropout import Dropout
from electra.model.gelu import gelu
from electra.model.shape import EncoderShape

NORM_EPSILON = 1e-12
INITIAL_DEVIATION = 0.02
SEGMENTS = 2  # token types: 0 for [CLS] A [SEP], 1 for B [SEP]
# The indices in B · T of the tokens that are kept, and the cumulative lengths (cu_seqlens) of the
# rows they form: what an encoder may use to leave padding out.
Packing = tuple[Tensor, Tensor]


class Encoder(nn.Module):
    """Turns token ids into hidden states.

    Embeddings handed in are shared with whoever else holds them; the projection never is.
    """

    def __init__(
        self, shape: EncoderShape, *, vocabulary: int, embeddings: Embeddings | None = None
    ) -> None:
        super().__init__()
        self.shape = shape
        self.embeddings = embeddings or Embeddings(shape, vocabulary=vocabulary)
        assert self.embeddings.word_embeddings.weight.shape == (vocabulary, shape.embedding)
        self.projection = None
        if shape.has_projection:
            self.projection = nn.Linear(shape.embedding, shape.width)
            initialise_glorot(self.projection)  # reference code: its framework's default
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))

    @property
    def vocabulary(self) -> int:
        return self.embeddings.word_embeddings.num_embeddings

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

    def embed(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        """Return what the first block reads."""
        hidden: Tensor = self.embeddings(input_ids, token_type_ids)
        if self.projection is None:
            return hidden
        projected: Tensor = self.projection(hidden)
        return projected


class Embeddings(nn.Module):
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
        self.check_length(input_ids.shape[1])
        words = self.word_embeddings(input_ids)
        positions = self.position_embeddings.weight[: input_ids.shape[1]]
        embeddings: Tensor = self.norm(
            words + positions + self.token_type_embeddings(token_type_ids)
        )
        dropped: Tensor = self.dropout(embeddings)
        return dropped

    def check_length(self, length: int) -> None:
        if length > self.position_embeddings.num_embeddings:
            raise UserError(
                f"rows of {length} tokens do not fit a network with encoder.positions="
                f"{self.position_embeddings.num_embeddings}; cut shorter rows or raise "
                "encoder.positions"
            )


class Block(nn.Module):
    """Attention, then feed-forward; each is dropped out, added to its input and normalised."""

    activation_checkpointing = False  # backward computes the block again instead of keeping it

    def __init__(self, shape: EncoderShape) -> None:
        super().__init__()
        self.attention = Attention(shape)
        self.attention_norm = nn.LayerNorm(shape.width, eps=NORM_EPSILON)
        self.expand = nn.Linear(shape.width, shape.feedforward)
        self.contract = nn.Linear(shape.feedforward, shape.width)
        self.feedforward_norm = nn.LayerNorm(shape.width, eps=NORM_EPSILON)
        self.dropout = Dropout(shape.dropout)
        self.apply(initialise)

    def forward(self, hidden: Tensor, visible: Tensor) -> Tensor:
        if self.activation_checkpointing and torch.is_grad_enabled():
            # Inside the module and not around it: whoever hooks on to its calls sees one, not two.
            # Torch winds its generators back, so that the same values drop out.
            recomputed: Tensor = checkpoint(
                self.attend_and_transform, hidden, visible, use_reentrant=False
            )
            return recomputed
        return self.attend_and_transform(hidden, visible)

    def attend_and_transform(self, hidden: Tensor, visible: Tensor) -> Tensor:
        hidden = self.attention_norm(hidden + self.dropout(self.attention(hidden, visible)))
        transformed = self.contract(gelu(self.expand(hidden)))
        hidden = self.feedforward_norm(hidden + self.dropout(transformed))
        return hidden


class Attention(nn.Module):
    """Multi-head self-attention over the tokens that `visible` marks."""

    def __init__(self, shape: EncoderShape) -> None:
        super().__init__()
        self.heads, self.head_width = shape.heads, shape.head_width
        self.dropout = shape.attention_dropout
        self.query_key_value = nn.Linear(shape.width, 3 * shape.width)  # one matmul, not three
        self.output = nn.Linear(shape.width, shape.width)

    def forward(self, hidden: Tensor, visible: Tensor) -> Tensor:
        projected = self.query_key_value(hidden)
        split = projected.unflatten(-1, (3, self.heads, self.head_width))  # [B, T, 3, H, K]
        query, key, value = split.permute(2, 0, 3, 1, 4)  # [B, H, T, K] each
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
        bound = 2 * INITIAL_DEVIATION
        nn.init.trunc_normal_(module.weight, std=INITIAL_DEVIATION, a=-bound, b=bound)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


def initialise_glorot(layer: nn.Linear) -> None:
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
