from __future__ import annotations

import torch

from electra.kernels.column_sums import reduce_partials

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def test_pieces_of_any_size_are_summed_over_their_programs() -> None:
    torch.manual_seed(0)
    pieces = [
        torch.randn(shape, device=DEVICE)
        for shape in ((264, 3, 50), (7, 130), (1, 3, 16), (300, 9))
    ]
    for count in range(1, 5):
        found = reduce_partials(*pieces[:count])
        assert [tuple(each.shape) for each in found] == [
            tuple(each.shape[1:]) for each in pieces[:count]
        ]
        for each, piece in zip(found, pieces[:count], strict=True):
            assert torch.allclose(each, piece.sum(0), atol=1e-4)
