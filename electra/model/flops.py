"""FLOPs and parameters in closed form, itemised per term. No torch.

Operations are counted in two conventions. `standard` counts matrix products alone, a training step
as three forward passes; it is what model FLOPs utilisation is stated in. `official` follows the
script published with the paper, whose totals the literature quotes: look-ups as dense products,
activations and norms included, a training step as two passes. A frozen network takes its forward
pass and no other, in both; the script itself knows none.
"""

from __future__ import annotations

from dataclasses import dataclass

from electra.model.encoder_costs import costs_of
from electra.model.shape import EncoderShape
from electra.model.workload import LMHead, Network, Terms, Workload


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
    terms = costs_of(network.shape).standard_terms(network.shape, work.length)
    for head in network.heads:
        terms |= head.standard_terms(network.shape, work)
    return terms


def official(work: Workload) -> Cost:
    """Count as the paper's script does, which takes backward to cost as much as forward."""
    terms = {network.name: official_terms(network, work) for network in work.networks()}
    return Cost(terms, work.passes(2))


def official_terms(network: Network, work: Workload) -> Terms:
    costs = costs_of(network.shape)
    terms = costs.official_terms(network.shape, work.length, work.vocabulary)
    for head in network.heads:
        terms |= head.official_terms(network.shape, work)
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
    embeddings = costs_of(work.encoder).embedding_parameters(work.encoder, work.vocabulary)
    shared = {"embeddings": embeddings, "all": whole}.get(work.tie, 0)
    own = whole - shared + LMHead().parameters(work.generator, work.vocabulary)
    return Parameters(encoder=encoder, head=head, generator=own, shared=shared)


def encoder_parameters(shape: EncoderShape, vocabulary: int) -> int:
    return costs_of(shape).parameters(shape, vocabulary)


def block_parameters(shape: EncoderShape) -> int:
    return costs_of(shape).block_parameters(shape)
