"""Optimizer state in shards (ZeRO-1) makes the updates of whole state, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from electra.engine.distributed import World
from electra.engine.ema import EMA, WeightAverage
from electra.engine.flat_adamw import FlatAdamW
from electra.engine.flat_muon import FlatMuon
from electra.engine.flat_shard import WHOLE, FlatShard
from electra.engine.gradient_buckets import GradientBuckets
from electra.engine.optimizer import build_optimizer, set_learning_rate
from electra.engine.settings import OptimizerConfig
from electra.engine.training_state import (
    TrainingState,
    capture,
    contribute_shards,
    copy_to_host,
    restore,
)
from electra.model.encoder import Block
from tests.engine.steps import needs_triton
from tests.engine.thread_ranks import ThreadRanks

pytestmark = needs_triton

CONFIG = OptimizerConfig(learning_rate=1e-2, warmup_steps=2, max_grad_norm=0.5)
MUON = replace(CONFIG, name="muon")


class HiddenMatrices(Block):
    """Two matrices of one shape, and one that stacks two of another: with Muon, its part."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(40, 60, bias=False)
        self.second = nn.Linear(40, 60, bias=False)
        self.stacked = nn.Linear(30, 48, bias=False)

    def attend_and_transform(self, hidden: Tensor, *context: Tensor) -> Tensor:
        raise AssertionError("only its parameters are needed")

    def weight_matrices(self) -> dict[Tensor, int]:
        return {self.first.weight: 1, self.second.weight: 1, self.stacked.weight: 2}


