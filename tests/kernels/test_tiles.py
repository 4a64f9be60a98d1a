from __future__ import annotations

import pytest

from electra.kernels.tiles import ANY, TILES, tile_options


def test_every_table_of_tiles_ends_with_a_row_for_all_sizes() -> None:
    assert all(rows[-1][:2] == (ANY, ANY) for rows in TILES.values())


def test_the_first_row_that_holds_for_size_and_count_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [(64, 8, {"ROWS": 1}), (64, ANY, {"ROWS": 2}), (ANY, ANY, {"ROWS": 3})]
    monkeypatch.setitem(TILES, "some_kernel", rows)
    choices = [
        tile_options("some_kernel", size=size, count=count)["ROWS"]
        for size, count in ((64, 8), (64, 9), (65, 8))
    ]
    assert choices == [1, 2, 3]
