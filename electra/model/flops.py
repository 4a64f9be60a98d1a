"""FLOPs and parameters in closed form, itemised per term. No torch.

Operations are counted in two conventions. `standard` counts matrix products alone, a training step
as three forward passes; it is what model FLOPs utilisation is stated in. `official` follows the
script published with the paper, whose totals the literature quotes: look-ups as dense products,
activations and norms included, a training step as two passes. A frozen network takes its forward
pass and no other, in both; the script itself knows none.
"""

from __future__ import annotations

from dataclasses import dataclass

from electra.model.shape import EncoderShape
from electra.model.workload import (
    ACTIVATION,
    DROPOUT,
    NORM,
    SOFTMAX,
    LMHead,
    Network,
    Terms,
    Workload,
)


@dataclass(frozen=True, slots=True)
class Cost:
    """Forward operations per token by network and term, and the passes of a training step."""

    networks: dict[str, Terms]
    passes: dict[str, int]

    @property
    def forward(self) -> float:
        return sum(sum(terms.values()) for terms in self.networks.values())

    @property
    def training(self) -> float:
        """Operations per token of a training step."""
        return sum(self.passes[name] * sum(terms.values()) for name, terms in self.networks.items())


# ---- operations ----------------------------------------------------------------------------------


def standard(work: Workload) -> Cost:
    """Count matrix products, two operations per multiply-add; backward costs twice the forward.

    Causal attention counts like any other, as is usual, though half of its products go unused.
    """
    terms = {network.name: standard_terms(network, work) for network in work.networks()}
    return Cost(terms, work.passes(3))


def standard_terms(network: Network, work: Workload) -> Terms:
    shape = network.shape
    width = shape.width
    terms: Terms = {
        "attention projections": shape.layers * 8 * width**2,
        "attention": shape.layers * 4 * width * work.length,
        "feed-forward": shape.layers * 4 * width * shape.feedforward,
    }
    if shape.has_projection:
        terms["embedding projection"] = 2 * shape.embedding * width
    for head in network.heads:
        terms |= head.standard_terms(shape, work)
    return terms


def official(work: Workload) -> Cost:
    """Count as the paper's script does, which takes backward to cost as much as forward."""
    terms = {network.name: official_terms(network, work) for network in work.networks()}
    return Cost(terms, work.passes(2))


def official_terms(network: Network, work: Workload) -> Terms:
    shape, length = network.shape, work.length
    width, embedding = shape.width, shape.embedding
    residual = DROPOUT * width + width
    attention = 4 * width * length + (SOFTMAX + DROPOUT + 1) * length * shape.heads
    feedforward = 4 * width * shape.feedforward + (ACTIVATION + 1) * shape.feedforward + width
    terms: Terms = {
        "word look-up": 2 * embedding * work.vocabulary,
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
    for head in network.heads:
        terms |= head.official_terms(shape, work)
    return terms


def inference(shape: EncoderShape, *, vocabulary: int, length: int) -> dict[str, float]:
    """Count one row through an encoder and a classifier shaped like the RTD head, as the paper."""
    work = Workload(encoder=shape, vocabulary=vocabulary, length=length)
    return {
        "standard": length * standard(work).forward,
        "official": length * official(work).forward,
    }


# ---- parameters ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameters:
    """Parameter counts.

    `encoder` and `head` are the main network's. `generator` is what the generator adds, `shared`
    what it shares with the main network.
    """

    encoder: int
    head: int
    generator: int
    shared: int

    @property
    def total(self) -> int:
        return self.encoder + self.head + self.generator


def parameters(work: Workload) -> Parameters:
    encoder = encoder_parameters(work.encoder, work.vocabulary)
    head = sum(each.parameters(work.encoder, work.vocabulary) for each in work.heads)
    if work.generator is None:
        return Parameters(encoder=encoder, head=head, generator=0, shared=0)
    whole = encoder_parameters(work.generator, work.vocabulary)
    embeddings = embedding_parameters(work.encoder, work.vocabulary)
    shared = {"none": 0, "embeddings": embeddings, "all": whole}[work.tie]
    own = whole - shared + LMHead().parameters(work.generator, work.vocabulary)
    return Parameters(encoder=encoder, head=head, generator=own, shared=shared)


def embedding_parameters(shape: EncoderShape, vocabulary: int) -> int:
    tables, norm = vocabulary + shape.positions + 2, 2
    return shape.embedding * (tables + norm)


def encoder_parameters(shape: EncoderShape, vocabulary: int) -> int:
    count = embedding_parameters(shape, vocabulary) + shape.layers * block_parameters(shape)
    if shape.has_projection:
        count += shape.embedding * shape.width + shape.width
    return count


def block_parameters(shape: EncoderShape) -> int:
    width, feedforward = shape.width, shape.feedforward
    attention = 4 * (width**2 + width)
    transformation = 2 * width * feedforward + feedforward + width
    norms = 4 * width
    return attention + transformation + norms
