from __future__ import annotations

import pytest

from electra.model.shape import EncoderShape, GeneratorShape
from tests.wording import wording_of

wording = wording_of(__file__)

BASE = EncoderShape(layers=12, width=768, heads=12, feedforward=3072, embedding=768)
LARGE = EncoderShape(layers=24, width=1024, heads=16, feedforward=4096, embedding=1024)


@pytest.mark.parametrize(
    ("discriminator", "fraction", "width", "feedforward", "heads"),
    [
        (EncoderShape(), 1 / 4, 64, 256, 1),
        (BASE, 1 / 3, 256, 1024, 4),
        (LARGE, 1 / 4, 256, 1024, 4),
    ],
)
def test_a_generator_keeps_depth_and_embedding_width_and_shrinks_the_rest(
    discriminator: EncoderShape, fraction: float, width: int, feedforward: int, heads: int
) -> None:
    shape = GeneratorShape(fraction=fraction).beside(discriminator)
    assert (shape.width, shape.feedforward, shape.heads) == (width, feedforward, heads)
    assert (shape.layers, shape.embedding) == (discriminator.layers, discriminator.embedding)


def test_a_generator_may_be_sized_by_hand() -> None:
    shape = GeneratorShape(layers=3, width=192).beside(BASE)
    assert (shape.layers, shape.width, shape.heads, shape.feedforward) == (3, 192, 3, 768)


@pytest.mark.parametrize(("fraction", "width"), [(1 / 4, 64), (1.0, 256)])
def test_a_generator_that_shares_nothing_has_embeddings_as_wide_as_its_blocks(
    fraction: float, width: int
) -> None:
    """As in the official code, where only shared embeddings have the discriminator's width."""
    shape = GeneratorShape(tie="none", fraction=fraction).beside(EncoderShape(embedding=128))
    assert (shape.width, shape.embedding, shape.has_projection) == (width, width, False)


def test_an_embedding_of_its_own_may_be_sized_by_hand_but_not_a_shared_one() -> None:
    assert GeneratorShape(tie="none", embedding=96).beside(BASE).embedding == 96
    assert GeneratorShape(embedding=768).beside(BASE).embedding == 768
    with pytest.raises(ValueError, match=wording("an_embedding_of_its_own")):
        GeneratorShape(embedding=96).beside(BASE)


def test_tying_all_weights_of_unequal_networks_is_refused_with_the_remedy() -> None:
    with pytest.raises(
        ValueError,
        match=wording("tying_all_weights_of_unequal_networks_is_refused_with_the_remedy"),
    ):
        GeneratorShape(tie="all").beside(BASE)


def test_heads_that_do_not_divide_the_width_are_refused_with_the_next_width_that_does() -> None:
    with pytest.raises(
        ValueError,
        match=wording(
            "heads_that_do_not_divide_the_width_are_refused_with_the_next_width_that_does"
        ),
    ):
        EncoderShape(width=250)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("layers", 0),
        ("embedding", -1),
        ("dropout", 1.0),
        ("attention_dropout", -0.1),
    ],
)
def test_an_impossible_shape_is_refused_by_its_key(key: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{key}={value}"):
        EncoderShape(**{key: value})  # type: ignore[arg-type]
