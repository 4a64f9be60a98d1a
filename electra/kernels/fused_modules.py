"""The same modules, faster: classes that run kernels, for `electra.kernels.fuse` to exchange.

A fused class computes what its plain base class computes, from the same parameters under the same
names, so checkpoints and exports see no difference. As FSDP2 does, `fuse` changes a module's class
in place: whoever holds the module goes on holding it. A fused module runs its kernels under
autocast; outside it, it runs the plain code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

import torch
from torch import Tensor, nn

from electra.kernels.block import SITES, BlockSettings, BlockWeights, block
from electra.kernels.dropout import DropoutSite, draw_keys
from electra.kernels.embeddings import EmbeddingWeights, embed
from electra.kernels.linear_cross_entropy import fused_linear_cross_entropy
from electra.kernels.low_precision import LowPrecisionCopies
from electra.kernels.packing import PackedRows
from electra.kernels.rtd_head import rtd_head
from electra.model.electra_encoder import ElectraBlock, ElectraEmbeddings, ElectraEncoder
from electra.model.encoder import Packing, check_length
from electra.model.networks import Discriminator, Generator, TokenPrediction
from electra.model.sampling import Sampling


def exchange(module: nn.Module, classes: Mapping[type, type], copies: LowPrecisionCopies) -> None:
    """Change the class of every module inside that `classes` has another class for."""
    for part in module.modules():
        if type(part) in classes:
            part.__class__ = classes[type(part)]
            part.low_precision = copies  # type: ignore[assignment]


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Return the dtype that autocast is enabled with on a device, None where it is not."""
    if not torch.is_autocast_enabled(device.type):
        return None
    return torch.get_autocast_dtype(device.type)


class FusedEmbeddings(ElectraEmbeddings):
    """One kernel for look-ups, sum, LayerNorm and dropout, in autocast's precision."""

    low_precision: LowPrecisionCopies

    def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        dtype = autocast_dtype(input_ids.device)
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
        return embed(input_ids, token_type_ids, weights, site, dtype)


class FusedEncoder(ElectraEncoder):
    """Blocks of a few kernels each, on rows without padding where the batch has a packing."""

    low_precision: LowPrecisionCopies

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        attention_mask: Tensor,
        packing: Packing | None = None,
    ) -> Tensor:
        if autocast_dtype(input_ids.device) is None:
            return super().forward(input_ids, token_type_ids, attention_mask, packing)
        rows = PackedRows.from_mask(attention_mask, packing)
        for tokens in self.packed_states(input_ids, token_type_ids, rows):
            last = tokens  # without gradients, only one layer's states are in memory
        return rows.unpack(last)

    def hidden_states(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        attention_mask: Tensor,
        packing: Packing | None = None,
    ) -> list[Tensor]:
        if autocast_dtype(input_ids.device) is None:
            return super().hidden_states(input_ids, token_type_ids, attention_mask, packing)
        rows = PackedRows.from_mask(attention_mask, packing)
        states = self.packed_states(input_ids, token_type_ids, rows)
        return [rows.unpack(tokens) for tokens in states]

    def packed_states(
        self, input_ids: Tensor, token_type_ids: Tensor, rows: PackedRows
    ) -> Iterator[Tensor]:
        """Yield the hidden states [N, D] of every layer, in autocast's precision."""
        assert not self.shape.causal, "no kernel knows causal attention; resolve_speed refuses it"
        hidden = self.embed(input_ids, token_type_ids)
        tokens = rows.pack(hidden.to(torch.get_autocast_dtype(hidden.device.type)))
        keys = draw_keys(SITES * len(self.blocks), hidden.device)
        dropout = self.shape.dropout * self.training
        attention_dropout = self.shape.attention_dropout * self.training
        yield tokens
        for number, module in enumerate(self.blocks):
            settings = BlockSettings(
                self.shape.heads, dropout, attention_dropout, keys, SITES * number
            )
            weights = block_weights(cast(ElectraBlock, module))
            tokens = block(tokens, rows, settings, weights, self.low_precision)
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


class FusedRTDHead(Discriminator):
    """A discriminator whose head is one product and one kernel."""

    low_precision: LowPrecisionCopies

    def rtd_head(self, hidden: Tensor) -> Tensor:
        dtype = autocast_dtype(hidden.device)
        if dtype is None:
            return super().rtd_head(hidden)
        return rtd_head(
            hidden.to(dtype),
            self.dense.weight,
            self.dense.bias,
            self.output.weight,
            self.output.bias,
            self.low_precision,
        )


class FusedMLMHead(Generator):
    """A generator whose losses and samples come without logits in memory."""

    low_precision: LowPrecisionCopies

    def gather(self, hidden: Tensor, positions: Tensor) -> Tensor:
        # By a product: a position that was drawn thrice gets its gradients in a fixed order.
        every_position = torch.arange(hidden.shape[1], device=hidden.device)
        is_chosen = positions.unsqueeze(-1) == every_position  # [B, P, T]
        return is_chosen.to(hidden.dtype) @ hidden

    def predict(
        self,
        hidden: Tensor,
        labels: Tensor,
        *,
        sampling: Sampling | None = None,
        keep_logits: bool = False,
        rng: torch.Generator | None = None,
    ) -> TokenPrediction:
        dtype = autocast_dtype(hidden.device)
        # No kernel samples around a banned token.
        needs_logits = keep_logits or (sampling is not None and sampling.disallow_correct)
        if dtype is None or needs_logits:
            return super().predict(
                hidden, labels, sampling=sampling, keep_logits=keep_logits, rng=rng
            )
        predicted = self.transform(hidden).flatten(0, 1)
        uniform, temperature = None, 1.0
        if sampling is not None:
            uniform = torch.rand(len(predicted), device=hidden.device, generator=rng)
            temperature = sampling.temperature
        losses, sampled = fused_linear_cross_entropy(
            predicted.to(dtype),
            self.word_embeddings,
            self.bias,
            labels.flatten(),
            self.low_precision,
            uniform=uniform,
            temperature=temperature,
        )
        if sampled is not None:
            sampled = sampled.view_as(labels)
        return TokenPrediction(losses.view_as(labels), sampled, None)

    def token_loss(self, predicted: Tensor, labels: Tensor) -> Tensor:
        dtype = autocast_dtype(predicted.device)
        if dtype is None:
            return super().token_loss(predicted, labels)
        losses, _ = fused_linear_cross_entropy(
            predicted.to(dtype), self.word_embeddings, self.bias, labels, self.low_precision
        )
        return losses


FUSED: dict[type, type] = {
    ElectraEmbeddings: FusedEmbeddings,
    ElectraEncoder: FusedEncoder,
    Discriminator: FusedRTDHead,
    Generator: FusedMLMHead,
}
PLAIN = {fused: plain for plain, fused in FUSED.items()}
