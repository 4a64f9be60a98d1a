"""A vote to stop is seen by all processes after the same step, without a wait in each."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from electra.engine.distributed import World
from electra.engine.flat_shard import WHOLE, FlatShard
from electra.engine.hardware import Speed
from electra.engine.optimizer import build_optimizer
from electra.engine.settings import OptimizerConfig
from electra.engine.stop_votes import StopVotes
from electra.engine.train_step import Execution, FusedTrainStep, OptimizerSetup
from tests.engine.steps import needs_triton
from tests.engine.thread_ranks import ThreadRanks

CPU = torch.device("cpu")
SETTINGS = OptimizerConfig()


class OneWeight:
    def to(self, device: torch.device) -> OneWeight:
        return self


@needs_triton
@pytest.mark.parametrize("is_sharded", [False, True])
def test_every_process_stops_two_steps_after_one_of_them_was_asked_to(
    monkeypatch: pytest.MonkeyPatch, is_sharded: bool
) -> None:
    def never(world: World, flag: bool) -> bool:
        raise AssertionError("a step of several processes must not wait for a collective")

    monkeypatch.setattr(World, "any_rank", never)

    def work(rank: int) -> list[bool]:
        module = nn.Linear(4, 4)
        shard = FlatShard(rank, 2) if is_sharded else WHOLE
        optimizer = build_optimizer(module, SETTINGS, low_precision=torch.float32, shard=shard)
        setup = OptimizerSetup(optimizer, SETTINGS, 10, torch.amp.GradScaler("cpu", enabled=False))
        steps = FusedTrainStep(
            lambda batch: {"loss": module(torch.ones(4)).sum()},
            setup,
            Execution(World(rank, 2, CPU), "fp32", Speed(True, False, False)),
        )
        stops = []
        for step in range(1, 7):
            steps.forward_backward([(step, OneWeight())])
            steps.optimizer_step(step)
            stops.append(steps.agree_to_stop(rank == 1 and step == 2))
        return stops

    first, second = ThreadRanks(2).run(work, monkeypatch)
    assert first == second
    assert first[:4] == [False, False, False, True]


def test_a_sum_of_votes_is_read_after_the_next_one_was_recorded() -> None:
    votes, read = StopVotes(CPU), []
    for total in (0.0, 2.0, 0.0, 1.0, 0.0):
        votes.record(torch.tensor(total))
        read.append(votes.read())
    assert read == [False, False, True, False, True]
