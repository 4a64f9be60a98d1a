from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from electra.model.electra_encoder import ElectraEncoder
from electra.model.families import build_networks
from electra.model.networks import Discriminator, Generator
from electra.model.shape import EncoderShape, GeneratorShape

TINY = EncoderShape(layers=2, width=128, heads=2, feedforward=256, embedding=32, positions=16)
VOCABULARY = 60


def pair(
    tie: Literal["none", "embeddings", "all"], *, fraction: float = 0.5
) -> tuple[Generator, Discriminator]:
    torch.manual_seed(0)
    generator, discriminator = build_networks(
        TINY, GeneratorShape(tie=tie, fraction=fraction), vocabulary=VOCABULARY
    )
    assert generator is not None
    return generator.eval(), discriminator.eval()


def names_shared(one: nn.Module, other: nn.Module) -> set[str]:
    theirs = {id(parameter) for parameter in other.parameters()}
    return {name for name, parameter in one.named_parameters() if id(parameter) in theirs}


@pytest.fixture
def batch() -> tuple[Tensor, Tensor, Tensor]:
    input_ids = torch.randint(5, VOCABULARY, (3, 10), generator=torch.Generator().manual_seed(2))
    attention_mask = torch.arange(10) < torch.tensor([[10], [7], [4]])
    return input_ids, torch.zeros_like(input_ids), attention_mask


def test_tied_embeddings_share_words_positions_types_and_their_norm_and_nothing_else() -> None:
    generator, discriminator = pair("embeddings")
    assert names_shared(generator, discriminator) == {
        "encoder.embeddings.word_embeddings.weight",
        "encoder.embeddings.position_embeddings.weight",
        "encoder.embeddings.token_type_embeddings.weight",
        "encoder.embeddings.norm.weight",
        "encoder.embeddings.norm.bias",
    }


def test_untied_networks_share_nothing() -> None:
    assert names_shared(*pair("none")) == set()


def test_tied_wholly_two_heads_stand_on_one_encoder() -> None:
    generator, discriminator = pair("all", fraction=1.0)
    assert generator.encoder is discriminator.encoder
    assert {name for name, _ in generator.named_parameters()} - names_shared(
        generator, discriminator
    ) == {"dense.weight", "dense.bias", "norm.weight", "norm.bias", "bias"}


@pytest.mark.parametrize("kind", ["unigram", "uniform"])
def test_a_generator_by_chance_has_no_network(kind: Literal["unigram", "uniform"]) -> None:
    generator, discriminator = build_networks(
        TINY, GeneratorShape(kind=kind), vocabulary=VOCABULARY
    )
    assert generator is None
    assert isinstance(discriminator, Discriminator)


def test_the_generator_predicts_with_the_table_it_reads_with(
    batch: tuple[Tensor, Tensor, Tensor],
) -> None:
    generator, _ = pair("embeddings")
    generator(*batch, torch.zeros(3, 1, dtype=torch.long)).sum().backward()
    # A word absent from the input gets its gradient through the output alone.
    assert generator.encoder.embeddings.word_embeddings.weight.grad is not None
    assert generator.encoder.embeddings.word_embeddings.weight.grad[0].any()


def test_gathering_first_gives_what_predicting_everywhere_and_selecting_gives(
    batch: tuple[Tensor, Tensor, Tensor],
) -> None:
    generator, _ = pair("embeddings")
    positions = torch.tensor([[1, 9], [6, 6], [0, 3]])
    everywhere = generator(*batch, torch.arange(10).expand(3, 10))
    selected = everywhere.gather(1, positions[:, :, None].expand(-1, -1, VOCABULARY))
    torch.testing.assert_close(generator(*batch, positions), selected, rtol=0, atol=1e-6)


def test_padding_never_changes_a_logit_or_a_prediction(
    batch: tuple[Tensor, Tensor, Tensor],
) -> None:
    generator, discriminator = pair("embeddings")
    input_ids, token_type_ids, attention_mask = batch
    other = torch.where(attention_mask, input_ids, 0)
    positions = torch.tensor([[0, 2]]).expand(3, 2)
    assert torch.equal(
        discriminator(input_ids, token_type_ids, attention_mask)[attention_mask],
        discriminator(other, token_type_ids, attention_mask)[attention_mask],
    )
    assert torch.equal(
        generator(input_ids, token_type_ids, attention_mask, positions),
        generator(other, token_type_ids, attention_mask, positions),
    )


def test_the_discriminator_gives_one_logit_per_token(batch: tuple[Tensor, Tensor, Tensor]) -> None:
    assert pair("embeddings")[1](*batch).shape == (3, 10)


def test_the_output_layer_of_the_discriminator_starts_from_glorot_s_uniform() -> None:
    torch.manual_seed(0)
    weight = Discriminator(ElectraEncoder(TINY, vocabulary=VOCABULARY)).output.weight
    bound = (6 / (128 + 1)) ** 0.5
    assert 0.9 * bound < weight.abs().max() <= bound
