"""The backward pass of dropout, residual and LayerNorm, with its sums over rows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from electra.kernels.column_sums import reduce_partials
from electra.kernels.dropout import DropoutSite, draw_keys, keep_mask_reference
from electra.kernels.norm import add_norm_gradients, add_pre_norm, add_pre_norm_gradients
from electra.kernels.tiles import TILES
from electra.model.electra_encoder import NORM_EPSILON

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ROWS = 70
# Tiles of many rows of which few are summed at once, of as many as are, and of a single row that
# is more than a program's warps load at once.
WIDTHS = [48, 256, 312, 1024, 1100]


@pytest.fixture(autouse=True)
def three_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let three programs share all rows, so that each takes several blocks of them."""
    rows = [(*sizes, {**options, "PROGRAMS": 3}) for *sizes, options in TILES["add_norm_backward"]]
    monkeypatch.setitem(TILES, "add_norm_backward", rows)


def site_and_mask(width: int, rate: float) -> tuple[DropoutSite, Tensor]:
    """Return a place with dropout, and what it multiplies each value by."""
    site = DropoutSite(rate, draw_keys(1, DEVICE), 0)
    if rate == 0:
        return site, torch.ones(ROWS, width, device=DEVICE)
    return site, keep_mask_reference(ROWS, width, site) / (1 - rate)


def inputs(width: int) -> list[Tensor]:
    """Return branch, residual and the gradients of both results; weight and bias."""
    torch.manual_seed(0)
    shapes = [(ROWS, width)] * 4 + [(width,)] * 2
    return [torch.randn(shape, device=DEVICE) for shape in shapes]


def assert_close(ours: list[Tensor], plain: list[Tensor]) -> None:
    for mine, expected in zip(ours, plain, strict=True):
        assert (mine - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_gradients_of_a_norm_after_the_residual_are_those_of_torch(width, rate):
    branch, residual, gradient, _, weight, bias = inputs(width)
    site, scaled_mask = site_and_mask(width, rate)
    variables = [each.requires_grad_() for each in (branch, residual, weight, bias)]
    summed = residual + branch * scaled_mask
    out = F.layer_norm(summed, (width,), weight, bias, NORM_EPSILON)
    d_branch, *plain = torch.autograd.grad(out, variables, gradient)
    detached = [each.detach() for each in (branch, residual, weight)]
    *ours, partials = add_norm_gradients(gradient, *detached, site)
    (sums,) = reduce_partials(partials)
    assert_close([*ours, *sums], [d_branch, *plain, d_branch.sum(dim=0)])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rate", [0.0, 0.4])
@pytest.mark.parametrize("is_read_elsewhere", [True, False])
def test_gradients_of_a_norm_before_the_branch_are_those_of_torch(width, rate, is_read_elsewhere):
    branch, residual, gradient, d_summed, weight, _ = inputs(width)
    site, scaled_mask = site_and_mask(width, rate)
    ours_summed, _ = add_pre_norm(branch, residual, weight, site, NORM_EPSILON)
    variables = [each.requires_grad_() for each in (branch, residual, weight)]
    summed = residual + branch * scaled_mask
    out = F.layer_norm(summed, (width,), weight, None, NORM_EPSILON)
    gradients = (gradient, d_summed * is_read_elsewhere)
    plain = torch.autograd.grad((out, summed), variables, gradients)
    gradients = (gradient, d_summed if is_read_elsewhere else None)
    *ours, partials = add_pre_norm_gradients(
        gradients, ours_summed, weight.detach(), site, NORM_EPSILON
    )
    (sums,) = reduce_partials(partials)
    assert_close([*ours, *sums], list(plain))
