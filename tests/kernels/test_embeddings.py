"""Vectors are those of plain torch with the same dropout; every table gets the sum over the tokens
that read it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from electra import kernels
from electra.config import UserError
from electra.data.batches import Batch
from electra.kernels.dropout import DropoutSite, draw_keys, keep_mask_reference
from electra.kernels.embedding_tables import look_up
from electra.kernels.embeddings import EmbeddingSettings, EmbeddingWeights, embed
from electra.model import electra_encoder
from electra.model.electra_encoder import ElectraEmbeddings
from electra.model.families import build_encoder
from electra.model.modernbert_encoder import NORM_EPSILON
from electra.model.shape import EncoderShape
from tests.conftest import toy_batch
from tests.kernels.test_packing import batch_of
from tests.wording import wording_of

wording = wording_of(__file__)

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
VOCABULARY, POSITIONS = 50, 20
RATE = 0.25
WITHOUT_DROPOUT = EmbeddingSettings(DropoutSite(0.0, draw_keys(1, DEVICE), 0), torch.float32)


def weights(width: int) -> EmbeddingWeights:
    rng = torch.Generator().manual_seed(width)
    tables = [torch.randn(rows, width, generator=rng) for rows in (VOCABULARY, POSITIONS, 2)]
    scale, shift = torch.rand(width, generator=rng) + 0.5, torch.randn(width, generator=rng)
    return EmbeddingWeights(
        *(tensor.to(DEVICE).requires_grad_() for tensor in (*tables, scale, shift))
    )


def in_float64(
    input_ids: torch.Tensor,
    token_type_ids: torch.Tensor,
    tables: EmbeddingWeights,
    site: DropoutSite,
) -> torch.Tensor:
    vectors = (
        tables.word_embeddings[input_ids]
        + tables.position_embeddings[: input_ids.shape[1]]
        + tables.token_type_embeddings[token_type_ids]
    )
    epsilon = electra_encoder.NORM_EPSILON
    normal = F.layer_norm(vectors, vectors.shape[-1:], tables.norm, tables.norm_bias, epsilon)
    site = site._replace(keys=site.keys.cpu())
    mask = keep_mask_reference(input_ids.numel(), normal.shape[-1], site)
    return normal * mask.view_as(normal) / (1 - site.rate)


def ours_and_plain(
    input_ids,
    token_type_ids,
    *,
    width: int,
    rate: float = RATE,
    dtype: torch.dtype = torch.float32,
    size: float = 1.0,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Vectors and all gradients, for a gradient of the vectors of about `size` that `dtype` holds
    exactly.
    """
    torch.manual_seed(0)
    tables, site = weights(width), DropoutSite(rate, draw_keys(2, DEVICE), 1)
    gradient = (torch.randn(*input_ids.shape, width) * size).to(dtype)
    out = embed(
        input_ids.to(DEVICE), token_type_ids.to(DEVICE), tables, EmbeddingSettings(site, dtype)
    )
    ours = [out, *torch.autograd.grad(out, tables, gradient.to(DEVICE))]
    plain = EmbeddingWeights(
        *(tensor.detach().cpu().double().requires_grad_() for tensor in tables)
    )
    expected = in_float64(input_ids, token_type_ids, plain, site)
    return ours, [expected, *torch.autograd.grad(expected, plain, gradient.double())]


def assert_relatively_close(ours: torch.Tensor, plain: torch.Tensor, within: float) -> None:
    assert ours.shape == plain.shape
    assert (ours.detach().cpu().double() - plain).norm() <= within * plain.norm()


@pytest.mark.parametrize("width", [24, 128, 160])
@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 2e-6), (torch.float16, 5e-4)])
def test_vectors_and_gradients_are_those_of_plain_torch(width, dtype, within):
    batch = toy_batch([16, 9, 12])
    ours, plain = ours_and_plain(batch.input_ids, batch.token_type_ids, width=width, dtype=dtype)
    assert ours[0].dtype == dtype
    assert_relatively_close(ours[0], plain[0], within)
    for our, their in zip(ours[1:], plain[1:], strict=True):
        assert our.dtype == torch.float32
        assert_relatively_close(our, their, 2e-6)


