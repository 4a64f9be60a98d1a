"""Generator and discriminator: an encoder each, a head each, and what the two share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.model.encoder import NORM_EPSILON, Encoder, initialise, initialise_glorot
from electra.model.gelu import gelu
from electra.model.shape import EncoderShape, GeneratorShape


class Discriminator(nn.Module):
    """Judges every token: a positive logit says that it was replaced."""

    architecture = "ElectraForPreTraining"
    fused = False  # the head runs as the GPU's kernels (electra.kernels.enable)

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        width = encoder.shape.width
        self.encoder = encoder
        self.dense = nn.Linear(width, width)
        self.output = nn.Linear(width, 1)
        initialise(self.dense)
        initialise_glorot(self.output)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Logits [B, T]."""
        hidden = self.encoder(input_ids, token_type_ids, attention_mask)
        if self.fused and torch.is_autocast_enabled(hidden.device.type):
            return self.fused_head(hidden)
        logits: Tensor = self.output(gelu(self.dense(hidden))).squeeze(-1)
        return logits

    def fused_head(self, hidden: Tensor) -> Tensor:
        from electra.kernels.low_precision import COPIES_ON_PARAMETERS
        from electra.kernels.rtd_head import rtd_head

        return rtd_head(
            hidden.to(torch.get_autocast_dtype(hidden.device.type)),
            self.dense.weight,
            self.dense.bias,
            self.output.weight,
            self.output.bias,
            COPIES_ON_PARAMETERS,
        )

    def logits(self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.forward(input_ids, token_type_ids, attention_mask)


class Generator(nn.Module):
    """Predicts tokens at chosen positions, by the word table it reads with. Alone, it is a
    BERT-style masked LM; over a causal encoder, a left-to-right LM.
    """

    fused = False  # losses and samples come without logits in memory (electra.kernels.enable)

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        embedding = encoder.shape.embedding
        self.encoder = encoder
        self.dense = nn.Linear(encoder.shape.width, embedding)
        self.norm = nn.LayerNorm(embedding, eps=NORM_EPSILON)
        self.bias = nn.Parameter(torch.zeros(encoder.vocabulary))
        initialise(self.dense)

    @property
    def architecture(self) -> str:
        return "ElectraForCausalLM" if self.encoder.shape.causal else "ElectraForMaskedLM"

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor, positions: Tensor
    ) -> Tensor:
        """Logits [B, P, V] at `positions` [B, P]."""
        return self.words(
            self.transform(
                self.at(self.encoder(input_ids, token_type_ids, attention_mask), positions)
            )
        )

    @property
    def table(self) -> Tensor:
        """The words' vectors [V, E], the same that the encoder reads with."""
        return self.encoder.embeddings.words.weight

    def at(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """The encoder's vectors [B, P, D] at `positions`, of all [B, T, D]."""
        # Gather first: the vocabulary matmul is the dearest of the network, and six in seven rows
        # would be thrown away.
        if self.fused:
            # The same by a product: a position that was drawn thrice gets its gradients in a fixed
            # order.
            where = positions.unsqueeze(-1) == torch.arange(
                hidden.shape[1], device=hidden.device
            )  # [B, P, T]
            chosen: Tensor = where.to(hidden.dtype) @ hidden
        else:
            chosen = hidden.gather(1, positions.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))
        return chosen

    def transform(self, hidden: Tensor) -> Tensor:
        """The vector [..., E] that a word should have, from the encoder's [..., D] at its place."""
        predicted: Tensor = self.norm(gelu(self.dense(hidden)))
        return predicted

    def words(self, predicted: Tensor) -> Tensor:
        """Logits [..., V] of the vectors [..., E] that words should have."""
        return F.linear(predicted, self.table, self.bias)

    def logits(self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """At every position, [B, T, V]."""
        return self.forward(
            input_ids,
            token_type_ids,
            attention_mask,
            torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids),
        )


def build_pair(
    discriminator: EncoderShape, generator: GeneratorShape, *, vocabulary: int
) -> tuple[Generator | None, Discriminator]:
    """The networks of one run. A generator that samples by plain chance has no network."""
    judge = Discriminator(Encoder(discriminator, vocabulary=vocabulary))
    return build_generator(generator, beside=judge.encoder), judge


def build_generator(generator: GeneratorShape, *, beside: Encoder) -> Generator | None:
    """A generator that shares with the main network's encoder what its settings say; none where
    chance proposes.
    """
    if generator.kind != "network":
        return None
    shape = generator.beside(beside.shape)
    if generator.tie == "all":
        return Generator(beside)
    shared = beside.embeddings if generator.tie == "embeddings" else None
    return Generator(Encoder(shape, vocabulary=beside.vocabulary, embeddings=shared))