class Network(nn.Module):
    """Parameters of one block of an optimizer, of several, and of parts of blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Linear(30, 50)
        self.matrix = nn.Linear(40, 60)
        self.embeddings = nn.Embedding(70, 32)
        self.hidden = HiddenMatrices()


def gradients(network: nn.Module, step: int, rank: int) -> list[Tensor]:
    rng = torch.Generator().manual_seed(100 * step + rank)
    return [torch.randn(each.shape, generator=rng) for each in network.parameters()]


class Trainer:
    """One rank with an optimizer, whose gradients are numbers drawn for its rank."""

    def __init__(
        self,
        shard: FlatShard = WHOLE,
        *,
        config: OptimizerConfig = CONFIG,
        state: TrainingState | None = None,
        updates: int = 0,
    ) -> None:
        self.network = Network()
        for number, parameter in enumerate(self.network.parameters()):
            rng = torch.Generator().manual_seed(number)
            parameter.data.copy_(torch.randn(parameter.shape, generator=rng))
        self.config = config
        optimizer = build_optimizer(self.network, config, low_precision=torch.float16, shard=shard)
        assert isinstance(optimizer, FlatAdamW)
        self.optimizer = optimizer
        self.optimizer.norm_by_block = True
        if state is not None:
            restore(state, module=self.network, optimizer=optimizer, updates=updates)
            optimizer.refresh_low_precision_weights()
        self.average = WeightAverage(optimizer, 0.5)

    def train(self, steps: range, *, ranks: list[int]) -> None:
        """Take steps with the gradients of some ranks, summed in their order."""
        for step in steps:
            self.optimizer.zero_grad()
            for rank in ranks:
                for parameter, gradient in zip(
                    self.network.parameters(), gradients(self.network, step, rank), strict=True
                ):
                    assert parameter.grad is not None
                    parameter.grad += gradient
            if self.optimizer.shard.size > 1:
                self.reduce_gradient()
            set_learning_rate(self.optimizer, self.config, step=step, max_steps=10)
            self.optimizer.step()
            self.average.update(step)

    def reduce_gradient(self) -> None:
        """Sum the gradient over the ranks in several buckets, some of which two ranks share."""
        shard = self.optimizer.shard
        world = World(shard.rank, shard.size, torch.device("cpu"))
        GradientBuckets(self.optimizer, world, bucket_bytes=20_000).reduce()

    def state(self) -> TrainingState:
        weights, optimizer_state = capture(self.network, self.optimizer)
        return copy_to_host(weights.items()), copy_to_host(optimizer_state.items())


def assert_same(ours: TrainingState, theirs: TrainingState) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.keys() == other.keys()
        for name, tensor in other.items():
            assert mine[name].equal(tensor), name


def test_norms_by_blocks_clip_as_the_norms_of_whole_parameters_do() -> None:
    by_block, whole = (Trainer(config=replace(CONFIG, clip="each")) for _ in range(2))
    whole.optimizer.norm_by_block = False
    for trainer in (by_block, whole):
        trainer.train(range(1, 3), ranks=[0])
        assert trainer.optimizer.grad_norm > 10 * CONFIG.max_grad_norm
    torch.testing.assert_close(by_block.optimizer.grad_norm, whole.optimizer.grad_norm)
    torch.testing.assert_close(by_block.optimizer.exp_avg, whole.optimizer.exp_avg)
    torch.testing.assert_close(by_block.optimizer.flat_param, whole.optimizer.flat_param)


# Of Muon's 18 blocks the last 8 are hidden matrices. Three processes have 6 each: the first has no
# matrix, the second some and a part of one. Four have 5 each, the last of them two without a value.
@pytest.mark.parametrize(
    ("config", "size", "clip"),
    [(CONFIG, 2, "together"), (CONFIG, 3, "each"), (MUON, 3, "together"), (MUON, 4, "each")],
)
def test_shards_make_the_updates_of_whole_state_and_gather_to_its_checkpoint(
    monkeypatch: pytest.MonkeyPatch, config: OptimizerConfig, size: int, clip: str
) -> None:
    config = replace(config, clip=clip)
    alone = Trainer(config=config)
    alone.train(range(1, 4), ranks=list(range(size)))

    def work(rank: int) -> tuple[Trainer, TrainingState]:
        trainer = Trainer(FlatShard(rank, size), config=config)
        trainer.train(range(1, 4), ranks=[rank])
        return trainer, trainer.state()

    for trainer, state in ThreadRanks(size).run(work, monkeypatch):
        ours, theirs = trainer.optimizer, alone.optimizer
        assert_same(state, alone.state())
        length = len(theirs.flat_param)
        assert ours.flat_low_precision[:length].equal(theirs.flat_low_precision)
        assert ours.grad_norm == pytest.approx(float(theirs.grad_norm), rel=1e-6)
        for key in ("exp_avg", EMA):
            assert len(ours.own_state[key]) == len(ours.flat_param) // size
        assert len(ours.exp_avg_sq) == ours.adamw_blocks * ours.block_size
        if isinstance(ours, FlatMuon):
            assert ours.direction[: len(theirs.direction)].equal(theirs.direction)


@pytest.mark.parametrize("config", [CONFIG, MUON], ids=["adamw", "muon"])
def test_a_checkpoint_goes_on_with_another_number_of_shards_bit_for_bit(
    monkeypatch: pytest.MonkeyPatch, config: OptimizerConfig
) -> None:
    """Gradients of ranks 0 and 1 are summed by one, by two, and by two of three processes."""
    unbroken = Trainer(config=config)
    unbroken.train(range(1, 7), ranks=[0, 1])
    state, begin = None, 1
    for size in (2, 1, 3):

        def work(
            rank: int, size: int = size, state: TrainingState | None = state, begin: int = begin
        ) -> TrainingState:
            shard = FlatShard(rank, size)
            trainer = Trainer(shard, config=config, state=state, updates=begin - 1)
            mine = {1: [0, 1], 2: [rank]}.get(size, [rank] * (rank < 2))
            trainer.train(range(begin, begin + 2), ranks=mine)
            if rank:
                contribute_shards(trainer.network, trainer.optimizer)
                return {}, {}
            return trainer.state()

        state = ThreadRanks(size).run(work, monkeypatch)[0]
        begin += 2
    assert state is not None
    assert_same(state, unbroken.state())


def test_weights_that_only_kernels_read_are_sent_in_low_precision_and_gathered_when_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = Trainer()
    alone.train(range(1, 3), ranks=[0, 1])

    def work(rank: int) -> None:
        trainer = Trainer(FlatShard(rank, 2))
        network, optimizer = trainer.network, trainer.optimizer
        matrices = {network.matrix.weight, network.generator.weight}
        optimizer.read_only_in_low_precision(matrices)
        trainer.train(range(1, 3), ranks=[rank])
        pairs = dict(zip(network.parameters(), alone.network.parameters(), strict=True))
        for ours, theirs in pairs.items():
            low = alone.optimizer.low_precision_weights[theirs]
            assert optimizer.low_precision_weights[ours].equal(low)
            assert ours in matrices or ours.equal(theirs)
        is_current = [matrix.equal(pairs[matrix]) for matrix in matrices]
        assert is_current == [rank == 0] * 2, "both lie in the part of rank 0"
        optimizer.gather_weights()
        assert all(matrix.equal(pairs[matrix]) for matrix in matrices)

    ThreadRanks(2).run(work, monkeypatch)


def test_the_average_stands_in_for_the_weights_of_every_shard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = Trainer()
    alone.train(range(1, 4), ranks=[0, 1])

    def work(rank: int) -> tuple[list[Tensor], list[Tensor]]:
        trainer = Trainer(FlatShard(rank, 2))
        trainer.train(range(1, 4), ranks=[rank])
        with trainer.average.applied():
            averaged = [each.detach().clone() for each in trainer.network.parameters()]
        return averaged, [each.detach().clone() for each in trainer.network.parameters()]

    results = ThreadRanks(2).run(work, monkeypatch)
    weights = [each.detach().clone() for each in alone.network.parameters()]
    with alone.average.applied():
        for averaged, after in results:
            for parameter, mine in zip(alone.network.parameters(), averaged, strict=True):
                assert mine.equal(parameter)
            assert all(ours.equal(theirs) for ours, theirs in zip(after, weights, strict=True))


@pytest.mark.parametrize(("config", "size", "place"), [(CONFIG, 2, 0), (MUON, 3, 0), (MUON, 3, 2)])
def test_a_gradient_that_is_not_finite_in_one_shard_stops_the_updates_of_all(
    monkeypatch: pytest.MonkeyPatch, config: OptimizerConfig, size: int, place: int
) -> None:
    """Of three processes with Muon the last has hidden matrices alone."""

    def work(rank: int) -> tuple[float, bool]:
        trainer = Trainer(FlatShard(rank, size), config=config)
        trainer.train(range(1, 3), ranks=[rank])
        optimizer = trainer.optimizer
        before = optimizer.flat_param.clone()
        for step in (3, 4):  # the second with a gradient that is finite again
            optimizer.zero_grad()
            if rank == 1 and step == 3:
                optimizer.flat_grad[place * optimizer.shard_length + 3] = float("inf")
            trainer.reduce_gradient()
            set_learning_rate(optimizer, config, step=step, max_steps=10)
            optimizer.step()
        return float(optimizer.nonfinite_update), optimizer.flat_param.equal(before)

    assert ThreadRanks(size).run(work, monkeypatch) == [(3.0, True)] * size
