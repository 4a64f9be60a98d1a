"""What is computed in another way than torch's own is the same function."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from electra.model.attention import attend
from electra.model.dropout import Dropout
from electra.model.gelu import gelu


def test_gelu_and_its_gradient_are_torchs():
    x = torch.linspace(-9, 9, 4001, dtype=torch.float64).requires_grad_()
    (ours,) = torch.autograd.grad(gelu(x).square().sum(), x)
    (theirs,) = torch.autograd.grad(F.gelu(x).square().sum(), x)
    assert torch.allclose(gelu(x), F.gelu(x), atol=1e-14)
    assert torch.allclose(ours, theirs, atol=1e-13)
    assert torch.autograd.gradcheck(gelu, torch.randn(20, dtype=torch.float64, requires_grad=True))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_drops_at_its_rate_keeps_the_mean_and_scales_what_it_keeps(rate):
    torch.manual_seed(0)
    out = Dropout(rate)(torch.ones(7, 50_001))
    scaled_keep_mask = out[out != 0]
    assert (out == 0).float().mean().item() == pytest.approx(rate, abs=0.004)
    assert torch.allclose(scaled_keep_mask, torch.tensor(1 / (1 - rate)), rtol=1e-3)
    assert out.mean().item() == pytest.approx(1.0, abs=0.03)


def test_dropout_follows_torchs_seed_and_is_silent_outside_training():
    dropout, x = Dropout(0.3), torch.randn(5, 9)
    torch.manual_seed(1)
    first = dropout(x)
    torch.manual_seed(1)
    assert dropout(x).equal(first)
    assert not dropout(x).equal(first)
    assert dropout.eval()(x) is x


def test_the_gradient_of_dropout_flows_through_what_was_kept():
    x = torch.randn(1000, requires_grad=True)
    out = Dropout(0.5)(x)
    out.sum().backward()
    assert ((x.grad != 0) == (out != 0)).all()


def attention_inputs() -> tuple[list[torch.Tensor], torch.Tensor]:
    torch.manual_seed(0)
    visible = torch.tensor([[True, True, True, True], [True, True, False, False]])[:, None, None, :]
    return [
        torch.randn(2, 3, 4, 5, dtype=torch.float64, requires_grad=True) for _ in range(3)
    ], visible


def test_attention_that_hardly_drops_anything_is_torchs_without_dropout():
    inputs, visible = attention_inputs()
    ours = attend(
        *inputs, visible=visible, dropout=1e-6
    )  # the least rate that is not zero; it rounds to none
    theirs = F.scaled_dot_product_attention(*inputs, attn_mask=visible)
    assert torch.allclose(ours, theirs, atol=1e-14)
    for our, their in zip(
        *(torch.autograd.grad(out.square().sum(), inputs) for out in (ours, theirs)), strict=True
    ):
        assert torch.allclose(our, their, atol=1e-13)


def test_the_gradient_of_attention_with_dropout_is_that_of_what_it_computed():
    inputs, visible = attention_inputs()

    def seeded(*inputs: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(1)
        return attend(*inputs, visible=visible, dropout=0.3)

    assert torch.autograd.gradcheck(seeded, inputs)


def test_attention_drops_shares_at_its_rate_and_scales_those_it_keeps():
    torch.manual_seed(0)
    query, key = (
        torch.randn(2, 3, 50, 5, dtype=torch.float64, requires_grad=True) for _ in range(2)
    )
    unit = torch.eye(50, dtype=torch.float64).expand(
        2, 3, 50, 50
    )  # as values, it shows the shares themselves
    visible = torch.ones(2, 1, 1, 50, dtype=torch.bool)
    ratio = attend(query, key, unit, visible=visible, dropout=0.3) / F.scaled_dot_product_attention(
        query, key, unit
    )
    scaled_keep_mask = ratio != 0
    assert (~scaled_keep_mask).double().mean().item() == pytest.approx(0.3, abs=0.01)
    assert torch.allclose(
        ratio[scaled_keep_mask], torch.tensor(1 / 0.7, dtype=torch.float64), rtol=1e-4
    )