@pytest.mark.parametrize("rate", [0.0, RATE])
def test_words_alone_and_their_norm_are_those_of_plain_torch(rate):
    """ModernBERT's embeddings: no positions, no token types, no bias."""
    torch.manual_seed(0)
    batch, all_tables = toy_batch([16, 9, 12]), weights(24)
    table, norm = all_tables.word_embeddings, all_tables.norm
    site, gradient = DropoutSite(rate, draw_keys(2, DEVICE), 1), torch.randn(3, 16, 24)
    out = embed(
        batch.input_ids.to(DEVICE),
        None,
        EmbeddingWeights(table, None, None, norm, None),
        EmbeddingSettings(site, torch.float32, NORM_EPSILON),
    )
    ours = [out, *torch.autograd.grad(out, (table, norm), gradient.to(DEVICE))]
    plain = [tensor.detach().cpu().double().requires_grad_() for tensor in (table, norm)]
    normal = F.layer_norm(plain[0][batch.input_ids], (24,), plain[1], eps=NORM_EPSILON)
    mask = keep_mask_reference(48, 24, site._replace(keys=site.keys.cpu()))
    expected = normal * mask.view_as(normal) / (1 - rate)
    theirs = [expected, *torch.autograd.grad(expected, plain, gradient.double())]
    for our, their in zip(ours, theirs, strict=True):
        assert_relatively_close(our, their, 2e-6)


def test_a_look_up_alone_has_the_same_gradient_in_any_order_of_rows():
    torch.manual_seed(0)
    table = weights(24).word_embeddings
    input_ids, gradient = torch.randint(5, (40, 6)), torch.randn(40, 6, 24)
    gradients = []
    for order in (torch.arange(40), torch.randperm(40)):
        out = look_up(input_ids[order].to(DEVICE), table, torch.float32)
        assert out.equal(table[input_ids[order].to(DEVICE)])
        gradients += torch.autograd.grad(out, table, gradient[order].to(DEVICE))
    assert gradients[0].equal(gradients[1])
    expected = torch.zeros(VOCABULARY, 24, dtype=torch.float64)
    expected.index_add_(0, input_ids.flatten(), gradient.flatten(0, 1).double())
    assert_relatively_close(gradients[0], expected, 2e-6)


def test_more_tokens_than_programs_are_shared_among_them(monkeypatch):
    monkeypatch.setattr("electra.kernels.embeddings.PROGRAMS", 3)
    batch = toy_batch([16] * 40)
    for our, their in zip(
        *ours_and_plain(batch.input_ids, batch.token_type_ids, width=24), strict=True
    ):
        assert_relatively_close(our, their, 2e-6)


def test_one_word_in_all_places_gets_all_their_gradients():
    input_ids = torch.full((30, 7), 3)
    ours, plain = ours_and_plain(input_ids, torch.ones_like(input_ids), width=24)
    for our, their in zip(ours, plain, strict=True):
        assert_relatively_close(our, their, 2e-6)
    d_words, d_types = ours[1], ours[3]
    assert d_words.any(dim=1).nonzero().tolist() == [[3]]
    assert not d_types[0].any()


def test_the_largest_sum_that_tokens_can_have_does_not_overflow():
    """All of them alike: the sum is the count of tokens times the largest gradient there is."""
    tables, input_ids = weights(24), torch.zeros(100, 1, dtype=torch.int64, device=DEVICE)
    out = embed(input_ids, input_ids, tables, WITHOUT_DROPOUT)
    gradient = torch.eye(24, device=DEVICE)[0].expand_as(out)
    d_words, d_types = torch.autograd.grad(
        out, (tables.word_embeddings, tables.token_type_embeddings), gradient
    )
    torch.testing.assert_close(d_words[0], d_types[0], rtol=1e-5, atol=0)


def test_the_order_of_rows_changes_no_bit_of_the_words_gradient():
    """Kernels finish in any order; what they add up must not depend on it."""
    tables, gradients = weights(24), []
    input_ids, gradient = (
        torch.randint(5, (40, 6), device=DEVICE),
        torch.randn(40, 6, 24, device=DEVICE),
    )
    for order in (torch.arange(40), torch.randperm(40)):
        out = embed(
            input_ids[order],
            input_ids[order] % 2,
            tables,
            WITHOUT_DROPOUT,
        )
        gradients.append(torch.autograd.grad(out, tables.word_embeddings, gradient[order])[0])
    assert gradients[0].equal(gradients[1])


@pytest.mark.parametrize("size", [1e-30, 1e-8, 1e20])
def test_gradients_of_any_size_keep_their_bits(size):
    input_ids = torch.randint(VOCABULARY, (5, 9))
    ours, plain = ours_and_plain(input_ids, input_ids % 2, width=24, size=size)
    for our, their in zip(ours[1:], plain[1:], strict=True):
        assert_relatively_close(our, their, 2e-6)


