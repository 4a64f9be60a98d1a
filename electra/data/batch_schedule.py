"""How many rows each step reads: always as many, or more and more during a ramp. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from electra.config import UserError


@dataclass(frozen=True)
class BatchSchedule:
    """The batch size of each step, a function of the step alone.

    During the first `ramp_steps` it rises from `initial_size` to `size` in equal stages, which are
    multiples of `initial_size`: from 32 to 128 it takes the sizes 32, 64, 96 and then 128.
    """

    size: int
    initial_size: int
    ramp_steps: int = 0

    @property
    def stages(self) -> int:
        """The number of batch sizes that occur."""
        return self.size // self.initial_size

    def micro_batch_sizes(self, processes: int, *, fewest: int = 1) -> list[int]:
        """Return the sizes of micro-batches that make up every batch and give each process one, the
        largest first. A micro-batch has the fewest rows or more; raise UserError where none can.
        """
        rows = self.initial_size
        sizes = [size for size in range(rows // processes, fewest - 1, -1) if rows % size == 0]
        if not sizes:
            raise UserError(
                f"a batch of {rows} rows cannot be divided into equal micro-batches of {fewest} or "
                f"more that give each of {processes} processes one; choose another --batch-size "
                "or fewer processes"
            )
        return sizes

    def first_step(self, stage: int) -> int:
        """Return the first step of a stage; stages count from 0, steps from 1."""
        if stage == 0:
            return 1
        return -(-stage * self.ramp_steps // (self.stages - 1)) + 1

    def size_at(self, step: int) -> int:
        """Return the rows of a step."""
        if step > self.ramp_steps:
            return self.size
        return self.initial_size * (1 + (step - 1) * (self.stages - 1) // self.ramp_steps)

    def rows_after(self, step: int) -> int:
        """Return the rows of the first `step` steps together."""
        rows = self.size * step
        for stage in range(1, self.stages):
            # Before a stage began, each step was smaller by what the stage added.
            rows -= self.initial_size * min(step, self.first_step(stage) - 1)
        return rows
