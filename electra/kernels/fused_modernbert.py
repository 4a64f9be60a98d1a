"""The ModernBERT family's modules, faster: see `fused_modules`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import cast

import torch
from torch import Tensor

from electra.kernels.dropout import DropoutSite, draw_keys
from electra.kernels.embedding_tables import look_up
from electra.kernels.embeddings import EmbeddingSettings, EmbeddingWeights, embed
from electra.kernels.fused_bases import (
    PackedEncoder,
    PackedRTDHead,
    VocabularyHead,
    active_autocast_dtype,
)
from electra.kernels.linear import linear
from electra.kernels.low_precision import LowPrecisionCopies
from electra.kernels.mlm_head import MLMHeadWeights, mlm_head
from electra.kernels.modernbert_block import (
    SITES,
    ModernBertSettings,
    ModernBertWeights,
    modernbert_block,
)
from electra.kernels.packing import PackedRows
from electra.kernels.rotary import RotaryPositions
from electra.kernels.rtd_head import RTDHeadWeights, rtd_head
from electra.model.encoder import Packing, check_length
from electra.model.modernbert_encoder import (
    NORM_EPSILON,
    ModernBertBlock,
    ModernBertEmbeddings,
    ModernBertEncoder,
    global_layers,
    rotary_angles,
)
from electra.model.modernbert_networks import ModernBertDiscriminator, ModernBertGenerator
from electra.model.shape import EncoderShape


class FusedModernBertEmbeddings(ModernBertEmbeddings):
    """One kernel for look-ups, LayerNorm and dropout; with a projection, only look-ups."""

    low_precision: LowPrecisionCopies

    def forward(self, input_ids: Tensor, packing: Packing | None = None) -> Tensor:
        """Return embeddings [B, T, D], or under autocast [N, D] of the tokens of a packing."""
        dtype = active_autocast_dtype(input_ids.device)
        if dtype is None:
            return super().forward(input_ids)
        table: Tensor = self.word_embeddings.weight
        if self.projection is not None:
            words = look_up(input_ids, table, dtype, packing)
            words = linear(words, self.projection, self.low_precision)
            dropped: Tensor = self.dropout(self.norm(words))
            return dropped
        rate = self.dropout.rate * self.training
        site = DropoutSite(rate, dropout_keys(1, input_ids.device, rate), 0)
        weights = EmbeddingWeights(table, None, None, self.norm.weight, None)
        settings = EmbeddingSettings(site, dtype, NORM_EPSILON)
        return embed(input_ids, None, weights, settings, packing)


class FusedModernBertEncoder(PackedEncoder, ModernBertEncoder):
    """ModernBERT's encoder, by `modernbert_block`."""

    def packed_states(
        self, input_ids: Tensor, token_type_ids: Tensor, rows: PackedRows
    ) -> Iterator[Tensor]:
        """Yield the residual stream [N, D] of every layer, and in the end its norm."""
        check_length(input_ids.shape[1], self.shape.positions)
        dtype = active_autocast_dtype(input_ids.device)
        stream = self.embeddings(input_ids, rows.packing).to(dtype).flatten(0, -2)
        normed = None  # the first block reads the stream itself
        dropout = self.shape.dropout * self.training
        attention_dropout = self.shape.attention_dropout * self.training
        rate = max(dropout, attention_dropout)
        keys = dropout_keys(SITES * len(self.blocks), stream.device, rate)
        norms = [cast(ModernBertBlock, block).attention_norm for block in self.blocks]
        yield stream
        layers = zip(self.blocks, [*norms[1:], self.final_norm], strict=True)
        for number, (module, next_norm) in enumerate(layers):
            positions = layer_positions(self.shape, number, stream.device)
            settings = ModernBertSettings(
                self.shape.heads, dropout, attention_dropout, keys, SITES * number, positions
            )
            weights = block_weights(cast(ModernBertBlock, module), cast(Tensor, next_norm.weight))
            stream, normed = modernbert_block(
                stream, normed, rows, settings, weights, self.low_precision
            )
            if next_norm is self.final_norm:
                yield normed
            else:
                yield stream


def dropout_keys(sites: int, device: torch.device, rate: float) -> Tensor:
    """Draw keys [sites, 2]; without dropout nothing reads them, and nothing is drawn."""
    if rate == 0:
        return torch.empty(sites, 2, dtype=torch.int32, device=device)
    return draw_keys(sites, device)


def layer_positions(shape: EncoderShape, number: int, device: torch.device) -> RotaryPositions:
    """Return the angles and the window of one layer."""
    assert shape.rope_theta is not None
    assert shape.local_rope_theta is not None
    assert shape.local_attention is not None
    sizes = (shape.positions, shape.head_width)
    if global_layers(shape)[number]:
        return RotaryPositions(*angle_tables(*sizes, shape.rope_theta, device))
    tables = angle_tables(*sizes, shape.local_rope_theta, device)
    return RotaryPositions(*tables, shape.local_attention // 2)


# Kept for good: a captured graph reads them wherever they lie.
@cache
def angle_tables(
    positions: int, head_width: int, theta: float, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines [positions, K/2]; both halves of a head have the same."""
    cosine, sine = rotary_angles(positions, head_width, theta, device)
    half = head_width // 2
    return cosine[:, :half].contiguous(), sine[:, :half].contiguous()


def block_weights(module: ModernBertBlock, next_norm: Tensor) -> ModernBertWeights:
    """Return a block's parameters in the order that its kernels take them."""
    return ModernBertWeights(
        module.attention.query_key_value.weight,
        module.attention.output.weight,
        module.feedforward_norm.weight,
        module.expand.weight,
        module.contract.weight,
        next_norm,
    )


class FusedModernBertRTDHead(PackedRTDHead, ModernBertDiscriminator):
    """A discriminator whose head is one product and one kernel."""

    def rtd_head(self, hidden: Tensor) -> Tensor:
        dtype = active_autocast_dtype(hidden.device)
        if dtype is None:
            return super().rtd_head(hidden)
        head, output = self.prediction_head, self.output
        weights = RTDHeadWeights(
            head.dense.weight, None, head.norm.weight, output.weight, output.bias
        )
        return rtd_head(hidden.to(dtype), weights, self.low_precision)


class FusedModernBertMLMHead(VocabularyHead, ModernBertGenerator):
    """ModernBERT's generator, by `mlm_head` and `linear_cross_entropy`."""

    def fused_transform(self, hidden: Tensor) -> Tensor:
        head = self.prediction_head
        weights = MLMHeadWeights(head.dense.weight, None, head.norm.weight, None)
        predicted = mlm_head(hidden, weights, self.low_precision, NORM_EPSILON)
        return cast(ModernBertEncoder, self.encoder).embeddings.unproject(predicted)