def test_a_rare_word_with_a_millionth_of_the_largest_gradient_keeps_its_bits():
    torch.manual_seed(0)
    tables, site = weights(24), DropoutSite(0.0, draw_keys(1, DEVICE), 0)
    input_ids, gradient = torch.arange(12).view(2, 6), torch.randn(2, 6, 24)
    gradient[0, 0] *= 1e6
    out = embed(
        input_ids.to(DEVICE),
        torch.zeros_like(input_ids).to(DEVICE),
        tables,
        EmbeddingSettings(site, torch.float32),
    )
    ours = torch.autograd.grad(out, tables.word_embeddings, gradient.to(DEVICE))[0]
    plain = EmbeddingWeights(
        *(tensor.detach().cpu().double().requires_grad_() for tensor in tables)
    )
    theirs = torch.autograd.grad(
        in_float64(input_ids, torch.zeros_like(input_ids), plain, site),
        plain.word_embeddings,
        gradient.double(),
    )[0]
    assert_relatively_close(ours[1:], theirs[1:], 2e-6)


def test_no_gradient_in_gives_none_out():
    input_ids = torch.randint(VOCABULARY, (2, 5))
    ours, _ = ours_and_plain(input_ids, input_ids % 2, width=24, size=0.0)
    assert all(not gradient.any() for gradient in ours[1:])


@pytest.mark.filterwarnings("ignore:invalid value")  # of the interpreter's numpy
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_gradient_that_is_not_finite_makes_those_of_all_tables_so(value):
    input_ids, tables = torch.randint(VOCABULARY, (2, 5), device=DEVICE), weights(24)
    out = embed(input_ids, input_ids % 2, tables, WITHOUT_DROPOUT)
    gradient = torch.ones_like(out)
    gradient[1, 2, 3] = value
    for table_gradient in torch.autograd.grad(out, tables, gradient):
        assert not table_gradient.isfinite().all()


@pytest.mark.parametrize(
    ("input_ids", "token_type_ids"),
    [([[1, VOCABULARY]], [[0, 0]]), ([[1, -1]], [[0, 0]]), ([[1, 1]], [[0, 2]])],
)
def test_an_id_without_a_row_gives_nan_forward_and_backward(input_ids, token_type_ids):
    tables = weights(24)
    out = embed(
        torch.tensor(input_ids, device=DEVICE),
        torch.tensor(token_type_ids, device=DEVICE),
        tables,
        WITHOUT_DROPOUT,
    )
    assert out[0, 0].isfinite().all()
    assert out[0, 1].isnan().all()
    assert torch.autograd.grad(out.sum(), tables.word_embeddings)[0].isnan().all()


# ---- packed --------------------------------------------------------------------------------------


def packed_batch() -> Batch:
    """28 real tokens of 48, and four of padding."""
    torch.manual_seed(0)
    batch = batch_of([16, 9, 3], 16)
    assert batch.packing is not None
    assert len(batch.packing.token_indices) == 32
    return batch._replace(token_type_ids=batch.input_ids % 2)


@pytest.mark.parametrize("has_positions", [True, False])
@pytest.mark.parametrize("rate", [0.0, RATE])
def test_packed_tokens_are_those_of_the_padded_batch_and_so_are_the_tables_gradients(
    has_positions, rate
):
    batch, tables = packed_batch(), weights(24)
    if not has_positions:
        tables = EmbeddingWeights(tables.word_embeddings, None, None, tables.norm, None)
    settings = EmbeddingSettings(DropoutSite(rate, draw_keys(2, DEVICE), 1), torch.float16)
    inputs = (batch.input_ids, batch.token_type_ids, tables, settings)
    padded, packed = embed(*inputs), embed(*inputs, batch.packing)
    kept = batch.packing.token_indices
    assert packed.equal(padded.flatten(0, 1)[kept])
    gradient = torch.randn(3, 16, 24, device=DEVICE).half() * batch.attention_mask[..., None]
    given = {name: table for name, table in tables._asdict().items() if table is not None}
    theirs = torch.autograd.grad(padded, tuple(given.values()), gradient)
    ours = torch.autograd.grad(packed, tuple(given.values()), gradient.flatten(0, 1)[kept])
    for name, our, their in zip(given, ours, theirs, strict=True):
        if name in ("word_embeddings", "position_embeddings"):
            assert our.equal(their), name
        torch.testing.assert_close(our, their, rtol=1e-5, atol=1e-5)  # summed in another order


