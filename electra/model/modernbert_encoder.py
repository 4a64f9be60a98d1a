"""ModernBERT's transformer encoder (Warner et al. 2024), as stock transformers has it.

    input_ids ─ word_embeddings ─ projection* ─ norm ─ dropout ─ blocks ─ final_norm

* only where the embedding width differs from the width of the blocks; folded into one table where
a model folder is written, since `ModernBertModel` has none.

LayerNorm stands before attention and feed-forward, not after. Positions are rotary, the
feed-forward layer is gated (GeGLU), and nothing has a bias. There are no token types: [SEP] alone
tells a pair apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from electra.model.dropout import Dropout
from electra.model.encoder import (
    INITIAL_DEVIATION,
    Attention,
    Block,
    Encoder,
    Packing,
    check_length,
    cut_normal_,
    initialise,
)
from electra.model.gelu import gelu
from electra.model.shape import EncoderShape

NORM_EPSILON = 1e-5


def layer_norm(width: int) -> nn.LayerNorm:
    return nn.LayerNorm(width, eps=NORM_EPSILON, bias=False)


class ModernBertEncoder(Encoder):
    """Pre-norm blocks with rotary positions and GeGLU."""

    embeddings: ModernBertEmbeddings

    def __init__(self, shape: EncoderShape, *, vocabulary: int) -> None:
        super().__init__()
        self.shape = shape
        self.embeddings = ModernBertEmbeddings(shape, vocabulary=vocabulary)
        self.blocks = nn.ModuleList(ModernBertBlock(shape, n) for n in range(shape.layers))
        self.final_norm = layer_norm(shape.width)

    def build_beside(self, shape: EncoderShape) -> ModernBertEncoder:
        other = ModernBertEncoder(shape, vocabulary=self.vocabulary)
        other.embeddings.word_embeddings = self.embeddings.word_embeddings
        return other

    def hidden_states(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        attention_mask: Tensor,
        packing: Packing | None = None,
    ) -> list[Tensor]:
        """Return the hidden states [B, T, D] of every layer; the last ones are normalised."""
        check_length(input_ids.shape[1], self.shape.positions)
        states = [self.embeddings(input_ids)]
        for block, context in zip(self.blocks, self.contexts(attention_mask), strict=True):
            states.append(block(states[-1], *context))
        states[-1] = self.final_norm(states[-1])
        return states

    def contexts(self, attention_mask: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield for each layer the tokens that it may see, and the angles of its positions."""
        shape, length, device = self.shape, attention_mask.shape[1], attention_mask.device
        assert shape.rope_theta is not None
        assert shape.local_rope_theta is not None
        assert shape.local_attention is not None
        visible = attention_mask[:, None, None, :]  # [B, 1, 1, T]
        context = (visible, *rotary_angles(length, shape.head_width, shape.rope_theta, device))
        local = context
        if shape.global_every != 1:
            positions = torch.arange(length, device=device)
            distance = (positions[:, None] - positions).abs()
            # Padding that is far from any token sees itself: a softmax over nothing is not finite.
            window = visible | (distance == 0)  # [B, 1, T, T]
            window = window & (distance <= shape.local_attention // 2)
            angles = rotary_angles(length, shape.head_width, shape.local_rope_theta, device)
            local = (window, *angles)
        for is_global in global_layers(shape):
            if is_global:
                yield context
            else:
                yield local


def global_layers(shape: EncoderShape) -> list[bool]:
    """Return for each layer whether its attention is global, not in a window."""
    assert shape.global_every is not None
    return [number % shape.global_every == 0 for number in range(shape.layers)]


class ModernBertEmbeddings(nn.Module):
    """Looks words up, projects them to the width of the blocks, and normalises them once."""

    def __init__(self, shape: EncoderShape, *, vocabulary: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(vocabulary, shape.embedding)
        initialise(self.word_embeddings)
        self.projection = None
        if shape.has_projection:
            self.projection = nn.Linear(shape.embedding, shape.width, bias=False)
            nn.init.xavier_uniform_(self.projection.weight)
        self.norm = layer_norm(shape.width)
        self.dropout = Dropout(shape.dropout)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return embeddings [B, T, D]."""
        words = self.word_embeddings(input_ids)
        if self.projection is not None:
            words = self.projection(words)
        dropped: Tensor = self.dropout(self.norm(words))
        return dropped

    def folded_table(self) -> Tensor:
        """Return the table [V, D] that does the same without a projection."""
        table: Tensor = self.word_embeddings.weight
        if self.projection is None:
            return table
        return table @ self.projection.weight.T

    def unproject(self, predicted: Tensor) -> Tensor:
        """Return [..., E] whose products with the table are those of [..., D] with the folded."""
        if self.projection is None:
            return predicted
        return predicted @ self.projection.weight


class ModernBertBlock(Block):
    """Norm and attention, then norm and feed-forward; each is added to its input."""

    stacked_in_expand = 2  # what is activated, and its gate

    def __init__(self, shape: EncoderShape, number: int) -> None:
        super().__init__()
        # The first block reads what the embeddings have normalised already.
        self.attention_norm = layer_norm(shape.width) if number else nn.Identity()
        self.attention = RotaryAttention(shape)
        self.attention_output_dropout = Dropout(shape.attention_dropout)
        self.feedforward_norm = layer_norm(shape.width)
        self.expand = nn.Linear(shape.width, 2 * shape.feedforward, bias=False)
        self.dropout = Dropout(shape.dropout)
        self.contract = nn.Linear(shape.feedforward, shape.width, bias=False)
        self.initialise(shape)

    def initialise(self, shape: EncoderShape) -> None:
        """Draw weights as ModernBERT does: smaller where a layer ends in the residual stream."""
        for layer in (self.attention.query_key_value, self.expand):
            initialise(layer)
        for layer in (self.attention.output, self.contract):
            deviation = INITIAL_DEVIATION / math.sqrt(2 * shape.layers)
            cut_normal_(layer.weight, deviation=deviation)

    def attend_and_transform(self, hidden: Tensor, *context: Tensor) -> Tensor:
        attended = self.attention(self.attention_norm(hidden), *context)
        hidden = hidden + self.attention_output_dropout(attended)
        activated, gate = self.expand(self.feedforward_norm(hidden)).chunk(2, dim=-1)
        transformed: Tensor = self.contract(self.dropout(gelu(activated) * gate))
        return hidden + transformed


class RotaryAttention(Attention):
    """Self-attention whose queries and keys are turned by an angle for each position."""

    def __init__(self, shape: EncoderShape) -> None:
        super().__init__(shape, bias=False)

    def forward(self, hidden: Tensor, visible: Tensor, *angles: Tensor) -> Tensor:
        cosine, sine = angles
        query, key, value = self.project(hidden)
        query, key = rotate(query, cosine, sine), rotate(key, cosine, sine)
        return self.attend(query, key, value, visible)


def rotary_angles(
    length: int, head_width: int, theta: float, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines [T, K] of the angles of every position, in float32."""
    exponents = torch.arange(0, head_width, 2, dtype=torch.float32, device=device) / head_width
    positions = torch.arange(length, dtype=torch.float32, device=device)
    angles = torch.outer(positions, 1.0 / theta**exponents)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(vectors: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn vectors [B, H, T, K] by the angles of their positions.

    Values i and i + K/2 form a pair. In float32 under any precision, as transformers does.
    """
    exact = vectors.float()
    first, second = exact.chunk(2, dim=-1)
    turned = exact * cosine + torch.cat((-second, first), dim=-1) * sine
    return turned.to(vectors.dtype)
