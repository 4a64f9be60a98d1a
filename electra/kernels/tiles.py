"""Tile sizes, warps and numbers of programs, by kernel: what was fastest on an H200.

A row of a table holds for sizes and counts up to its own, and the first that holds is taken. A
choice depends on shapes alone, so that the same step always adds in the same order.
"""

from __future__ import annotations

import sys

ANY = sys.maxsize

Options = dict[str, int]
Row = tuple[int, int, Options]  # the largest size, the largest count, and what holds up to them

TILES: dict[str, list[Row]] = {
    # size: the width of a vector; count: vectors
    # TILE: values that a program holds at once; PROGRAMS: that share all vectors, each with sums
    # of its own
    "add_norm_forward": [(ANY, ANY, {"TILE": 4096, "num_warps": 4})],
    "add_norm_backward": [
        (256, ANY, {"TILE": 2048, "PROGRAMS": 512, "num_warps": 2}),
        (ANY, ANY, {"TILE": 1024, "PROGRAMS": 512, "num_warps": 4}),
    ],
    "gelu_forward": [(ANY, ANY, {"BLOCK": 2048, "num_warps": 4})],
    "gelu_backward": [(ANY, ANY, {"ROWS": 16, "COLUMNS": 128, "PROGRAMS": 1056, "num_warps": 4})],
    "geglu_forward": [(ANY, ANY, {"ROWS": 4, "COLUMNS": 256, "num_warps": 4})],
    "geglu_backward": [(ANY, ANY, {"ROWS": 4, "COLUMNS": 256, "num_warps": 4})],
    # size: tokens of a row; count: rows times heads. Blocks end with the row.
    "attention_forward": [(ANY, ANY, {"QUERIES": 64, "KEYS": 64, "num_warps": 4, "num_stages": 3})],
    "rotary_attention_forward": [
        (ANY, ANY, {"QUERIES": 128, "KEYS": 32, "num_warps": 8, "num_stages": 3})
    ],
    # In rows of 128 several programs share a multiprocessor, unless there are too few of them, and
    # then each takes all of one; longer rows like smaller blocks.
    "attention_backward": [
        (64, ANY, {"QUERIES": 32, "KEYS": 64, "num_warps": 4, "num_stages": 2}),
        (128, 264, {"QUERIES": 64, "KEYS": 128, "num_warps": 8, "num_stages": 1}),
        (128, ANY, {"QUERIES": 16, "KEYS": 128, "num_warps": 4, "num_stages": 3}),
        (ANY, ANY, {"QUERIES": 32, "KEYS": 64, "num_warps": 4, "num_stages": 3}),
    ],
    # With 64 keys dQ moves through L2 twice as often.
    "one_pass_attention_backward": [
        (ANY, ANY, {"QUERIES": 64, "KEYS": 128, "STAGES": 3, "num_warps": 8})
    ],
    # Heads wider than 64, with or without rotary positions, not yet measured: what leaves room in
    # the registers (at most 24 bytes a thread spill, where the tiles above spill 744 to 2,256).
    "wide_attention_forward": [
        (ANY, ANY, {"QUERIES": 64, "KEYS": 64, "num_warps": 4, "num_stages": 2})
    ],
    "wide_attention_backward": [
        (128, ANY, {"QUERIES": 32, "KEYS": 128, "num_warps": 8, "num_stages": 1}),
        (ANY, ANY, {"QUERIES": 32, "KEYS": 64, "num_warps": 8, "num_stages": 2}),
    ],
    # Blocks of a narrow generator. size: tokens of a row, or the width of a vector; count: tokens.
    "narrow_block_forward": [(ANY, ANY, {"QUERIES": 64, "num_warps": 4, "num_stages": 3})],
    "narrow_branches_backward": [(ANY, ANY, {"TOKENS": 64, "num_warps": 4, "num_stages": 3})],
    "narrow_attention_backward": [
        (ANY, ANY, {"OWN": 64, "OTHERS": 64, "num_warps": 4, "num_stages": 1})
    ],
    # size: the width of a vector; count: vectors. Narrow vectors are read whole, in programs of few
    # warps, so that one exponentiates while another multiplies. Wide ones come in parts, and larger
    # tiles read less.
    "linear_cross_entropy": [
        (128, ANY, {"VOCAB_TILE": 64, "num_warps": 4, "num_stages": 3}),
        (ANY, ANY, {"VOCAB_TILE": 128, "num_warps": 8, "num_stages": 3}),
    ],
}
TILES["rotary_attention_backward"] = TILES["attention_backward"]
TILES["rotary_one_pass_attention_backward"] = TILES["one_pass_attention_backward"]

# Attention's backward pass takes one program for each row and head from so many of them on. With
# 96, too many multiprocessors had none and it was slower (in two stages); with 128 it was faster.
ONE_PASS_ROWS_AND_HEADS = 128
ONE_PASS_SHARED_MEMORY = 160 * 1024  # bytes: A100 and later data-centre GPUs


def tile_options(kernel: str, *, size: int, count: int) -> Options:
    """Return a kernel's options for vectors or rows of `size`, of which there are `count`."""
    for largest_size, largest_count, options in TILES[kernel]:
        if size <= largest_size and count <= largest_count:
            return options
    raise AssertionError(f"no row of TILES[{kernel!r}] holds for {size}, {count}")
