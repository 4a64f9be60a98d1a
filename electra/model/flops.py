"""What an architecture costs: operations and parameters in closed form, itemised per term. No
torch.

Operations are counted in two conventions. `standard` counts matrix products alone, a training step
as three forward passes; it is what model FLOPs utilisation is stated in. `official` follows the
script published with the paper, whose totals the literature quotes: look-ups as dense products,
activations and norms included, a training step as two passes. A network that is frozen takes its
forward pass and no other, in both; the script itself knows none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from electra.model.shape import EncoderShape

Terms = dict[str, float]
# all-tokens: a masked LM's at every position, and a copy gate; left-to-right: at every position but
# a row's last
Head = Literal["rtd", "mlm", "all-tokens", "left-to-right"]

# Totals of the script for networks that are not ours to build; published, not derived here.
PUBLISHED_TRAINING = {
    "ELMo": 3.41e18,
    "GPT": 3.97e19,
    "XLNet": 3.857e21,
    "RoBERTa": 3.187e21,
    "ALBERT": 3.114e22,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """What a token goes through in pre-training: the networks, the row it stands in, the share that
    is predicted.
    """

    objective: Head = "rtd"
    encoder: EncoderShape  # the discriminator, or the main network of a masked LM
    generator: EncoderShape | None = None  # none where replacements are drawn by chance
    generator_is_trained: bool = True
    tie: Literal["none", "embeddings", "all"] = "embeddings"
    vocabulary: int
    length: int
    mask_rate: float = 0.15
    next_sentence: bool = (
        False  # the first vector of a row is also asked whether its segments belong together
    )

    def networks(self) -> Iterator[tuple[str, EncoderShape, Head]]:
        yield (
            ("discriminator" if self.objective == "rtd" else "encoder"),
            self.encoder,
            self.objective,
        )
        if self.generator is not None:
            yield "generator", self.generator, "mlm"

    def passes(self, whole: int) -> dict[str, int]:
        """How many forward passes' worth each network takes in a training step, a `whole` one where
        it learns.
        """
        return {
            name: whole if name != "generator" or self.generator_is_trained else 1
            for name, _, _ in self.networks()
        }


@dataclass(frozen=True, slots=True)
class Cost:
    """Forward operations per token, by network and term, and how many such passes a training step
    is worth to each.
    """

    networks: dict[str, Terms]
    passes: dict[str, int]

    @property
    def forward(self) -> float:
        return sum(sum(terms.values()) for terms in self.networks.values())

    @property
    def training(self) -> float:
        """Per token."""
        return sum(self.passes[name] * sum(terms.values()) for name, terms in self.networks.items())


# ---- operations ----------------------------------------------------------------------------------


def standard(work: Workload) -> Cost:
    """Matrix products alone, two operations per multiply-add; the backward pass costs twice the
    forward one.

    Causal attention counts like any other, as is usual, though half of its products are thrown
    away.
    """
    return Cost(
        {name: standard_terms(shape, head, work) for name, shape, head in work.networks()},
        work.passes(3),
    )


def standard_terms(shape: EncoderShape, head: Head, work: Workload) -> Terms:
    width, embedding = shape.width, shape.embedding
    terms: Terms = {
        "attention projections": shape.layers * 8 * width**2,
        "attention": shape.layers * 4 * width * work.length,
        "feed-forward": shape.layers * 4 * width * shape.feedforward,
    }
    if shape.has_projection:
        terms["embedding projection"] = 2 * embedding * width
    if head == "rtd":
        terms["RTD head"] = 2 * width**2 + 2 * width
    else:
        share = predicted_share(head, work, masked=work.mask_rate)
        terms["MLM head"] = share * (2 * width * embedding + 2 * embedding * work.vocabulary)
    if head == "all-tokens":
        terms["copy gate"] = 2 * width
    if work.next_sentence:
        terms["next-sentence head"] = 2 * width * CLASSES / work.length
    return terms


CLASSES = 2  # of next-sentence prediction: the second segment follows, or comes from elsewhere


def predicted_share(head: Head, work: Workload, *, masked: float) -> float:
    """The share of positions whose word is predicted."""
    return {"mlm": masked, "all-tokens": 1.0, "left-to-right": 1 - 1 / work.length}[head]


def official(work: Workload) -> Cost:
    """The counting of the paper's script, which takes the backward pass to cost as much as the
    forward one.
    """
    return Cost(
        {name: official_terms(shape, head, work) for name, shape, head in work.networks()},
        work.passes(2),
    )


DROPOUT, NORM, ACTIVATION, SOFTMAX = 4, 5, 8, 5  # the script's operations per value
OFFICIAL_PREDICTED = (
    0.15625  # 20 of 128 positions; the script says so of every network, Large's 25 % included
)


def official_terms(shape: EncoderShape, head: Head, work: Workload) -> Terms:
    width, embedding, vocabulary, length = (
        shape.width,
        shape.embedding,
        work.vocabulary,
        work.length,
    )
    residual = DROPOUT * width + width
    terms: Terms = {
        "word look-up": 2 * embedding * vocabulary,
        "position and type look-up": 2 * embedding * (length + 2) + 2 * embedding,
        "embedding norm and dropout": (NORM + DROPOUT) * embedding,
        "attention projections": shape.layers * (8 * width**2 + 4 * width),
        "attention": shape.layers
        * (4 * width * length + (SOFTMAX + DROPOUT + 1) * length * shape.heads),
        # The script charges this norm once per token, not once per value; kept, or its totals would
        # not come out.
        "attention residual and norm": shape.layers * (residual + NORM),
        "feed-forward": shape.layers
        * (4 * width * shape.feedforward + (ACTIVATION + 1) * shape.feedforward + width),
        "feed-forward residual and norm": shape.layers * (residual + NORM * width),
    }
    if shape.has_projection:
        terms["embedding projection"] = 2 * embedding * width + width
    if head == "rtd":
        terms["RTD head"] = 2 * width**2 + width + ACTIVATION * width + 2 * width
    else:
        hidden = 2 * width * embedding + (1 + ACTIVATION + NORM) * embedding
        share = predicted_share(head, work, masked=OFFICIAL_PREDICTED)
        terms["MLM head"] = share * (hidden + (2 * embedding + SOFTMAX + 2) * vocabulary)
    if head == "all-tokens":
        terms["copy gate"] = 2 * width  # as the script counts the last layer of the RTD head
    if work.next_sentence:
        terms["next-sentence head"] = 2 * width * CLASSES / work.length
    return terms


def inference(shape: EncoderShape, *, vocabulary: int, length: int) -> dict[str, float]:
    """One row through an encoder and a classifier shaped like the RTD head, as the paper's tables
    count it.
    """
    work = Workload(encoder=shape, vocabulary=vocabulary, length=length)
    return {
        "standard": length * standard(work).forward,
        "official": length * official(work).forward,
    }


# ---- parameters ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameters:
    """`encoder` and `head` are the main network's; `generator` is what the other adds, `shared`
    what it borrows.
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
    head = head_parameters(work.encoder, work.objective, work.vocabulary)
    head += CLASSES * (work.encoder.width + 1) if work.next_sentence else 0
    if work.generator is None:
        return Parameters(encoder=encoder, head=head, generator=0, shared=0)
    whole = encoder_parameters(work.generator, work.vocabulary)
    shared = {
        "none": 0,
        "embeddings": embedding_parameters(work.encoder, work.vocabulary),
        "all": whole,
    }[work.tie]
    own = whole - shared + head_parameters(work.generator, "mlm", work.vocabulary)
    return Parameters(encoder=encoder, head=head, generator=own, shared=shared)


def embedding_parameters(shape: EncoderShape, vocabulary: int) -> int:
    tables, norm = vocabulary + shape.positions + 2, 2
    return shape.embedding * (tables + norm)


def encoder_parameters(shape: EncoderShape, vocabulary: int) -> int:
    projection = shape.embedding * shape.width + shape.width if shape.has_projection else 0
    return (
        embedding_parameters(shape, vocabulary)
        + projection
        + shape.layers * block_parameters(shape)
    )


def block_parameters(shape: EncoderShape) -> int:
    width, feedforward = shape.width, shape.feedforward
    attention = 4 * (width**2 + width)
    transformation = 2 * width * feedforward + feedforward + width
    norms = 4 * width
    return attention + transformation + norms


def head_parameters(shape: EncoderShape, head: Head, vocabulary: int) -> int:
    width, embedding = shape.width, shape.embedding
    if head == "rtd":
        return width**2 + width + width + 1
    gate = width + 1 if head == "all-tokens" else 0
    return (
        width * embedding + embedding + 2 * embedding + vocabulary + gate
    )  # dense, norm, bias; no table of its own
