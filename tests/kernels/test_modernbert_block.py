"""The kernels of a ModernBERT block, against the same block in plain float64 with the same
dropout.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from electra.kernels.dropout import draw_keys
from electra.kernels.modernbert_block import (
    SITES,
    ModernBertSettings,
    ModernBertWeights,
    modernbert_block,
)
from electra.kernels.rotary import RotaryPositions
from electra.model.modernbert_encoder import NORM_EPSILON, rotary_angles
from tests.kernels.test_block import (
    DEVICE,
    NO_COPIES,
    TOLERANCES,
    drop_out,
    padded_rows,
    relative_error,
)


class Size(NamedTuple):
    rows: int
    length: int
    width: int
    heads: int
    rate: float
    window: int | None = None


SIZES = {
    "padded rows": Size(2, 20, 32, 2, 0.1),
    "heads that are no power of two": Size(1, 12, 24, 2, 0.0),
    "heads wider than 64": Size(1, 12, 80, 1, 0.1),
    "several blocks of keys": Size(1, 140, 16, 1, 0.2),
    "a window in one block of keys": Size(1, 40, 16, 1, 0.0, 5),
    "a window over several blocks of keys": Size(1, 140, 16, 1, 0.1, 20),
    "a window wider than the rows": Size(1, 12, 16, 1, 0.0, 64),
}
if DEVICE.type == "cuda":  # an interpreter would take minutes
    SIZES |= {
        "small": Size(256, 128, 256, 4, 0.0),
        "small with dropout": Size(128, 128, 256, 4, 0.1),
        "narrow": Size(128, 128, 64, 1, 0.0),
        "base": Size(4, 512, 768, 12, 0.0),
        "base with windows": Size(4, 512, 768, 12, 0.0, 64),
        "wide heads": Size(16, 128, 256, 2, 0.0),
    }


def rotary_positions(size: Size) -> RotaryPositions:
    head_width = size.width // size.heads
    angles = rotary_angles(size.length, head_width, 10_000.0, DEVICE)
    cosine, sine = (half[:, : head_width // 2].contiguous() for half in angles)
    return RotaryPositions(cosine, sine, size.window)


def turn(vectors: Tensor, positions: RotaryPositions) -> Tensor:
    cosine, sine = positions.cosine.double(), positions.sine.double()
    first, second = vectors.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


def normalise(values: Tensor, weight: Tensor) -> Tensor:
    return F.layer_norm(values, values.shape[-1:], weight, eps=NORM_EPSILON)


def plain(
    stream: Tensor,
    normed: Tensor,
    lengths: Tensor,
    settings: ModernBertSettings,
    w: ModernBertWeights,
) -> tuple[Tensor, Tensor]:
    at_probs, at_attention, at_geglu = settings.dropout_sites
    projected = F.linear(normed, w.qkv).unflatten(-1, (3, settings.heads, -1))
    query, key, value = projected.permute(2, 0, 3, 1, 4)
    query, key = turn(query, settings.positions), turn(key, settings.positions)
    scores = query @ key.mT / query.shape[-1] ** 0.5
    index = torch.arange(stream.shape[1], device=stream.device)
    visible = (index < lengths[:, None])[:, None, None, :]
    if settings.positions.window is not None:
        visible = visible & ((index[:, None] - index).abs() <= settings.positions.window)
    # Padding may see no token; nobody reads what becomes of it.
    probs = scores.masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num()
    probs = drop_out(probs.transpose(0, 1), at_probs).transpose(0, 1)  # dropout counts heads first
    attention = F.linear((probs @ value).transpose(1, 2).flatten(2), w.output)
    middle = stream + drop_out(attention, at_attention)
    activated, gate = F.linear(normalise(middle, w.feedforward_norm), w.expand).chunk(2, dim=-1)
    product = drop_out(F.gelu(activated) * gate, at_geglu)
    output = middle + F.linear(product, w.contract)
    return output, normalise(output, w.next_norm)


def weights(width: int, feedforward: int) -> ModernBertWeights:
    shapes = [
        (3 * width, width),
        (width, width),
        (width,),
        (2 * feedforward, width),
        (width, feedforward),
        (width,),
    ]
    drawn = [torch.randn(shape, device=DEVICE) * width**-0.5 for shape in shapes]
    w = ModernBertWeights(*drawn)
    return w._replace(feedforward_norm=1 + w.feedforward_norm, next_norm=1 + w.next_norm)


# What a query beyond the end of its row becomes is not a number, and not stored.
@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_a_block_and_all_its_gradients_are_those_of_plain_float64(
    size: Size, dtype: torch.dtype
) -> None:
    assert_block_is_plain(size, dtype, is_first=False)


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_the_first_block_reads_the_stream_itself(rate: float) -> None:
    assert_block_is_plain(Size(1, 9, 16, 1, rate), torch.float32, is_first=True)


def assert_block_is_plain(size: Size, dtype: torch.dtype, *, is_first: bool) -> None:
    # Where it is quick, other values every time.
    seed = torch.seed() if DEVICE.type == "cuda" else size.length
    torch.manual_seed(seed)
    lengths = torch.randint(3, size.length + 1, (size.rows,), dtype=torch.int32, device=DEVICE)
    keys, positions = draw_keys(2 * SITES, DEVICE), rotary_positions(size)
    settings = ModernBertSettings(size.heads, size.rate, size.rate, keys, SITES, positions)
    shape = (4, size.rows, size.length, size.width)
    stream, normed, d_stream, d_normed = torch.randn(*shape, device=DEVICE).to(dtype)
    attention_mask = torch.arange(size.length, device=DEVICE) < lengths[:, None]
    gradients = [each * attention_mask[..., None] for each in (d_stream, d_normed)]
    feedforward = 3 * size.width // 2
    drawn = [weight.to(dtype).float() for weight in weights(size.width, feedforward)]
    inputs = [stream, normed, *drawn]
    ours = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    reference = [tensor.detach().double().clone().requires_grad_() for tensor in inputs]
    outputs = modernbert_block(
        ours[0].flatten(0, 1),
        None if is_first else ours[1].flatten(0, 1),
        padded_rows(lengths, size.length),
        settings,
        ModernBertWeights(*ours[2:]),
        NO_COPIES,
    )
    expected = plain(
        reference[0],
        reference[0] if is_first else reference[1],
        lengths,
        settings,
        ModernBertWeights(*reference[2:]),
    )
    torch.autograd.backward(outputs, [gradient.flatten(0, 1) for gradient in gradients])
    torch.autograd.backward(expected, [gradient.double() for gradient in gradients])
    errors = {}
    for name, output, wanted in zip(("stream", "normed"), outputs, expected, strict=True):
        output = output.view_as(stream)
        errors[name] = relative_error(output[attention_mask], wanted[attention_mask])
    names = ("d stream", "d normed", *ModernBertWeights._fields)
    for name, our_leaf, expected_leaf in zip(names, ours, reference, strict=True):
        if name == "d normed" and is_first:
            continue
        assert our_leaf.grad is not None
        assert expected_leaf.grad is not None
        errors[name] = relative_error(our_leaf.grad, expected_leaf.grad)
    too_large = {name: error for name, error in errors.items() if not error < TOLERANCES[dtype]}
    assert too_large == {}, f"seed {seed}"
