"""Hidden states of chosen positions, and the sums of their gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from electra.kernels import fuse
from electra.kernels.gather import gather
from electra.model.electra_encoder import ElectraEncoder
from electra.model.networks import Generator
from electra.model.shape import EncoderShape
from tests.kernels.test_packing import DEVICE, batch_of

LENGTHS, LENGTH = [80, 40, 9], 80
# A row that draws one position three times, one with its ends, and one that also draws padding.
ROWS = ([3, 79, 3, 64, 3], [0, 39, 5, 5, 38], [8, 0, 10, 79, 8])


def chosen_positions(draws: int) -> Tensor:
    positions = torch.tensor(ROWS, device=DEVICE)
    return positions.repeat(1, draws // positions.shape[1] + 1)[:, :draws]


def plain(tokens: Tensor, positions: Tensor) -> Tensor:
    index = positions.unsqueeze(-1).expand(-1, -1, tokens.shape[1])
    return tokens.view(len(LENGTHS), LENGTH, -1).gather(1, index)


@pytest.mark.parametrize("width", [24, 80])
@pytest.mark.parametrize("draws", [5, 40])  # within one block of choices, and more
def test_chosen_states_and_their_gradients_are_those_of_torch(width: int, draws: int) -> None:
    torch.manual_seed(0)
    tokens = torch.randn(3 * LENGTH, width, device=DEVICE, requires_grad=True)
    positions = chosen_positions(draws)
    ours, theirs = gather(tokens, positions, length=LENGTH), plain(tokens, positions)
    assert ours.equal(theirs)
    gradient = torch.randn_like(ours)
    torch.testing.assert_close(
        torch.autograd.grad(ours, tokens, gradient), torch.autograd.grad(theirs, tokens, gradient)
    )


def test_packed_rows_give_the_same_states_and_gradients_and_zeros_for_padding() -> None:
    torch.manual_seed(0)
    batch, positions = batch_of(LENGTHS, LENGTH), chosen_positions(5)
    assert batch.packing is not None
    kept = batch.packing.token_indices
    assert len(kept) == 160  # 129 real tokens, and padding up to whole portions of 80
    hidden = torch.randn(3 * LENGTH, 24, device=DEVICE, dtype=torch.float16)
    padded, packed = hidden.clone().requires_grad_(), hidden[kept].requires_grad_()
    theirs = gather(padded, positions, length=LENGTH)
    ours = gather(packed, positions, length=LENGTH, packing=batch.packing)
    is_real = positions < batch.lengths[:, None]
    assert is_real.logical_not().sum() == 2
    assert ours[is_real].equal(theirs[is_real])
    assert not ours[~is_real].any()
    gradient = torch.randn_like(ours) * is_real[..., None]
    d_padded = torch.autograd.grad(theirs, padded, gradient)[0]
    d_packed = torch.autograd.grad(ours, packed, gradient)[0]
    assert d_packed.equal(d_padded[kept])


def test_a_fused_generator_gathers_the_same_from_its_encoder_or_from_unpacked_states() -> None:
    torch.manual_seed(0)
    shape = EncoderShape(layers=1, width=16, heads=1, feedforward=32, embedding=16, positions=16)
    generator = Generator(ElectraEncoder(shape, vocabulary=40)).to(DEVICE)
    fuse(generator.eval())
    batch = batch_of([8, 3, 15], 16)
    inputs = (batch.input_ids, batch.token_type_ids, batch.attention_mask)
    positions = torch.tensor([[1, 7, 1], [2, 0, 0], [14, 3, 3]], device=DEVICE)
    with torch.no_grad(), torch.autocast(DEVICE.type, dtype=torch.float16):
        hidden = generator.encoder(*inputs, batch.packing)
        ours = generator.hidden_at(*inputs, positions, batch.packing)
    assert ours.dtype == torch.float16
    assert ours.equal(generator.gather(hidden, positions))
    assert ours[1, 0].equal(hidden[1, 2])