def test_a_packed_look_up_is_that_of_the_padded_batch_and_so_is_its_gradient():
    batch, table = packed_batch(), weights(24).word_embeddings
    padded = look_up(batch.input_ids, table, torch.float32)
    packed = look_up(batch.input_ids, table, torch.float32, batch.packing)
    kept = batch.packing.token_indices
    assert packed.equal(padded.flatten(0, 1)[kept])
    gradient = torch.randn(3, 16, 24, device=DEVICE) * batch.attention_mask[..., None]
    theirs = torch.autograd.grad(padded, table, gradient)[0]
    ours = torch.autograd.grad(packed, table, gradient.flatten(0, 1)[kept])[0]
    assert ours.equal(theirs)


# ---- inside the network --------------------------------------------------------------------------

SHAPE = EncoderShape(
    layers=1, width=32, heads=2, feedforward=64, embedding=24, positions=POSITIONS, dropout=0.5
)


def embeddings(*, fused: bool = True) -> ElectraEmbeddings:
    torch.manual_seed(0)
    module = ElectraEmbeddings(SHAPE, vocabulary=VOCABULARY).to(DEVICE)
    if fused:
        kernels.fuse(module)
    return module


def vectors(module: ElectraEmbeddings, *, seed: int = 0) -> torch.Tensor:
    batch = toy_batch([16, 9]).to(DEVICE)
    torch.manual_seed(seed)
    with torch.autocast(DEVICE.type, dtype=torch.float16):
        return module(batch.input_ids, batch.token_type_ids)


def test_without_dropout_the_network_reads_the_same_vectors_with_the_kernels_and_without():
    plain, fused = vectors(embeddings(fused=False).eval()), vectors(embeddings().eval())
    assert (plain.dtype, fused.dtype) == (torch.float32, torch.float16)
    torch.testing.assert_close(
        fused.float(), plain, atol=0, rtol=1.01 * 2**-11 + 1e-5
    )  # float16 rounds to 11 bits


@pytest.mark.parametrize("family", ["electra", "modernbert", "modernbert with a projection"])
def test_without_dropout_packed_embeddings_and_their_gradients_are_those_of_the_plain_module(
    family,
):
    batch, found = packed_batch(), []
    real = batch.attention_mask.flatten()[batch.packing.token_indices]
    gradient = torch.randn(28, 32, device=DEVICE)
    for fused in (False, True):
        torch.manual_seed(0)
        width = 24 if "projection" in family else 32
        shape = replace(SHAPE, family=family.split()[0], embedding=width, dropout=0.0)
        module = build_encoder(shape, vocabulary=VOCABULARY).embeddings
        module = module.to(DEVICE)
        inputs = [batch.input_ids, batch.token_type_ids][: 1 + (family == "electra")]
        if fused:
            kernels.fuse(module)
            with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
                out = module(*inputs, batch.packing)[real]
        else:
            out = module(*inputs)[batch.attention_mask]
        found.append([out, *torch.autograd.grad(out, list(module.parameters()), gradient)])
    for plain, ours in zip(*found, strict=True):
        assert (ours - plain).norm() <= 1e-2 * plain.norm()


def test_what_drops_out_of_a_packed_batch_is_what_drops_out_of_a_padded_one():
    batch, module = packed_batch(), embeddings()
    found = []
    for packing in (None, batch.packing):
        torch.manual_seed(0)
        with torch.autocast(DEVICE.type, dtype=torch.float16):
            found.append(module(batch.input_ids, batch.token_type_ids, packing).flatten(0, -2))
    padded, packed = found
    assert packed.equal(padded[batch.packing.token_indices])


def test_torchs_seed_decides_what_drops_out():
    module = embeddings()
    assert vectors(module, seed=1).equal(vectors(module, seed=1))
    dropped = vectors(module, seed=1) == 0
    assert not dropped.equal(vectors(module, seed=2) == 0)
    assert dropped.float().mean().item() == pytest.approx(SHAPE.dropout, abs=0.1)


def test_rows_longer_than_the_position_table_are_refused_with_a_remedy():
    input_ids = torch.zeros(1, POSITIONS + 1, dtype=torch.int64, device=DEVICE)
    with (
        torch.autocast(DEVICE.type, dtype=torch.float16),
        pytest.raises(
            UserError,
            match=wording("rows_longer_than_the_position_table_are_refused_with_a_remedy"),
        ),
    ):
        embeddings()(input_ids, input_ids)


def test_in_full_precision_the_plain_path_runs():
    input_ids = torch.randint(VOCABULARY, (2, 5), device=DEVICE)
    plain, fused = (
        embeddings(fused=False).eval()(input_ids, input_ids % 2),
        embeddings().eval()(input_ids, input_ids % 2),
    )
    assert fused.equal(plain)
