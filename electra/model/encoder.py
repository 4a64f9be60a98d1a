"""The transformer: embeddings, attention, block, Encoder. BERT's, as the paper uses it: normalised
after each residual.

ids ─ words ┐
types ──────┼─ sum ─ norm ─ dropout ─ projection* ─ block ─ … ─ block ─ vectors        * only where widths differ
positions ──┘
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from electra.config import UserError
from electra.model.attention import attend
from electra.model.dropout import Dropout
from electra.model.gelu import gelu
from electra.model.shape import EncoderShape

if TYPE_CHECKING:
    from electra.kernels.block import BlockSettings
    from electra.kernels.packing import PackedRows

NORM_EPSILON = 1e-12
INITIAL_DEVIATION = 0.02
SEGMENTS = 2  # types: 0 for [CLS] A [SEP], 1 for B [SEP]


class Encoder(nn.Module):
    """Ids become vectors. Embeddings handed in are shared with whoever else holds them; the
    projection never is.
    """

    fused = False  # blocks run as the GPU's kernels (electra.kernels.enable)

    def __init__(
        self, shape: EncoderShape, *, vocabulary: int, embeddings: Embeddings | None = None
    ) -> None:
        super().__init__()
        self.shape = shape
        self.embeddings = embeddings or Embeddings(shape, vocabulary=vocabulary)
        assert self.embeddings.words.weight.shape == (vocabulary, shape.embedding)
        self.projection = nn.Linear(shape.embedding, shape.width) if shape.has_projection else None
        if self.projection is not None:
            initialise_glorot(
                self.projection
            )  # reference code: this layer is left at its framework's default
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))

    @property
    def vocabulary(self) -> int:
        return self.embeddings.words.num_embeddings

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """`ids`, `types` and `real` (False where padded) are [B, T]; the vectors are [B, T, D]."""
        if self.fused and torch.is_autocast_enabled(input_ids.device.type):
            *_, (last, rows) = self.fused_layers(input_ids, token_type_ids, attention_mask)
            return rows.unpack(last)
        return self.layers(input_ids, token_type_ids, attention_mask)[-1]

    def layers(
        self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor
    ) -> list[Tensor]:
        """The vectors that each block gives, the embeddings' first."""
        if self.fused and torch.is_autocast_enabled(input_ids.device.type):
            return [
                rows.unpack(tokens)
                for tokens, rows in self.fused_layers(input_ids, token_type_ids, attention_mask)
            ]
        hidden = self.first_vectors(input_ids, token_type_ids)
        # The mask is passed even when every row is full: to find out would stop a GPU each step,
        # and on a CPU attention without it is no faster (27.3 against 27.9 ms forward and backward,
        # 16 rows of 128, 4 heads).
        attended = attention_mask[
            :, None, None, :
        ]  # [B, 1, 1, T]: broadcast over heads and queries
        if self.shape.causal:
            attended = (
                attended
                & torch.ones_like(attention_mask[0]).expand(attention_mask.shape[1], -1).tril()
            )  # [B, 1, T, T]
        found = [hidden]
        for block in self.blocks:
            found.append(block(found[-1], attended))
        return found

    def first_vectors(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        """What the blocks begin with."""
        hidden: Tensor = self.embeddings(input_ids, token_type_ids)
        return hidden if self.projection is None else self.projection(hidden)

    def fused_layers(
        self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor
    ) -> Iterator[tuple[Tensor, PackedRows]]:
        """The same in autocast's precision, as the rows that the kernels work on. Padding stands at
        the end of a row.
        """
        from electra.kernels.block import SITES, BlockSettings
        from electra.kernels.dropout import draw_keys
        from electra.kernels.packing import PackedRows

        assert not self.shape.causal, (
            "no kernel knows causal attention; resolve_speed leaves them off"
        )
        rows = PackedRows.from_mask(attention_mask)
        hidden = self.first_vectors(input_ids, token_type_ids)
        tokens = rows.pack(hidden.to(torch.get_autocast_dtype(hidden.device.type)))
        yield tokens, rows
        keys = draw_keys(SITES * len(self.blocks), hidden.device)
        rates = (self.shape.dropout, self.shape.attention_dropout) if self.training else (0.0, 0.0)
        for number, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            tokens = block.fused_forward(
                tokens, rows, BlockSettings(self.shape.heads, *rates, keys, SITES * number)
            )
            yield tokens, rows


class Embeddings(nn.Module):
    """What a token is, where it stands and in which segment, as one normalised vector."""

    fused = False  # runs as the GPU's kernels (electra.kernels.enable)

    def __init__(self, shape: EncoderShape, *, vocabulary: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, shape.embedding)
        self.positions = nn.Embedding(shape.positions, shape.embedding)
        self.token_type_embeddings = nn.Embedding(SEGMENTS, shape.embedding)
        self.norm = nn.LayerNorm(shape.embedding, eps=NORM_EPSILON)
        self.dropout = Dropout(shape.dropout)
        self.apply(initialise)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        length = input_ids.shape[1]
        if length > self.positions.num_embeddings:
            raise UserError(
                f"rows of {length} tokens do not fit a network with encoder.positions="
                f"{self.positions.num_embeddings}; cut shorter rows or raise encoder.positions"
            )
        if self.fused and torch.is_autocast_enabled(input_ids.device.type):
            return self.fused_forward(input_ids, token_type_ids)
        summed = (
            self.words(input_ids)
            + self.positions.weight[:length]
            + self.token_type_embeddings(token_type_ids)
        )  # [B, T, E]
        vectors: Tensor = self.dropout(self.norm(summed))
        return vectors

    def fused_forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        """In autocast's precision."""
        from electra.kernels.dropout import DropoutSite, draw_keys
        from electra.kernels.embeddings import Weights, embed

        weights = Weights(
            self.words.weight,
            self.positions.weight,
            self.token_type_embeddings.weight,
            self.norm.weight,
            self.norm.bias,
        )
        site = DropoutSite(
            self.dropout.rate if self.training else 0.0, draw_keys(1, input_ids.device), 0
        )
        return embed(
            input_ids,
            token_type_ids,
            weights,
            site,
            torch.get_autocast_dtype(input_ids.device.type),
        )


class Block(nn.Module):
    """Attention, then feed-forward; each is dropped out, added to its input and normalised."""

    recomputed = False  # backward computes what is inside again instead of keeping it (`recompute`)

    def __init__(self, shape: EncoderShape) -> None:
        super().__init__()
        self.attention = Attention(shape)
        self.attention_norm = nn.LayerNorm(shape.width, eps=NORM_EPSILON)
        self.expand = nn.Linear(shape.width, shape.feedforward)
        self.contract = nn.Linear(shape.feedforward, shape.width)
        self.feedforward_norm = nn.LayerNorm(shape.width, eps=NORM_EPSILON)
        self.dropout = Dropout(shape.dropout)
        self.apply(initialise)

    def forward(self, hidden: Tensor, attended: Tensor) -> Tensor:
        if self.recomputed and torch.is_grad_enabled():
            # Inside the module and not around it: whoever hooks on to its calls sees one, not two.
            # Torch winds its generators back, so that the same values drop out.
            again: Tensor = checkpoint(self.computed, hidden, attended, use_reentrant=False)
            return again
        return self.computed(hidden, attended)

    def computed(self, hidden: Tensor, attended: Tensor) -> Tensor:
        hidden = self.attention_norm(hidden + self.dropout(self.attention(hidden, attended)))
        transformed = self.contract(gelu(self.expand(hidden)))
        hidden = self.feedforward_norm(hidden + self.dropout(transformed))
        return hidden

    def fused_forward(self, tokens: Tensor, rows: PackedRows, settings: BlockSettings) -> Tensor:
        from electra.kernels.block import BlockWeights, block
        from electra.kernels.low_precision import COPIES_ON_PARAMETERS

        parts = (
            self.attention.query_key_value,
            self.attention.output,
            self.attention_norm,
            self.expand,
            self.contract,
            self.feedforward_norm,
        )
        return block(
            tokens,
            rows,
            settings,
            BlockWeights(*(tensor for part in parts for tensor in (part.weight, part.bias))),
            COPIES_ON_PARAMETERS,
        )


class Attention(nn.Module):
    """Every token looks at every real token, or at those up to itself."""

    def __init__(self, shape: EncoderShape) -> None:
        super().__init__()
        self.heads, self.head_width = shape.heads, shape.head_width
        self.dropout = shape.attention_dropout
        self.query_key_value = nn.Linear(
            shape.width, 3 * shape.width
        )  # one matmul instead of three
        self.output = nn.Linear(shape.width, shape.width)

    def forward(self, hidden: Tensor, attended: Tensor) -> Tensor:
        split = self.query_key_value(hidden).unflatten(
            -1, (3, self.heads, self.head_width)
        )  # [B, T, 3, H, K]
        query, key, value = split.permute(2, 0, 3, 1, 4)  # [B, H, T, K] each
        mixed = attend(
            query, key, value, attended=attended, dropout=self.dropout if self.training else 0.0
        )
        output: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return output


def recompute(module: nn.Module, wanted: bool) -> None:
    """Let every block inside keep its input alone: a third more work for a fraction of the memory,
    the same numbers.
    """
    for part in module.modules():
        if isinstance(part, Block):
            part.recomputed = wanted


def initialise(module: nn.Module) -> None:
    """Reference code: every table and matrix from a normal cut at two deviations, every bias zero,
    norms neutral.
    """
    if isinstance(module, (nn.Linear, nn.Embedding)):
        cut = 2 * INITIAL_DEVIATION
        nn.init.trunc_normal_(module.weight, std=INITIAL_DEVIATION, a=-cut, b=cut)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


def initialise_glorot(layer: nn.Linear) -> None:
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
