"""What an encoder of each family costs: operations, parameters, memory. No torch."""

from __future__ import annotations

from abc import ABC, abstractmethod

from electra.model.shape import EncoderShape
from electra.model.workload import ACTIVATION, DROPOUT, FLOAT, NORM, SOFTMAX, Terms


class EncoderCosts(ABC):
    """The costs of one family's encoder, per token unless said otherwise."""

    gated: int  # matrices that the feed-forward layer expands by: 2 with a gate, 1 without
    norms_projection: bool  # embeddings are normalised after their projection, not before

    def standard_terms(self, shape: EncoderShape, length: int) -> Terms:
        """Count matrix products, two operations per multiply-add."""
        width = shape.width
        terms: Terms = {
            "attention projections": shape.layers * 8 * width**2,
            "attention": shape.layers * 4 * width * length,
            "feed-forward": shape.layers * 2 * (self.gated + 1) * width * shape.feedforward,
        }
        if shape.has_projection:
            terms["embedding projection"] = 2 * shape.embedding * width
        return terms

    @abstractmethod
    def official_terms(self, shape: EncoderShape, length: int, vocabulary: int) -> Terms:
        """Count operations as the script published with the paper does."""

    @abstractmethod
    def embedding_parameters(self, shape: EncoderShape, vocabulary: int) -> int:
        """Return the parameters that two networks with tied embeddings share."""

    @abstractmethod
    def own_embedding_parameters(self, shape: EncoderShape) -> int:
        """Return the parameters between the shared embeddings and the blocks, and after them."""

    @abstractmethod
    def block_parameters(self, shape: EncoderShape) -> int:
        """Return the parameters of one block; of several kinds, the largest."""

    def block_matrix_values(self, shape: EncoderShape) -> int:
        """Return the values of the weight matrices of one block."""
        return 4 * shape.width**2 + (self.gated + 1) * shape.width * shape.feedforward

    def parameters(self, shape: EncoderShape, vocabulary: int) -> int:
        embeddings = self.embedding_parameters(shape, vocabulary)
        blocks = shape.layers * self.block_parameters(shape)
        return embeddings + self.own_embedding_parameters(shape) + blocks

    @abstractmethod
    def block_bytes(self, shape: EncoderShape, activation_bytes: int) -> float:
        """Return the bytes per token that the backward pass of one block needs."""

    @abstractmethod
    def dropped_values(self, shape: EncoderShape) -> int:
        """Return the values per token of a block that dropout reads, without those of attention."""

    def cpu_block_bytes(self, shape: EncoderShape, length: int) -> float:
        """Return the bytes per token that a block keeps on a CPU beside `block_bytes`, in float32.

        Φ of the gelu, masks of dropout as numbers and, where attention has dropout, its
        probabilities and their mask.
        """
        kept = FLOAT * shape.feedforward + (FLOAT - 1) * self.dropped_values(shape)
        return kept + (shape.attention_dropout > 0) * 2 * FLOAT * shape.heads * length


