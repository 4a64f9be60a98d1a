from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from electra.config import UserError
from electra.model.electra_encoder import ElectraEncoder
from electra.model.encoder import Attention, set_activation_checkpointing
from electra.model.shape import EncoderShape
from tests.wording import wording_of

wording = wording_of(__file__)

TINY = EncoderShape(layers=2, width=32, heads=4, feedforward=64, embedding=16, positions=12)
VOCABULARY = 50


@pytest.fixture
def encoder() -> ElectraEncoder:
    torch.manual_seed(0)
    return ElectraEncoder(TINY, vocabulary=VOCABULARY).eval()


def rows(*lengths: int, width: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    """Random ids and types, of which the first `lengths` of each row are real."""
    input_ids = torch.randint(
        1, VOCABULARY, (len(lengths), width), generator=torch.Generator().manual_seed(1)
    )
    token_type_ids = (torch.arange(width) > width // 2).long().expand_as(input_ids)
    return input_ids, token_type_ids, torch.arange(width) < torch.tensor(lengths)[:, None]


def test_ids_become_one_vector_per_token(encoder: ElectraEncoder) -> None:
    assert encoder(*rows(8, 5)).shape == (2, 8, 32)


def test_what_stands_in_padding_never_changes_a_real_token(encoder: ElectraEncoder) -> None:
    input_ids, token_type_ids, attention_mask = rows(8, 5)
    other = torch.where(attention_mask, input_ids, (input_ids + 7) % VOCABULARY)
    assert not torch.equal(input_ids, other)
    assert torch.equal(
        encoder(input_ids, token_type_ids, attention_mask)[attention_mask],
        encoder(other, token_type_ids, attention_mask)[attention_mask],
    )


def test_a_padded_row_gives_what_its_tokens_give_alone(encoder: ElectraEncoder) -> None:
    input_ids, token_type_ids, attention_mask = rows(8, 5)
    alone = encoder(input_ids[1:, :5], token_type_ids[1:, :5], attention_mask[1:, :5])
    torch.testing.assert_close(
        encoder(input_ids, token_type_ids, attention_mask)[1:, :5], alone, rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("training", [False, True], ids=["asked", "training"])
def test_a_causal_token_sees_what_stands_before_it_and_never_what_follows(training: bool) -> None:
    torch.manual_seed(0)
    causal = ElectraEncoder(replace(TINY, causal=True), vocabulary=VOCABULARY).train(training)
    input_ids, token_type_ids, attention_mask = rows(8, 6)
    later, earlier = input_ids.clone(), input_ids.clone()
    later[:, 5], earlier[:, 1] = (
        (input_ids[:, 5] + 1) % VOCABULARY,
        (input_ids[:, 1] + 1) % VOCABULARY,
    )
    vectors = []
    for read in (input_ids, later, earlier):
        torch.manual_seed(1)  # what drops out is the same
        vectors.append(causal(read, token_type_ids, attention_mask))
    expected, after_later, after_earlier = vectors
    assert torch.equal(expected[:, :5], after_later[:, :5])
    assert not torch.allclose(expected[0, 5:], after_later[0, 5:], atol=1e-3)
    assert torch.equal(expected[:, 0], after_earlier[:, 0])
    assert not torch.allclose(expected[0, 1:], after_earlier[0, 1:], atol=1e-3)


def test_a_row_of_nothing_but_padding_stays_finite(encoder: ElectraEncoder) -> None:
    assert encoder(*rows(8, 0)).isfinite().all()


def test_segments_and_order_are_seen(encoder: ElectraEncoder) -> None:
    input_ids, token_type_ids, attention_mask = rows(8)
    assert not torch.allclose(
        encoder(input_ids, token_type_ids, attention_mask),
        encoder(input_ids, 1 - token_type_ids, attention_mask),
        atol=1e-3,
    )
    assert not torch.allclose(
        encoder(input_ids, token_type_ids, attention_mask).flip(1),
        encoder(input_ids.flip(1), token_type_ids, attention_mask),
        atol=1e-3,
    )


def test_attention_is_the_softmax_of_scaled_products_over_real_tokens() -> None:
    torch.manual_seed(0)
    attention = Attention(TINY).eval()
    hidden, attention_mask = torch.randn(2, 8, 32), rows(8, 5)[2]
    weights, biases = (
        attention.query_key_value.weight.split(32),
        attention.query_key_value.bias.split(32),
    )
    query, key, value = (
        F.linear(hidden, w, b).unflatten(-1, (4, 8)) for w, b in zip(weights, biases, strict=True)
    )
    scores = torch.einsum("bthk,bshk->bhts", query, key) / math.sqrt(8)
    shares = scores.masked_fill(~attention_mask[:, None, None, :], -math.inf).softmax(-1)
    expected = attention.output(torch.einsum("bhts,bshk->bthk", shares, value).flatten(2))
    torch.testing.assert_close(
        attention(hidden, attention_mask[:, None, None, :]), expected, rtol=0, atol=1e-6
    )


def test_matrices_start_from_a_normal_cut_at_two_deviations_and_biases_from_zero() -> None:
    torch.manual_seed(0)
    encoder = ElectraEncoder(EncoderShape(layers=1), vocabulary=1000)
    for name, parameter in encoder.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        elif "projection" not in name:
            assert parameter.abs().max() <= 0.04, name
    # Cutting a normal of 0.02 at two deviations leaves 0.02 × 0.8796.
    assert encoder.embeddings.word_embeddings.weight.std().item() == pytest.approx(0.0176, rel=0.01)


def test_the_projection_starts_from_glorot_s_uniform() -> None:
    projection = ElectraEncoder(EncoderShape(layers=1), vocabulary=10).projection
    assert projection is not None
    bound = math.sqrt(6 / (128 + 256))
    assert 0.99 * bound < projection.weight.abs().max() <= bound


def test_embeddings_as_wide_as_the_blocks_are_not_projected() -> None:
    assert ElectraEncoder(EncoderShape(layers=1, embedding=256), vocabulary=10).projection is None


def test_the_same_seed_gives_the_same_weights() -> None:
    torch.manual_seed(3)
    first = ElectraEncoder(TINY, vocabulary=VOCABULARY).state_dict()
    torch.manual_seed(3)
    second = ElectraEncoder(TINY, vocabulary=VOCABULARY).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_dropout_acts_in_training_only(encoder: ElectraEncoder) -> None:
    batch = rows(8, 5)
    assert torch.equal(encoder(*batch), encoder(*batch))
    encoder.train()
    assert not torch.equal(encoder(*batch), encoder(*batch))


def test_rows_longer_than_the_network_s_positions_are_refused(encoder: ElectraEncoder) -> None:
    with pytest.raises(
        UserError, match=wording("rows_longer_than_the_network_s_positions_are_refused")
    ):
        encoder(*rows(13, width=13))


def test_blocks_that_are_computed_again_give_the_same_bits_and_keep_little() -> None:
    """Dropout included: what dropped out in forward drops out again in backward."""
    found = []
    for again in (False, True):
        torch.manual_seed(0)
        encoder = ElectraEncoder(
            replace(TINY, layers=6, dropout=0.3, attention_dropout=0.3), vocabulary=VOCABULARY
        )
        set_activation_checkpointing(encoder, again)
        kept: list[int] = []

        def keep(tensor: Tensor, kept: list[int] = kept) -> Tensor:
            kept.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            vectors = encoder(*rows(8, 5))
        forward = sum(kept)
        vectors.square().sum().backward()
        found.append((forward, vectors, *(parameter.grad for parameter in encoder.parameters())))
    (much, *plain), (little, *same) = found
    assert all(torch.equal(*pair) for pair in zip(plain, same, strict=True))
    assert little < much / 4


def test_blocks_are_computed_once_where_nobody_wants_gradients(encoder: ElectraEncoder) -> None:
    set_activation_checkpointing(encoder, True)
    with torch.no_grad():
        assert not encoder(*rows(8, 5)).requires_grad
