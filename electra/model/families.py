"""The families of encoders, and how networks of the family that a shape names are built."""

from __future__ import annotations

from torch import nn

from electra.model.disentangled import DisentangledEmbedding
from electra.model.electra_family import ElectraFamily
from electra.model.encoder import Encoder
from electra.model.family import Family
from electra.model.modernbert_family import ModernBertFamily
from electra.model.networks import Discriminator, Generator
from electra.model.shape import EncoderShape, GeneratorShape

FAMILIES: dict[str, Family] = {"electra": ElectraFamily(), "modernbert": ModernBertFamily()}


def family_of(shape: EncoderShape) -> Family:
    return FAMILIES[shape.family]


def build_encoder(shape: EncoderShape, *, vocabulary: int) -> Encoder:
    """Build an encoder with fresh weights."""
    return family_of(shape).encoder_class(shape, vocabulary=vocabulary)


def build_masked_lm(shape: EncoderShape, *, vocabulary: int) -> Generator:
    """Build a masked LM that stands alone."""
    return family_of(shape).generator_class(build_encoder(shape, vocabulary=vocabulary))


def build_networks(
    discriminator: EncoderShape, generator: GeneratorShape, *, vocabulary: int
) -> tuple[Generator | None, Discriminator]:
    """Build both networks of a run; the generator is None where replacements come by chance."""
    encoder = build_encoder(discriminator, vocabulary=vocabulary)
    main = family_of(discriminator).discriminator_class(encoder)
    return build_generator(generator, beside=main.encoder), main


def build_generator(generator: GeneratorShape, *, beside: Encoder) -> Generator | None:
    """Build a generator that shares with the main network's encoder what its settings say."""
    if generator.kind != "network":
        return None
    shape, build = generator.beside(beside.shape), family_of(beside.shape).generator_class
    if generator.tie == "all":
        return build(beside)
    if generator.tie == "embeddings":
        return build(beside.build_beside(shape))
    encoder = build_encoder(shape, vocabulary=beside.vocabulary)
    if generator.tie == "gradient-disentangled":
        shared = encoder.embeddings.word_embeddings
        assert isinstance(shared, nn.Embedding)
        beside.embeddings.word_embeddings = DisentangledEmbedding(shared)
    return build(encoder)
