"""What the fused modules of all families have in common: rows of tokens, and the heads."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from electra.kernels.gather import gather
from electra.kernels.linear_cross_entropy import fused_linear_cross_entropy
from electra.kernels.low_precision import LowPrecisionCopies
from electra.kernels.packing import PackedRows
from electra.model.encoder import Encoder, Packing
from electra.model.networks import Discriminator, Generator, TokenPrediction
from electra.model.sampling import Sampling


def active_autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Return the dtype that autocast is enabled with on a device, None where it is not."""
    if not torch.is_autocast_enabled(device.type):
        return None
    return torch.get_autocast_dtype(device.type)


class PackedEncoder(Encoder):
    """Blocks of a few kernels each, on rows without padding where the batch has a packing.

    The plain encoder comes after this class among a fused encoder's bases.
    """

    low_precision: LowPrecisionCopies

    @abstractmethod
    def packed_states(
        self, input_ids: Tensor, token_type_ids: Tensor, rows: PackedRows
    ) -> Iterator[Tensor]:
        """Yield the hidden states [N, D] of every layer, in autocast's precision."""

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        attention_mask: Tensor,
        packing: Packing | None = None,
    ) -> Tensor:
        if active_autocast_dtype(input_ids.device) is None:
            return super().forward(input_ids, token_type_ids, attention_mask, packing)
        rows = PackedRows.from_mask(attention_mask, packing)
        return rows.unpack(self.last_packed_state(input_ids, token_type_ids, rows))

    def last_packed_state(
        self, input_ids: Tensor, token_type_ids: Tensor, rows: PackedRows
    ) -> Tensor:
        """Return the last hidden states [N, D], in autocast's precision."""
        for tokens in self.packed_states(input_ids, token_type_ids, rows):
            last = tokens  # without gradients, only one layer's states are in memory
        return last

    def hidden_states(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        attention_mask: Tensor,
        packing: Packing | None = None,
    ) -> list[Tensor]:
        if active_autocast_dtype(input_ids.device) is None:
            return super().hidden_states(  # type: ignore[safe-super]
                input_ids, token_type_ids, attention_mask, packing
            )
        rows = PackedRows.from_mask(attention_mask, packing)
        states = self.packed_states(input_ids, token_type_ids, rows)
        return [rows.unpack(tokens) for tokens in states]


class PackedRTDHead(Discriminator):
    """A discriminator whose head reads packed tokens; only its logits are unpacked.

    The plain discriminator comes after this class among a fused discriminator's bases.
    """

    low_precision: LowPrecisionCopies

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        attention_mask: Tensor,
        packing: Packing | None = None,
    ) -> Tensor:
        """Return logits [B, T]; zero where padding was left out."""
        encoder = self.encoder
        dtype = active_autocast_dtype(input_ids.device)
        if dtype is None or not isinstance(encoder, PackedEncoder):
            return super().forward(input_ids, token_type_ids, attention_mask, packing)
        rows = PackedRows.from_mask(attention_mask, packing)
        logits = self.rtd_head(encoder.last_packed_state(input_ids, token_type_ids, rows))
        return rows.unpack(logits.unsqueeze(-1)).squeeze(-1)


class VocabularyHead(Generator):
    """A generator whose losses and samples come without logits in memory.

    The plain generator comes after this class among a fused generator's bases.
    """

    low_precision: LowPrecisionCopies

    @abstractmethod
    def fused_transform(self, hidden: Tensor) -> Tensor:
        """Return the predicted embeddings [..., E] of `hidden` [..., D] in low precision."""

    def hidden_at(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        attention_mask: Tensor,
        positions: Tensor,
        packing: Packing | None = None,
    ) -> Tensor:
        """Return hidden states [B, P, D]; zero where a position is padding that was left out."""
        encoder = self.encoder
        dtype = active_autocast_dtype(input_ids.device)
        if dtype is None or not isinstance(encoder, PackedEncoder):
            return super().hidden_at(input_ids, token_type_ids, attention_mask, positions, packing)
        rows = PackedRows.from_mask(attention_mask, packing)
        tokens = encoder.last_packed_state(input_ids, token_type_ids, rows)
        return gather(tokens, positions, length=input_ids.shape[1], packing=packing)

    def gather(self, hidden: Tensor, positions: Tensor) -> Tensor:
        if active_autocast_dtype(hidden.device) is None:
            return super().gather(hidden, positions)
        return gather(hidden.flatten(0, 1), positions, length=hidden.shape[1])

    def predict(
        self,
        hidden: Tensor,
        labels: Tensor,
        *,
        sampling: Sampling | None = None,
        keep_logits: bool = False,
        rng: torch.Generator | None = None,
    ) -> TokenPrediction:
        dtype = active_autocast_dtype(hidden.device)
        # No kernel samples around a banned token.
        needs_logits = keep_logits or (sampling is not None and sampling.disallow_correct)
        if dtype is None or needs_logits:
            return super().predict(
                hidden, labels, sampling=sampling, keep_logits=keep_logits, rng=rng
            )
        predicted = self.fused_transform(hidden.to(dtype)).flatten(0, 1)
        uniform, temperature = None, 1.0
        if sampling is not None:
            uniform = torch.rand(len(predicted), 2, device=hidden.device, generator=rng)
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
        dtype = active_autocast_dtype(predicted.device)
        if dtype is None:
            return super().token_loss(predicted, labels)
        losses, _ = fused_linear_cross_entropy(
            predicted.to(dtype), self.word_embeddings, self.bias, labels, self.low_precision
        )
        return losses
