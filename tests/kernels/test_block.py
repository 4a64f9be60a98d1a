"""The kernels of a block, against the same block in plain float64 with the same dropout."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from electra.kernels.block import SITES, BlockSettings, BlockWeights, block
from electra.kernels.dropout import DropoutSite, draw_keys, keep_mask_reference
from electra.kernels.low_precision import LowPrecisionCopies
from electra.kernels.packing import PackedRows

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NO_COPIES = LowPrecisionCopies()
# Triton's interpreter multiplies bf16 as if it were whole numbers, so what a GPU does in bf16 is
# shown there alone.
TOLERANCES = {torch.float32: 1e-5, torch.float16: 3e-3} | (
    {torch.bfloat16: 2e-2} if DEVICE.type == "cuda" else {}
)


def drop_out(values: Tensor, site: DropoutSite) -> Tensor:
    """Rows are whatever stands before the last axis."""
    mask = keep_mask_reference(values[..., 0].numel(), values.shape[-1], site)
    return values * mask.view(values.shape) / (1 - site.rate)


def padded_rows(lengths: Tensor, length: int) -> PackedRows:
    return PackedRows.from_mask(torch.arange(length, device=DEVICE) < lengths[:, None])


def plain(hidden: Tensor, lengths: Tensor, settings: BlockSettings, w: BlockWeights) -> Tensor:
    at_scores, at_attention, at_feedforward = settings.dropout_sites
    query, key, value = (
        F.linear(hidden, w.qkv, w.qkv_bias)
        .unflatten(-1, (3, settings.heads, -1))
        .permute(2, 0, 3, 1, 4)
    )
    scores = query @ key.mT / query.shape[-1] ** 0.5
    attention_mask = torch.arange(hidden.shape[1], device=hidden.device) < lengths[:, None]
    probs = scores.masked_fill(~attention_mask[:, None, None, :], -torch.inf).softmax(-1)
    probs = drop_out(probs.transpose(0, 1), at_scores).transpose(0, 1)  # dropout counts heads first
    attention = F.linear((probs @ value).transpose(1, 2).flatten(2), w.output, w.output_bias)
    width = hidden.shape[-1:]
    middle = F.layer_norm(
        hidden + drop_out(attention, at_attention),
        width,
        w.attention_norm,
        w.attention_norm_bias,
        1e-12,
    )
    feedforward = F.linear(
        F.gelu(F.linear(middle, w.expand, w.expand_bias)), w.contract, w.contract_bias
    )
    return F.layer_norm(
        middle + drop_out(feedforward, at_feedforward),
        width,
        w.feedforward_norm,
        w.feedforward_norm_bias,
        1e-12,
    )


def weights(width: int, feedforward: int) -> BlockWeights:
    shapes = [
        (3 * width, width),
        (3 * width,),
        (width, width),
        (width,),
        (width,),
        (width,),
        (feedforward, width),
        (feedforward,),
        (width, feedforward),
        (width,),
        (width,),
        (width,),
    ]
    drawn = BlockWeights(*(torch.randn(shape, device=DEVICE) * width**-0.5 for shape in shapes))
    return drawn._replace(
        attention_norm=1 + drawn.attention_norm, feedforward_norm=1 + drawn.feedforward_norm
    )


def relative_error(output: Tensor, expected: Tensor) -> float:
    return float((output.detach().double() - expected.detach()).norm() / expected.detach().norm())


SIZES = {
    "padded rows": (2, 24, 32, 2, 0.1),
    "heads that are no power of two": (3, 20, 48, 3, 0.0),
    "several blocks of keys": (3, 150, 32, 2, 0.2),
    "half dropped": (1, 128, 16, 1, 0.5),
    "weights by cuBLAS": (1, 9, 72, 3, 0.1),
}
if DEVICE.type == "cuda":  # an interpreter would take minutes
    SIZES |= {
        "small": (128, 128, 256, 4, 0.1),
        "small's generator": (128, 128, 64, 1, 0.1),
        "base": (4, 512, 768, 12, 0.1),
        "more heads than an axis of a grid holds": (9000, 8, 128, 8, 0.1),
    }


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize(("rows", "length", "width", "heads", "rate"), SIZES.values(), ids=SIZES)
def test_a_block_and_all_its_gradients_are_those_of_plain_float64(
    rows: int, length: int, width: int, heads: int, rate: float, dtype: torch.dtype
) -> None:
    seed = (
        torch.seed() if DEVICE.type == "cuda" else length
    )  # where it is quick, other values every time
    torch.manual_seed(seed)
    lengths = torch.randint(3, length + 1, (rows,), dtype=torch.int32, device=DEVICE)
    settings = BlockSettings(heads, rate, rate, draw_keys(2 * SITES, DEVICE), SITES)
    hidden, gradient = torch.randn(2, rows, length, width, device=DEVICE).to(dtype)
    attention_mask = torch.arange(length, device=DEVICE) < lengths[:, None]
    gradient *= attention_mask[..., None]  # nobody reads padding
    inputs = [hidden.clone(), *(tensor.to(dtype).float() for tensor in weights(width, 2 * width))]
    ours = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    reference = [tensor.detach().double().clone().requires_grad_() for tensor in inputs]
    output = block(
        ours[0].flatten(0, 1),
        padded_rows(lengths, length),
        settings,
        BlockWeights(*ours[1:]),
        NO_COPIES,
    ).view_as(ours[0])
    expected = plain(reference[0], lengths, settings, BlockWeights(*reference[1:]))
    output.backward(gradient)
    expected.backward(gradient.double())
    errors = {"out": relative_error(output[attention_mask], expected[attention_mask])}
    for name, our_leaf, expected_leaf in zip(
        ("hidden", *BlockWeights._fields), ours, reference, strict=True
    ):
        assert our_leaf.grad is not None
        assert expected_leaf.grad is not None
        errors[name] = relative_error(our_leaf.grad, expected_leaf.grad)
    too_large = {name: size for name, size in errors.items() if not size < TOLERANCES[dtype]}
    assert too_large == {}, f"seed {seed}"


def test_what_a_token_becomes_does_not_depend_on_padding() -> None:
    torch.manual_seed(0)
    settings, w = BlockSettings(2, 0.0, 0.0, draw_keys(SITES, DEVICE), 0), weights(32, 64)
    hidden, length = torch.randn(40, 32, device=DEVICE), torch.tensor([24], device=DEVICE)
    output = block(hidden, padded_rows(length, 40), settings, w, NO_COPIES)
    assert torch.allclose(
        output[:24], block(hidden[:24], padded_rows(length, 24), settings, w, NO_COPIES), atol=1e-5
    )
