"""A gradient in buckets is the gradient, and all ranks send its buckets in one order."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from electra.engine.distributed import World
from electra.engine.flat_optimizer import FlatOptimizer
from electra.engine.flat_shard import FlatShard
from electra.engine.gradient_buckets import GradientBuckets
from tests.engine.thread_ranks import ThreadRanks

CPU = torch.device("cpu")


class Layers(nn.Module):
    """Four layers, of which a loss uses the first three, and the first one twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        rng = torch.Generator().manual_seed(0)  # one of its own: ranks are threads
        for parameter in self.parameters():
            parameter.data.copy_(torch.rand(parameter.shape, generator=rng))

    def loss(self) -> Tensor:
        first, second, third, _ = self.layers
        loss: Tensor = third(second(first(first(torch.ones(8))))).square().sum()
        return loss


def build(*, bucket_bytes: int, world: World) -> tuple[Layers, GradientBuckets]:
    module = Layers()
    optimizer = FlatOptimizer(
        [{"params": list(module.parameters())}],
        {"lr": 0.1},
        block_size=16,
        low_precision=torch.float32,
        shard=FlatShard(),
    )
    return module, GradientBuckets(optimizer, world, bucket_bytes=bucket_bytes)


@pytest.mark.parametrize("bucket_bytes", [1, 320, 700, 10**6])
def test_the_buckets_of_a_backward_pass_hold_its_gradients(bucket_bytes: int) -> None:
    module, buckets = build(bucket_bytes=bucket_bytes, world=World(0, 2, CPU))
    optimizer = buckets.optimizer
    expected = torch.autograd.grad(module.loss(), optimizer.parameters, allow_unused=True)
    for _ in range(2):
        buckets.accumulate(module.loss())
    for parameter, gradient in zip(optimizer.parameters, expected, strict=True):
        assert parameter.grad is not None
        if gradient is None:
            assert not parameter.grad.any()
        else:
            assert parameter.grad.equal(gradient + gradient)
    bounds = [buckets.bounds(number) for number in range(len(buckets.parameter_counts))]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == len(optimizer.flat_grad) + 1, "the votes come with the last bucket"
    assert all(end == begin for (_, end), (begin, _) in pairwise(bounds))


def test_buckets_are_sent_in_the_order_in_which_backward_completes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 1 has seen another order, and follows rank 0."""

    def work(rank: int) -> tuple[list[int], Tensor]:
        module, buckets = build(bucket_bytes=320, world=World(rank, 2, CPU))
        buckets.accumulate(module.loss())
        if rank:
            buckets.order.reverse()
        buckets.reduce()
        return buckets.order, buckets.optimizer.flat_grad

    module, alone = build(bucket_bytes=320, world=World(0, 1, CPU))
    alone.accumulate(module.loss())
    for order, gradient in ThreadRanks(2).run(work, monkeypatch):
        assert order == [2, 1, 0, 3], "from the last layer to the first, then what is not used"
        assert gradient.equal(2 * alone.optimizer.flat_grad)


class SlowStream:
    """Stands for a stream on which nothing runs before the events that it has waited for."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def wait_event(self, event: NamedEvent) -> None:
        self.log.append(f"wait {event.number}")


class NamedEvent:
    def __init__(self, number: int) -> None:
        self.number = number


def test_a_bucket_is_sent_after_its_event_and_the_update_after_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Streams are stand-ins here; tests/test_gpu_processes.py has real ones."""
    module, buckets = build(bucket_bytes=320, world=World(0, 2, CPU))
    buckets.accumulate(module.loss())
    buckets.is_order_agreed = True
    log: list[str] = []
    buckets.events = [NamedEvent(number) for number in range(4)]
    buckets.stream = SlowStream(log)

    class Current:
        def wait_stream(self, stream: SlowStream) -> None:
            log.append("wait for all")

    monkeypatch.setattr(torch.cuda, "stream", lambda stream: torch.no_grad())
    monkeypatch.setattr(torch.cuda, "current_stream", Current)
    monkeypatch.setattr(buckets, "send", lambda number: log.append(f"send {number}"))
    buckets.reduce()
    steps = [f"{verb} {number}" for number in (2, 1, 0, 3) for verb in ("wait", "send")]
    assert log == [*steps, "wait for all"]
