from __future__ import annotations

import torch

from electra.kernels.column_sums import reduce_partials

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def test_pieces_of_any_size_are_summed_over_their_programs() -> None:
    torch.manual_seed(0)
    partials = [
        torch.randn(shape, device=DEVICE)
        for shape in ((264, 3, 50), (7, 130), (1, 3, 16), (300, 9))
    ]
    for count in range(1, 5):
        sums = reduce_partials(*partials[:count])
        assert [tuple(total.shape) for total in sums] == [
            tuple(total.shape[1:]) for total in partials[:count]
        ]
        for total, partial in zip(sums, partials[:count], strict=True):
            assert torch.allclose(total, partial.sum(0), atol=1e-4)
