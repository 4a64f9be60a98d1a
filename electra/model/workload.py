"""What a token goes through in pre-training: networks, heads, row length. No torch.

An objective describes itself as a Workload; FLOPs (`flops.py`) and memory (`memory.py`) follow from
it. A new kind of head is a new subclass of Head.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from electra.model.shape import EncoderShape, Tie

Terms = dict[str, float]
FLOAT = (
    4  # bytes: weights, gradients, optimizer state, norms and losses are float32 in any precision
)
# Operations per value, as the script published with the paper counts them.
DROPOUT, NORM, ACTIVATION, SOFTMAX = 4, 5, 8, 5
OFFICIAL_PREDICTED = 0.15625  # 20 of 128 positions; the script says so of every network, Large too


class Head(ABC):
    """What one head costs per token, in the paper's and in the standard convention."""

    predicts_words = False  # at some or all positions, over the vocabulary
    predicts_everywhere = False  # at every position, so logits exist for a few rows at a time

    @abstractmethod
    def standard_terms(self, shape: EncoderShape, work: Workload) -> Terms:
        """Return matrix products alone, two operations per multiply-add."""

    @abstractmethod
    def official_terms(self, shape: EncoderShape, work: Workload) -> Terms:
        """Return operations as the paper's script counts them."""

    @abstractmethod
    def parameters(self, shape: EncoderShape, vocabulary: int) -> int: ...

    def kept_bytes(self, shape: EncoderShape, work: Workload, activation_bytes: int) -> float:
        """Return the bytes per token that the backward pass needs."""
        return 0.0


@dataclass(frozen=True, slots=True)
class RTDHead(Head):
    """Replaced or original, at every token: a hidden layer and one logit."""

    def standard_terms(self, shape: EncoderShape, work: Workload) -> Terms:
        return {"RTD head": 2 * shape.width**2 + 2 * shape.width}

    def official_terms(self, shape: EncoderShape, work: Workload) -> Terms:
        width = shape.width
        return {"RTD head": 2 * width**2 + width + ACTIVATION * width + 2 * width}

    def parameters(self, shape: EncoderShape, vocabulary: int) -> int:
        # The bias of the hidden layer, or ModernBERT's norm, which has none: as many.
        return shape.width**2 + shape.width + shape.width + 1

    def kept_bytes(self, shape: EncoderShape, work: Workload, activation_bytes: int) -> float:
        return activation_bytes * 3 * shape.width


@dataclass(frozen=True, slots=True)
class LMHead(Head):
    """A word of the vocabulary, at masked positions, at all of them, or at all but a row's last."""

    positions: Literal["masked", "all", "next"] = "masked"
    predicts_words = True

    @property
    def predicts_everywhere(self) -> bool:  # type: ignore[override]
        return self.positions != "masked"

    def predicted_fraction(self, work: Workload, *, masked: float) -> float:
        """Return the fraction of positions whose word is predicted."""
        return {"masked": masked, "all": 1.0, "next": 1 - 1 / work.length}[self.positions]

    def standard_terms(self, shape: EncoderShape, work: Workload) -> Terms:
        fraction = self.predicted_fraction(work, masked=work.mask_rate)
        per_word = 2 * hidden_layer(shape) + 2 * shape.embedding * work.vocabulary
        return {"MLM head": fraction * per_word}

    def official_terms(self, shape: EncoderShape, work: Workload) -> Terms:
        embedding = shape.embedding
        hidden = 2 * hidden_layer(shape) + (1 + ACTIVATION + NORM) * embedding
        fraction = self.predicted_fraction(work, masked=OFFICIAL_PREDICTED)
        per_word = hidden + (2 * embedding + SOFTMAX + 2) * work.vocabulary
        return {"MLM head": fraction * per_word}

    def parameters(self, shape: EncoderShape, vocabulary: int) -> int:
        width, embedding = shape.width, shape.embedding
        hidden = width * embedding + embedding + 2 * embedding
        if shape.family == "modernbert":
            hidden = width**2 + width
        return hidden + vocabulary  # the bias; the matrix is the word embeddings

    def kept_bytes(self, shape: EncoderShape, work: Workload, activation_bytes: int) -> float:
        embedding = shape.embedding
        hidden = activation_bytes * (shape.width + 2 * embedding) + FLOAT * embedding
        if self.predicts_everywhere:
            return hidden
        return work.mask_rate * (hidden + logits_bytes(work))


def hidden_layer(shape: EncoderShape) -> int:
    """Return the products before those with the vocabulary, per predicted word.

    ModernBERT's layer keeps the width, and its result goes back through the embedding's projection.
    """
    products = shape.width * shape.embedding
    if shape.family == "electra":
        return products
    return shape.width**2 + shape.has_projection * products


@dataclass(frozen=True, slots=True)
class LinearHead(Head):
    """One linear layer, applied at every token or at the first of each row."""

    title: str
    outputs: int = 1
    per_row: bool = False

    def standard_terms(self, shape: EncoderShape, work: Workload) -> Terms:
        operations: float = 2 * shape.width * self.outputs
        if self.per_row:
            operations = operations / work.length
        return {self.title: operations}

    def official_terms(self, shape: EncoderShape, work: Workload) -> Terms:
        return self.standard_terms(shape, work)  # as the script counts the RTD head's last layer

    def parameters(self, shape: EncoderShape, vocabulary: int) -> int:
        return self.outputs * (shape.width + 1)


class Network(NamedTuple):
    """One network of a workload."""

    name: str
    shape: EncoderShape
    heads: tuple[Head, ...]
    is_trained: bool

    @property
    def lm_head(self) -> LMHead | None:
        return next((head for head in self.heads if isinstance(head, LMHead)), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """The networks, the row a token stands in, and the fraction of tokens that is masked."""

    encoder: EncoderShape  # of the discriminator, or of the main network of a masked LM
    heads: tuple[Head, ...] = (RTDHead(),)
    network: str = "discriminator"  # the name of the main network
    generator: EncoderShape | None = None  # None where replacements are drawn by chance
    generator_is_trained: bool = True
    tie: Tie = "embeddings"
    vocabulary: int
    length: int
    mask_rate: float = 0.15

    def networks(self) -> Iterator[Network]:
        yield Network(self.network, self.encoder, self.heads, True)
        if self.generator is not None:
            yield Network("generator", self.generator, (LMHead(),), self.generator_is_trained)

    def passes(self, trained: int) -> dict[str, int]:
        """Return the forward passes that a step is worth: `trained` for a network that learns."""
        return {network.name: trained if network.is_trained else 1 for network in self.networks()}


def logits_bytes(work: Workload) -> float:
    """Return bytes per predicted word: logits, their log-softmax, and the gradient of both."""
    return 3 * FLOAT * work.vocabulary
