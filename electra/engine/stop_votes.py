"""Whether any process asks the run to stop, read from the device one step late."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor


class StopVotes:
    """Reads the votes of all processes without a wait for the step that is being computed.

    A vote is summed over the processes together with the gradient. Its sum is read after the next
    step was launched, when the device has that step to work on. Every process reads the sum of
    the same step, so all of them stop after the same one.
    """

    def __init__(self, device: torch.device) -> None:
        self.is_cuda = device.type == "cuda"
        # Two, since the sum of one step is copied before that of the step before is read.
        self.slots = torch.zeros(2, pin_memory=self.is_cuda)
        self.recorded = 0
        self.unread: deque[tuple[int, torch.cuda.Event | None]] = deque()

    def record(self, votes: Tensor) -> None:
        """Begin to copy the sum of a step's votes to the host."""
        slot = self.recorded % len(self.slots)
        self.recorded += 1
        self.slots[slot].copy_(votes, non_blocking=True)
        event = None
        if self.is_cuda:
            event = torch.cuda.current_stream().record_event()
        self.unread.append((slot, event))

    def read(self) -> bool:
        """Return whether a process voted to stop in the step before the last recorded one."""
        if len(self.unread) < len(self.slots):
            return False
        slot, event = self.unread.popleft()
        if event is not None:
            event.synchronize()
        return bool(self.slots[slot] > 0)
