"""Rows of tokens: most padding is left out, and no token attends to the rest."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from electra.data.batches import Batch, pack_rows
from electra.kernels import fuse
from electra.kernels.packing import PackedRows
from electra.model.electra_encoder import ElectraEncoder
from electra.model.families import build_encoder, family_of
from electra.model.networks import Discriminator
from electra.model.shape import EncoderShape

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def batch_of(lengths: list[int], length: int) -> Batch:
    input_ids = torch.randint(5, 40, (len(lengths), length))
    attention_mask = torch.tensor(lengths)
    return Batch(
        input_ids,
        torch.zeros_like(input_ids),
        attention_mask,
        attention_mask,
        pack_rows(np.array(lengths), length),
    ).to(DEVICE)


def row_ranges(rows: PackedRows) -> list[tuple[int, int]]:
    return [(start, end) for start, end in pairwise(rows.cu_seqlens.tolist()) if start < end]


def test_without_packing_each_row_is_followed_by_its_padding() -> None:
    attention_mask = torch.arange(4) < torch.tensor([[2], [4], [1]])
    assert row_ranges(PackedRows.from_mask(attention_mask)) == [
        (0, 2),
        (2, 4),
        (4, 8),
        (8, 9),
        (9, 12),
    ]


def test_packed_rows_follow_each_other_and_remaining_padding_has_rows_of_its_own() -> None:
    batch = batch_of([3, 1, 2, 2, 1, 1], 4)
    rows = PackedRows.from_mask(batch.attention_mask, batch.packing)
    assert batch.packing is not None
    # Ten real tokens, and padding up to whole portions of four.
    assert len(batch.packing.token_indices) == 12
    assert row_ranges(rows) == [(0, 3), (3, 4), (4, 6), (6, 8), (8, 9), (9, 10), (10, 12)]
    assert (
        sorted(batch.packing.token_indices[:10].tolist())
        == batch.attention_mask.flatten().nonzero().flatten().tolist()
    )


def test_no_row_is_longer_than_the_rows_of_the_batch() -> None:
    for seed in range(20):
        torch.manual_seed(seed)
        lengths = torch.randint(1, 17, (40,)).tolist()
        batch = batch_of(lengths, 16)
        rows = PackedRows.from_mask(batch.attention_mask, batch.packing)
        row_lengths = [end - start for start, end in row_ranges(rows)]
        assert max(row_lengths) <= rows.max_seqlen == 16
        assert rows.token_indices is not None
        assert rows.cu_seqlens[-1] == len(rows.token_indices)
        assert row_lengths[:40] == lengths


def test_a_batch_is_not_packed_where_nothing_would_be_left_out() -> None:
    assert pack_rows(np.array([4, 4, 4]), 4) is None
    assert pack_rows(np.array([4, 4, 3]), 4) is None
    assert pack_rows(np.array([4, 4, 1, 1]), 4) is not None


def test_unpacking_puts_every_real_token_back_and_packs_its_gradient() -> None:
    batch = batch_of([3, 1, 2, 2, 1, 1], 4)
    attention_mask = batch.attention_mask
    rows = PackedRows.from_mask(attention_mask, batch.packing)
    assert rows.token_indices is not None
    hidden = torch.randn(6, 4, 5, device=DEVICE)
    tokens = hidden.flatten(0, 1)[rows.token_indices].requires_grad_()
    unpacked = rows.unpack(tokens)
    assert torch.equal(unpacked[attention_mask], hidden[attention_mask])
    weights = torch.randn_like(unpacked)
    (gradient,) = torch.autograd.grad((unpacked * weights).sum(), tokens)
    assert torch.equal(gradient, weights.flatten(0, 1)[rows.token_indices])


@pytest.mark.parametrize(
    "length",
    [
        pytest.param(16, id="one block of keys"),
        pytest.param(160, id="several blocks of keys", marks=pytest.mark.slow),
    ],
)
def test_an_encoder_and_its_gradients_are_the_same_packed_or_not(length: int) -> None:
    torch.manual_seed(0)
    shape = EncoderShape(
        layers=1 + (length < 128),
        width=16,
        heads=1,
        feedforward=32,
        embedding=16,
        positions=length,
        dropout=0.0,
        attention_dropout=0.0,
    )
    encoder = ElectraEncoder(shape, vocabulary=40).to(DEVICE)
    fuse(encoder)
    lengths = [length // 2, 3, length - 1]
    batch = batch_of(lengths, length)
    assert batch.packing is not None
    weights = torch.randn(len(lengths), length, 16, device=DEVICE) * batch.attention_mask[..., None]

    def run(batch: Batch) -> list[Tensor]:
        with torch.autocast(DEVICE.type, dtype=torch.float16):
            hidden = encoder(
                batch.input_ids, batch.token_type_ids, batch.attention_mask, batch.packing
            )
        gradients = torch.autograd.grad(
            (hidden.float() * weights).sum(), list(encoder.parameters())
        )
        return [hidden[batch.attention_mask].detach(), *gradients]

    for packed, padded in zip(run(batch), run(batch._replace(packing=None)), strict=True):
        assert float((packed.float() - padded.float()).norm()) < 2e-3 * float(padded.float().norm())


def test_a_discriminators_logits_and_gradients_are_those_of_plain_modules_packed_or_not() -> None:
    torch.manual_seed(0)
    shape = EncoderShape(
        layers=1,
        width=16,
        heads=1,
        feedforward=32,
        embedding=8,
        positions=16,
        dropout=0.0,
        attention_dropout=0.0,
    )
    network = Discriminator(ElectraEncoder(shape, vocabulary=40)).to(DEVICE)
    fuse(network)
    batch = batch_of([8, 3, 15], 16)
    assert batch.packing is not None
    weights = torch.randn(3, 16, device=DEVICE) * batch.attention_mask

    def run(batch: Batch, *, fused: bool = True) -> list[Tensor]:
        with torch.autocast(DEVICE.type, dtype=torch.float16, enabled=fused):
            logits = network(
                batch.input_ids, batch.token_type_ids, batch.attention_mask, batch.packing
            )
        gradients = torch.autograd.grad((logits * weights).sum(), list(network.parameters()))
        return [logits[batch.attention_mask].detach(), *gradients]

    padded, plain = run(batch._replace(packing=None)), run(batch, fused=False)
    for ours, unpacked, expected in zip(run(batch), padded, plain, strict=True):
        assert float((ours - unpacked).norm()) < 2e-3 * float(unpacked.norm())
        assert float((ours - expected).norm()) < 2e-2 * float(expected.norm())


@pytest.mark.parametrize("family", ["electra", "modernbert"])
def test_no_gradient_reaches_the_padding_of_a_packed_batch(family: str) -> None:
    torch.manual_seed(0)
    shape = EncoderShape(
        family=family, layers=1, width=16, heads=1, feedforward=32, embedding=16, positions=16
    )
    network = family_of(shape).discriminator_class(build_encoder(shape, vocabulary=40))
    fuse(network.to(DEVICE))
    batch, gradients = batch_of([8, 3, 15], 16), []

    def keep_gradient(module: nn.Module, inputs: object, embeddings: Tensor) -> None:
        embeddings.register_hook(gradients.append)

    network.encoder.embeddings.register_forward_hook(keep_gradient)
    with torch.autocast(DEVICE.type, dtype=torch.float16):
        logits = network(batch.input_ids, batch.token_type_ids, batch.attention_mask, batch.packing)
    (logits * batch.attention_mask).sum().backward()
    (gradient,) = gradients
    assert gradient.shape == (32, 16)  # 26 real tokens, and padding up to whole portions of 16
    assert gradient[:26].any(dim=1).all()
    assert not gradient[26:].any()
