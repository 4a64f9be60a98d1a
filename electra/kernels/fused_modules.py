"""The same modules, faster: classes that run kernels, for `electra.kernels.fuse` to exchange.

A fused class computes what its plain base class computes, from the same parameters under the same
names, so checkpoints and exports see no difference. As FSDP2 does, `fuse` changes a module's class
in place: whoever holds the module keeps the same object. A fused module runs its kernels under
autocast; outside it, it runs the plain code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

import torch
from torch import Tensor, nn

from electra.data.batches import Batch
from electra.kernels.block import SITES, BlockSettings, BlockWeights, block
from electra.kernels.corruption import (
    can_mask,
    can_replace,
    fused_mask_tokens,
    fused_replace_tokens,
)
from electra.kernels.dropout import DropoutSite, draw_keys
from electra.kernels.embeddings import EmbeddingSettings, EmbeddingWeights, embed
from electra.kernels.fused_bases import (
    PackedEncoder,
    PackedRTDHead,
    VocabularyHead,
    active_autocast_dtype,
)
from electra.kernels.fused_modernbert import (
    FusedModernBertEmbeddings,
    FusedModernBertEncoder,
    FusedModernBertMLMHead,
    FusedModernBertRTDHead,
)
from electra.kernels.linear import linear
from electra.kernels.low_precision import LowPrecisionCopies
from electra.kernels.mlm_head import MLMHeadWeights, mlm_head
from electra.kernels.narrow_block import NARROW_PASSES, is_narrow
from electra.kernels.packing import PackedRows
from electra.kernels.rtd_head import RTDHeadWeights, rtd_head
from electra.model.electra_encoder import ElectraBlock, ElectraEmbeddings, ElectraEncoder
from electra.model.encoder import Packing, check_length
from electra.model.modernbert_encoder import ModernBertEmbeddings, ModernBertEncoder
from electra.model.modernbert_networks import ModernBertDiscriminator, ModernBertGenerator
from electra.model.networks import Discriminator, Generator
from electra.objectives.corruption import Corrupted, Corruption, Masked
from electra.objectives.masking import Masking


def exchange(module: nn.Module, classes: Mapping[type, type], copies: LowPrecisionCopies) -> None:
    """Change the class of every module inside that `classes` has another class for."""
    for part in module.modules():
        if type(part) in classes:
            part.__class__ = classes[type(part)]
            part.low_precision = copies  # type: ignore[assignment]


class FusedEmbeddings(ElectraEmbeddings):
    """One kernel for look-ups, sum, LayerNorm and dropout, in autocast's precision."""

    low_precision: LowPrecisionCopies

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor, packing: Packing | None = None
    ) -> Tensor:
        """Return embeddings [B, T, E], or under autocast [N, E] of the tokens of a packing."""
        dtype = active_autocast_dtype(input_ids.device)
        if dtype is None:
            return super().forward(input_ids, token_type_ids)
        check_length(input_ids.shape[1], self.position_embeddings.num_embeddings)
        weights = EmbeddingWeights(
            self.word_embeddings.weight,
            self.position_embeddings.weight,
            self.token_type_embeddings.weight,
            self.norm.weight,
            self.norm.bias,
        )
        rate = self.dropout.rate * self.training
        site = DropoutSite(rate, draw_keys(1, input_ids.device), 0)
        settings = EmbeddingSettings(site, dtype)
        return embed(input_ids, token_type_ids, weights, settings, packing)


class FusedEncoder(PackedEncoder, ElectraEncoder):
    """The paper's encoder, by `block`."""

    def packed_states(
        self, input_ids: Tensor, token_type_ids: Tensor, rows: PackedRows
    ) -> Iterator[Tensor]:
        """Yield the hidden states [N, D] of every layer, in autocast's precision."""
        assert not self.shape.causal, "no kernel knows causal attention; resolve_speed refuses it"
        tokens: Tensor = self.embeddings(input_ids, token_type_ids, rows.packing).flatten(0, -2)
        if self.projection is not None:
            tokens = linear(tokens, self.projection, self.low_precision)
        keys = draw_keys(SITES * len(self.blocks), tokens.device)
        dropout = self.shape.dropout * self.training
        attention_dropout = self.shape.attention_dropout * self.training
        yield tokens
        for number, module in enumerate(self.blocks):
            settings = BlockSettings(
                self.shape.heads, dropout, attention_dropout, keys, SITES * number
            )
            weights, passes = block_weights(cast(ElectraBlock, module)), None
            if is_narrow(tokens, rows, settings, weights):
                passes = NARROW_PASSES
            tokens = block(tokens, rows, settings, weights, self.low_precision, passes)
            yield tokens


def block_weights(module: ElectraBlock) -> BlockWeights:
    """Return a block's parameters in the order that its kernels take them."""
    layers = (
        module.attention.query_key_value,
        module.attention.output,
        module.attention_norm,
        module.expand,
        module.contract,
        module.feedforward_norm,
    )
    parameters = []
    for layer in layers:
        parameters += [layer.weight, layer.bias]
    return BlockWeights(*parameters)


class FusedRTDHead(PackedRTDHead, Discriminator):
    """A discriminator whose head is one product and one kernel."""

    def rtd_head(self, hidden: Tensor) -> Tensor:
        dtype = active_autocast_dtype(hidden.device)
        if dtype is None:
            return super().rtd_head(hidden)
        dense, output = self.dense, self.output
        weights = RTDHeadWeights(dense.weight, dense.bias, None, output.weight, output.bias)
        return rtd_head(hidden.to(dtype), weights, self.low_precision)


class FusedMLMHead(VocabularyHead, Generator):
    """The paper's generator, by `mlm_head` and `linear_cross_entropy`."""

    def fused_transform(self, hidden: Tensor) -> Tensor:
        dense, norm = self.dense, self.norm
        weights = MLMHeadWeights(dense.weight, dense.bias, norm.weight, norm.bias)
        return mlm_head(hidden, weights, self.low_precision, norm.eps)


class FusedCorruption(Corruption):
    """One kernel to mask and one to replace, where draws are distinct and uniform."""

    low_precision: LowPrecisionCopies

    def mask(
        self,
        batch: Batch,
        masking: Masking,
        rng: torch.Generator | None,
        *,
        unigrams: Tensor | None = None,
        rate: Tensor | None = None,
    ) -> Masked:
        dtype = active_autocast_dtype(batch.input_ids.device)
        if dtype is None or not can_mask(masking, length=batch.input_ids.shape[1]):
            return super().mask(batch, masking, rng, unigrams=unigrams, rate=rate)
        return fused_mask_tokens(batch, masking, self.vocabulary, rng, rate=rate)

    def replace(self, input_ids: Tensor, masked: Masked, sampled: Tensor) -> Corrupted:
        if active_autocast_dtype(input_ids.device) is None or not can_replace(masked):
            return super().replace(input_ids, masked, sampled)
        return fused_replace_tokens(input_ids, masked, sampled)


FUSED: dict[type, type] = {
    Corruption: FusedCorruption,
    ElectraEmbeddings: FusedEmbeddings,
    ElectraEncoder: FusedEncoder,
    Discriminator: FusedRTDHead,
    Generator: FusedMLMHead,
    ModernBertEmbeddings: FusedModernBertEmbeddings,
    ModernBertEncoder: FusedModernBertEncoder,
    ModernBertDiscriminator: FusedModernBertRTDHead,
    ModernBertGenerator: FusedModernBertMLMHead,
}
PLAIN = {fused: plain for plain, fused in FUSED.items()}
