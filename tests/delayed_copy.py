"""`python -m tests.delayed_copy ...` is `electra ...` with checkpoint copies that begin late.

$DELAYED_COPY says which of them: `first`, `every`, or `none`; with `none` training waits for each.
"""

from __future__ import annotations

import os
import sys

import torch

from electra.__main__ import main
from electra.engine.training_state import PinnedStaging

WHICH = os.environ["DELAYED_COPY"]
CYCLES = 600_000_000  # a third of a second: many steps of a toy run
copies = 0


def fill(staging: PinnedStaging, fill=PinnedStaging.fill) -> None:
    """Fill the staging memory on the stream that copies, which is the current one."""
    global copies
    copies += 1
    if WHICH == "every" or (WHICH == "first" and copies == 1):
        torch.cuda._sleep(CYCLES)
    fill(staging)
    if WHICH == "none":
        torch.cuda.synchronize()


PinnedStaging.fill = fill

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
