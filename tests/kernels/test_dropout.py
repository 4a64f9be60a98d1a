from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from electra.kernels.dropout import (
    DropoutSite,
    draw_keys,
    drop_threshold,
    keep_mask,
    keep_mask_reference,
    random_words,
)

CPU = torch.device("cpu")
DEVICE = torch.device("cuda") if torch.cuda.is_available() else CPU


@triton.jit
def write_keep_mask(out, keys, key_row, threshold, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    row_words = random_words(row, keys, key_row, False)[:, None]
    column_words = random_words(column, keys, key_row, True)[None, :]
    mask = keep_mask(row_words, column_words, threshold)
    tl.store(out + row[:, None] * COLUMNS + column[None, :], mask.to(tl.int32))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_a_kernel_keeps_what_the_reference_keeps(rate: float) -> None:
    keys, out = draw_keys(3, DEVICE), torch.full((256, 64), -1, dtype=torch.int32, device=DEVICE)
    write_keep_mask[(1,)](out, keys, 2, drop_threshold(rate), ROWS=256, COLUMNS=64)
    assert torch.equal(out.bool(), keep_mask_reference(256, 64, DropoutSite(rate, keys, 2)))


def test_rates_and_correlations_are_those_of_independent_draws() -> None:
    torch.manual_seed(0)
    sites = [DropoutSite(0.1, draw_keys(1, CPU), 0) for _ in range(4)]
    masks = torch.stack([keep_mask_reference(4096, 128, site) for site in sites]).double()
    assert masks.mean() == pytest.approx(0.9, abs=4 * (0.09 / masks.numel()) ** 0.5)
    for columns in masks:
        standard = (columns - columns.mean(0)) / columns.std(0)
        between = standard.T @ standard / len(standard) - torch.eye(128)
        assert between.std() == pytest.approx(4096**-0.5, rel=0.05), (
            "as random columns of 4,096 values"
        )
        assert between.abs().max() < 6 * 4096**-0.5
        assert columns.mean(1).std() == pytest.approx((0.09 / 128) ** 0.5, rel=0.05), (
            "rows vary as coins do"
        )


def test_another_site_and_another_seed_keep_other_values() -> None:
    keys = draw_keys(2, CPU)
    first, second = (
        keep_mask_reference(512, 128, DropoutSite(0.5, keys, key_row)) for key_row in (0, 1)
    )
    assert 0.49 < (first == second).float().mean() < 0.51
    torch.manual_seed(7)
    again = draw_keys(2, CPU)
    torch.manual_seed(7)
    assert torch.equal(again, draw_keys(2, CPU))
