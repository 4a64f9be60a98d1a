"""Generator and discriminator: an encoder each, a head each, and what the two share."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from electra.model.electra_encoder import NORM_EPSILON
from electra.model.encoder import Encoder, Packing, initialise, initialise_glorot
from electra.model.gelu import gelu
from electra.model.memory import LOGITS_CHUNK
from electra.model.sampling import Sampling, sample


class Discriminator(nn.Module):
    """Classifies every token: a positive logit says that it was replaced."""

    architecture = "ElectraForPreTraining"

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        width = encoder.shape.width
        self.encoder = encoder
        self.dense = nn.Linear(width, width)
        self.output = nn.Linear(width, 1)
        initialise(self.dense)
        initialise_glorot(self.output)

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        attention_mask: Tensor,
        packing: Packing | None = None,
    ) -> Tensor:
        """Return logits [B, T]."""
        hidden = self.encoder(input_ids, token_type_ids, attention_mask, packing)
        return self.rtd_head(hidden)

    def rtd_head(self, hidden: Tensor) -> Tensor:
        """Return logits [B, T] of hidden states [B, T, D]."""
        logits: Tensor = self.output(gelu(self.dense(hidden))).squeeze(-1)
        return logits

    def logits(self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.forward(input_ids, token_type_ids, attention_mask)


class TokenPrediction(NamedTuple):
    """What a masked LM says of some positions."""

    token_loss: Tensor  # [...] cross-entropy of each label
    sampled: Tensor | None  # [...] one token each, where a sample was asked for
    logits: Tensor | None  # [..., V], where they were ever in memory


class Generator(nn.Module):
    """Predicts tokens at chosen positions, by the word embeddings it reads with.

    Alone, it is a BERT-style masked LM; over a causal encoder, a left-to-right LM.
    """

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
        if self.encoder.shape.causal:
            return "ElectraForCausalLM"
        return "ElectraForMaskedLM"

    @property
    def word_embeddings(self) -> Tensor:
        """The table [V, E] that the encoder reads with and the head predicts with."""
        return self.encoder.word_embeddings

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        attention_mask: Tensor,
        positions: Tensor,
        packing: Packing | None = None,
    ) -> Tensor:
        """Return logits [B, P, V] at `positions` [B, P]."""
        hidden = self.hidden_at(input_ids, token_type_ids, attention_mask, positions, packing)
        return self.lm_logits(self.transform(hidden))

    def hidden_at(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        attention_mask: Tensor,
        positions: Tensor,
        packing: Packing | None = None,
    ) -> Tensor:
        """Return the encoder's last hidden states [B, P, D] at `positions` [B, P] of tokens."""
        hidden = self.encoder(input_ids, token_type_ids, attention_mask, packing)
        return self.gather(hidden, positions)

    def gather(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """Return the hidden states [B, P, D] at `positions`, of all [B, T, D].

        Gather before the head: the product with the vocabulary is the dearest of the network, and
        six in seven rows of it would be thrown away.
        """
        return hidden.gather(1, positions.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))

    def transform(self, hidden: Tensor) -> Tensor:
        """Return the predicted embedding [..., E] of each hidden state [..., D]."""
        predicted: Tensor = self.norm(gelu(self.dense(hidden)))
        return predicted

    def lm_logits(self, predicted: Tensor) -> Tensor:
        """Return logits [..., V] of predicted embeddings [..., E]."""
        return F.linear(predicted, self.word_embeddings, self.bias)

    def predict(
        self,
        hidden: Tensor,
        labels: Tensor,
        *,
        sampling: Sampling | None = None,
        keep_logits: bool = False,
        rng: torch.Generator | None = None,
    ) -> TokenPrediction:
        """Return the loss of `labels` [B, P] from hidden states [B, P, D], and samples.

        `keep_logits` asks for the logits too: [B, P, V] is by far the largest tensor of a step.
        """
        logits = self.lm_logits(self.transform(hidden))
        sampled = None
        if sampling is not None:
            banned = labels if sampling.disallow_correct else None
            sampled = sample(logits, temperature=sampling.temperature, banned=banned, rng=rng)
        return TokenPrediction(cross_entropy(logits, labels), sampled, logits)

    def token_loss(self, predicted: Tensor, labels: Tensor) -> Tensor:
        """Return the cross-entropy [N] of `labels` [N] from predicted embeddings [N, E].

        [N, V] logits of every position would be the largest tensor of a step seven times over, so
        only a chunk of them exists at a time, and backward computes it again.
        """
        return chunked_cross_entropy(predicted, self.word_embeddings, self.bias, labels)

    def logits(self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return logits at every position, [B, T, V]."""
        every_position = torch.arange(input_ids.shape[1], device=input_ids.device)
        positions = every_position.expand_as(input_ids)
        return self.forward(input_ids, token_type_ids, attention_mask, positions)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return −log softmax(logits)[label], [...] of [..., V] and [...], in float32."""
    flat = logits.reshape(-1, logits.shape[-1]).float()
    return F.cross_entropy(flat, labels.flatten(), reduction="none").view_as(labels)


def chunked_cross_entropy(
    predicted: Tensor, word_embeddings: Tensor, bias: Tensor, labels: Tensor
) -> Tensor:
    """Return the cross-entropy [N] of `labels`, with the logits of a few rows at a time."""
    losses = []
    for start in range(0, len(predicted), LOGITS_CHUNK):
        rows = slice(start, start + LOGITS_CHUNK)
        chunk = checkpoint(
            linear_cross_entropy,
            predicted[rows],
            word_embeddings,
            bias,
            labels[rows],
            use_reentrant=False,
            preserve_rng_state=False,
        )
        losses.append(chunk)
    return torch.cat(losses)


def linear_cross_entropy(
    predicted: Tensor, word_embeddings: Tensor, bias: Tensor, labels: Tensor
) -> Tensor:
    logits = F.linear(predicted, word_embeddings, bias)
    return F.cross_entropy(logits.float(), labels, reduction="none")
