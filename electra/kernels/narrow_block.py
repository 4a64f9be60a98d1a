"""A narrow transformer block: one kernel forward and two backward, matrix products included.

Between two matrix products of a block 64 wide a kernel starts and ends for longer than it works. A
row of 128 such tokens fits on the chip with everything that becomes of it. So the steps of `block`,
with the same dropout, follow each other inside a program.
"""

from __future__ import annotations

from torch import Tensor

from electra.kernels.block import BlockPasses, BlockSettings, BlockWeights
from electra.kernels.narrow_block_backward import narrow_backward
from electra.kernels.narrow_block_forward import narrow_forward, strip_of
from electra.kernels.packing import PackedRows

WIDTHS = (16, 32, 64)  # of hidden states, in one head
MAX_LENGTH = 128  # tokens of a row whose keys and values a program holds
NARROW_PASSES = BlockPasses(narrow_forward, narrow_backward)


def is_narrow(
    hidden: Tensor, rows: PackedRows, settings: BlockSettings, weights: BlockWeights
) -> bool:
    """Return whether `NARROW_PASSES` take blocks of these shapes.

    In float32 neither registers nor shared memory would hold what a program takes.
    """
    feedforward, width = weights.expand.shape
    has_width = settings.heads == 1 and width in WIDTHS and feedforward % strip_of(feedforward) == 0
    return has_width and rows.max_seqlen <= MAX_LENGTH and hidden.itemsize == 2