class ElectraCosts(EncoderCosts):
    gated = 1
    norms_projection = False

    def official_terms(self, shape: EncoderShape, length: int, vocabulary: int) -> Terms:
        width, embedding = shape.width, shape.embedding
        residual = DROPOUT * width + width
        attention = 4 * width * length + (SOFTMAX + DROPOUT + 1) * length * shape.heads
        feedforward = 4 * width * shape.feedforward + (ACTIVATION + 1) * shape.feedforward + width
        terms: Terms = {
            "word look-up": 2 * embedding * vocabulary,
            "position and type look-up": 2 * embedding * (length + 2) + 2 * embedding,
            "embedding norm and dropout": (NORM + DROPOUT) * embedding,
            "attention projections": shape.layers * (8 * width**2 + 4 * width),
            "attention": shape.layers * attention,
            # The script charges this norm once per token, not once per value; kept, or its totals
            # would not come out.
            "attention residual and norm": shape.layers * (residual + NORM),
            "feed-forward": shape.layers * feedforward,
            "feed-forward residual and norm": shape.layers * (residual + NORM * width),
        }
        if shape.has_projection:
            terms["embedding projection"] = 2 * embedding * width + width
        return terms

    def embedding_parameters(self, shape: EncoderShape, vocabulary: int) -> int:
        tables, norm = vocabulary + shape.positions + 2, 2
        return shape.embedding * (tables + norm)

    def own_embedding_parameters(self, shape: EncoderShape) -> int:
        if not shape.has_projection:
            return 0
        return shape.embedding * shape.width + shape.width

    def block_parameters(self, shape: EncoderShape) -> int:
        width, feedforward = shape.width, shape.feedforward
        attention = 4 * (width**2 + width)
        transformation = 2 * width * feedforward + feedforward + width
        norms = 4 * width
        return attention + transformation + norms

    def block_bytes(self, shape: EncoderShape, activation_bytes: int) -> float:
        width = shape.width
        # In, q, k, v, context, normed; around the gelu.
        kept = activation_bytes * (6 * width + 2 * shape.feedforward)
        norms = 2 * FLOAT * width
        log_sums = FLOAT * shape.heads
        return kept + norms + self.dropped_values(shape) + log_sums

    def dropped_values(self, shape: EncoderShape) -> int:
        return (shape.dropout > 0) * 2 * shape.width


class ModernBertCosts(EncoderCosts):
    gated = 2
    norms_projection = True

    def official_terms(self, shape: EncoderShape, length: int, vocabulary: int) -> Terms:
        """Count as the script would: it knows no rotary positions and no gates."""
        width, embedding, feedforward = shape.width, shape.embedding, shape.feedforward
        attention = 4 * width * length + (SOFTMAX + DROPOUT + 1) * length * shape.heads
        rotary = 2 * 3 * width  # two products and a sum for every value of queries and keys
        gate = (ACTIVATION + 1 + DROPOUT) * feedforward
        terms: Terms = {
            "word look-up": 2 * embedding * vocabulary,
            "embedding norm and dropout": (NORM + DROPOUT) * width,
            "attention projections": shape.layers * 8 * width**2,
            "attention": shape.layers * (attention + rotary),
            "attention residual and norm": shape.layers * (DROPOUT + 1 + NORM) * width,
            "feed-forward": shape.layers * (6 * width * feedforward + gate),
            "feed-forward residual and norm": shape.layers * (1 + NORM) * width,
            "final norm": NORM * width,
        }
        if shape.has_projection:
            terms["embedding projection"] = 2 * embedding * width
        return terms

    def embedding_parameters(self, shape: EncoderShape, vocabulary: int) -> int:
        return shape.embedding * vocabulary

    def own_embedding_parameters(self, shape: EncoderShape) -> int:
        # The norms of the embeddings and of the end; the first block has one norm less.
        norms = shape.width
        if shape.has_projection:
            return shape.embedding * shape.width + norms
        return norms

    def block_parameters(self, shape: EncoderShape) -> int:
        norms = 2 * shape.width
        return 4 * shape.width**2 + 3 * shape.width * shape.feedforward + norms

    def block_bytes(self, shape: EncoderShape, activation_bytes: int) -> float:
        width, feedforward = shape.width, shape.feedforward
        # In, q, k, v, turned q and k, context, both normed; both halves, the gelu, their product.
        kept = activation_bytes * (9 * width + 4 * feedforward)
        norms = 2 * FLOAT * width
        log_sums = FLOAT * shape.heads
        return kept + norms + self.dropped_values(shape) + log_sums

    def dropped_values(self, shape: EncoderShape) -> int:
        of_attention = (shape.attention_dropout > 0) * shape.width
        return of_attention + (shape.dropout > 0) * shape.feedforward


COSTS: dict[str, EncoderCosts] = {"electra": ElectraCosts(), "modernbert": ModernBertCosts()}


def costs_of(shape: EncoderShape) -> EncoderCosts:
    return COSTS[shape.family]
