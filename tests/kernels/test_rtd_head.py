"""The discriminator's head gives the logits and gradients of plain torch, though gelu's values are
never in memory.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from electra import kernels
from electra.kernels.low_precision import LowPrecisionCopies
from electra.kernels.rtd_head import RTDHeadWeights, rtd_head
from electra.model.electra_encoder import ElectraEncoder
from electra.model.modernbert_encoder import NORM_EPSILON
from electra.model.networks import Discriminator
from electra.model.shape import EncoderShape
from tests.conftest import toy_batch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def ours_and_plain(
    shape: tuple[int, int, int], dtype: torch.dtype, *, normed: bool = False
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Logits and gradients; `hidden` and weights have values that `dtype` holds exactly, and one
    token no gradient.
    """
    rng, width = torch.Generator().manual_seed(0), shape[-1]
    sizes = [shape, (width, width), (width,), (1, width), (1,)]
    values = [torch.randn(*size, generator=rng) for size in sizes]
    values[1] /= width**0.5
    inputs = [
        value.to(dtype).to(DEVICE, dtype if number == 0 else torch.float32).requires_grad_()
        for number, value in enumerate(values)
    ]
    gradient = torch.randn(*shape[:2], generator=rng)
    gradient[0, 1] = 0
    hidden, dense, bias_or_norm, output, output_bias = inputs
    between = (None, bias_or_norm) if normed else (bias_or_norm, None)
    weights = RTDHeadWeights(dense, *between, output, output_bias)
    logits = rtd_head(hidden, weights, LowPrecisionCopies())
    ours = [logits, *torch.autograd.grad(logits, inputs, gradient.to(DEVICE))]

    plain = [tensor.detach().cpu().double().requires_grad_() for tensor in inputs]
    hidden, dense, bias_or_norm, output, output_bias = plain
    if normed:
        activated = F.gelu(F.linear(hidden, dense))
        activated = F.layer_norm(activated, shape[-1:], bias_or_norm, eps=NORM_EPSILON)
    else:
        activated = F.gelu(F.linear(hidden, dense, bias_or_norm))
    expected = F.linear(activated, output, output_bias).squeeze(-1)
    return ours, [expected, *torch.autograd.grad(expected, plain, gradient.double())]


@pytest.mark.parametrize("shape", [(2, 5, 24), (7, 30, 128), (2, 9, 160)])
@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 3e-6), (torch.float16, 1e-3)])
@pytest.mark.parametrize("normed", [False, True], ids=["electra", "modernbert"])
def test_logits_and_gradients_are_those_of_plain_torch(shape, dtype, within, normed):
    ours, plain = ours_and_plain(shape, dtype, normed=normed)
    assert [tensor.dtype for tensor in ours] == [torch.float32, dtype, *[torch.float32] * 4]
    for our, their in zip(ours, plain, strict=True):
        assert our.shape == their.shape
        assert (our.detach().cpu().double() - their).norm() < within * their.norm()
    assert not ours[1][0, 1].any()


@pytest.mark.parametrize("normed", [False, True], ids=["electra", "modernbert"])
def test_more_tokens_than_programs_are_shared_among_them(monkeypatch, normed):
    monkeypatch.setattr("electra.kernels.rtd_head.PROGRAMS", 2)
    monkeypatch.setattr("electra.kernels.rtd_head.TILE", 64)
    ours, plain = ours_and_plain((4, 11, 24), torch.float32, normed=normed)
    for our, their in zip(ours, plain, strict=True):
        torch.testing.assert_close(
            our.detach().cpu().double(), their.detach(), atol=2e-5, rtol=2e-5
        )


SHAPE = EncoderShape(
    layers=1,
    width=32,
    heads=2,
    feedforward=64,
    embedding=24,
    positions=16,
    dropout=0.0,
    attention_dropout=0.0,
)


def discriminator(*, fused: bool) -> Discriminator:
    torch.manual_seed(0)
    module = Discriminator(ElectraEncoder(SHAPE, vocabulary=50)).to(DEVICE)
    if fused:
        kernels.fuse(module)
    return module


def test_the_discriminator_has_the_same_logits_and_gradients_with_its_kernels_and_without():
    batch, results = toy_batch([16, 9, 12]).to(DEVICE), []
    for fused in (False, True):
        module = discriminator(fused=fused)
        with torch.autocast(DEVICE.type, dtype=torch.float16):
            logits = module(batch.input_ids, batch.token_type_ids, batch.attention_mask)
        assert logits.dtype == (torch.float32 if fused else torch.float16)
        replaced = (batch.input_ids % 3 == 0).float()
        F.binary_cross_entropy_with_logits(
            logits.float(), replaced, weight=batch.attention_mask.float()
        ).backward()
        results.append(
            {
                "logits": logits[batch.attention_mask],
                **{name: weight.grad for name, weight in module.named_parameters()},
            }
        )
    for name, plain in results[0].items():
        assert (results[1][name] - plain).norm() < 0.02 * plain.norm(), name


def test_in_full_precision_the_plain_path_runs():
    batch = toy_batch([16, 9]).to(DEVICE)
    plain, fused = (
        discriminator(fused=on)(batch.input_ids, batch.token_type_ids, batch.attention_mask)
        for on in (False, True)
    )
    assert fused.equal(plain)
