"""What only a GPU can show of several processes, with one GPU: sums beside a replayed backward
pass, and two processes that share the GPU. `pytest -m gpu`
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from electra.engine import distributed, flat_shard
from electra.engine.distributed import World
from electra.engine.flat_shard import WHOLE, FlatShard
from electra.engine.gradient_buckets import GradientBuckets
from electra.engine.hardware import Speed
from electra.engine.optimizer import build_optimizer
from electra.engine.settings import OptimizerConfig
from electra.engine.train_step import Execution, FusedTrainStep, OptimizerSetup, build_train_step
from electra.engine.training_state import TrainingState, capture, contribute_shards, copy_to_host
from electra.model.shape import EncoderShape
from electra.objectives.settings import ReplacedTokenDetectionConfig
from tests.conftest import toy_batch, toy_objective

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
ROOT = Path(__file__).parents[1]
STEPS = 6
CONFIG = OptimizerConfig(learning_rate=1e-3, warmup_steps=2)
MUON = replace(CONFIG, name="muon")
LENGTHS = [128, 97, 128, 64] * 8


def build(
    world: World, shard: FlatShard = WHOLE, config: OptimizerConfig = CONFIG
) -> tuple[Any, FusedTrainStep]:
    """Return a network whose backward pass takes a while, with kernels and CUDA graphs in bf16."""
    shape = EncoderShape(
        layers=6, width=512, heads=8, feedforward=2048, embedding=128, positions=128
    )
    objective = toy_objective(ReplacedTokenDetectionConfig(), shape).to(world.device)
    optimizer = build_optimizer(objective, config, low_precision=torch.bfloat16, shard=shard)
    scaler = torch.amp.GradScaler(world.device.type, enabled=False)
    steps = build_train_step(
        objective,
        lambda loss: {"loss": loss.total},
        OptimizerSetup(optimizer, config, 100, scaler),
        Execution(world, "bf16", Speed(True, True, False)),
    )
    assert isinstance(steps, FusedTrainStep)
    if steps.buckets is not None:
        steps.buckets = GradientBuckets(steps.optimizer, world, bucket_bytes=2**21)
        assert len(steps.buckets.parameter_counts) > 5
    return objective, steps


def micro_batches(step: int, numbers: range) -> list[tuple[int, Any]]:
    return [
        (10 * step + number, toy_batch(LENGTHS, length=128, seed=10 * step + number))
        for number in numbers
    ]


def test_a_bucket_is_summed_beside_the_replayed_pass_and_holds_its_whole_gradient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sum doubles here: before its event it would double too little."""
    device = torch.device("cuda", torch.cuda.current_device())
    timings: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
    main = torch.cuda.current_stream()

    def double(tensor: Tensor) -> None:
        tensor.mul_(2)
        sums.append(len(tensor))
        if len(sums) == 1:  # the pass is launched by now: `end` comes after all of it
            first, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record(torch.cuda.current_stream())
            end.record(main)
            timings.append((first, end))

    sums: list[int] = []
    monkeypatch.setattr(dist, "all_reduce", double)
    monkeypatch.setattr(distributed, "broadcast_json", lambda value: value)
    _, alone = build(World(0, 1, device))
    _, shared = build(World(0, 2, device))
    for step in range(1, STEPS):
        sums.clear()
        for steps in (alone, shared):
            steps.forward_backward(micro_batches(step, range(2)))
        assert shared.buckets is not None
        assert len(sums) == len(shared.buckets.order), "once a step, after the last micro-batch"
        expected = 2 * alone.optimizer.flat_grad
        assert shared.optimizer.flat_grad.equal(expected), step
    torch.cuda.synchronize()
    ahead = [first.elapsed_time(end) for first, end in timings]
    print("milliseconds between the first sum and the end of backward:", ahead)
    assert ahead[-1] > 0, "the first bucket is summed before backward ends"


@pytest.fixture
def group_of_one() -> Iterator[None]:
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group_of_one")
def test_a_step_of_several_processes_never_waits_for_the_device() -> None:
    """NCCL sums over one process, so a world of two has the digits of a world of one."""
    device = torch.device("cuda", torch.cuda.current_device())
    _, alone = build(World(0, 1, device))
    alone.optimizer.norm_by_block = True
    _, several = build(World(0, 2, device))
    batches = [micro_batches(step, range(2)) for step in range(20)]
    for name, steps in {"alone": alone, "several": several}.items():
        for step in range(1, 4):  # the first passes warm up and are captured
            take_step(steps, batches[0], step)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for step, batch in enumerate(batches, start=4):
                take_step(steps, batch, step)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        launched = time.perf_counter()
        torch.cuda.synchronize()
        seconds = [1000 * (end - begin) / len(batches) for end in (launched, time.perf_counter())]
        print(f"{name}: {seconds[0]:.2f} ms of the host and {seconds[1]:.2f} ms in all per step")
    assert several.optimizer.flat_param.equal(alone.optimizer.flat_param)


def take_step(steps: FusedTrainStep, batch: list[tuple[int, Any]], step: int) -> None:
    steps.forward_backward(batch)
    steps.optimizer_step(step)
    assert not steps.agree_to_stop(False)


def on_the_host(collective: Any) -> Any:
    """Return a collective of gloo for tensors of a GPU, several of which gloo does not take."""

    def call(tensor: Tensor, *arguments: Any, **options: Any) -> None:
        copies = [each.cpu() if isinstance(each, Tensor) else each for each in arguments]
        copy = tensor.cpu()
        collective(copy, *copies, **options)
        tensor.copy_(copy)

    return call


def train(world: World, shard: FlatShard, config: OptimizerConfig) -> TrainingState:
    """Take some steps of four micro-batches; return the state that a checkpoint would have."""
    objective, steps = build(world, shard, config)
    for step in range(1, STEPS):
        steps.forward_backward(micro_batches(step, world.my_micro_batches(4)))
        steps.optimizer_step(step)
        stops = steps.agree_to_stop(world.rank == 1 and step == 2)
        assert stops == (step >= 4), (world.rank, step)
    steps.synchronize()
    if not world.is_main:
        contribute_shards(objective, steps.optimizer)
        return {}, {}
    weights, optimizer_state = capture(objective, steps.optimizer)
    return copy_to_host(weights.items()), copy_to_host(optimizer_state.items())


def run_as_rank(device: torch.device) -> None:
    """Be one of two processes on one GPU, which NCCL does not allow and gloo does."""
    dist.init_process_group("gloo")
    world = World(dist.get_rank(), dist.get_world_size(), device)
    dist.all_reduce, dist.reduce = on_the_host(dist.all_reduce), on_the_host(dist.reduce)
    dist.broadcast = on_the_host(dist.broadcast)
    flat_shard.all_gather = on_the_host(flat_shard.all_gather)
    for config in (CONFIG, MUON):
        whole = train(world, WHOLE, config)
        sharded = train(world, FlatShard(world.rank, world.size), config)
        for ours, theirs in zip(sharded, whole, strict=True):
            assert ours.keys() == theirs.keys()
            for name, tensor in theirs.items():
                assert ours[name].equal(tensor), (config.name, name)
        # Muon turns differences of rounding in small gradients into large ones of its updates.
        if world.is_main and config is CONFIG:
            compare_with_one_process(device, whole[0])
    dist.destroy_process_group()


def compare_with_one_process(device: torch.device, weights: dict[str, Tensor]) -> None:
    """One process makes nearly the same change of the weights; a sampled token may differ."""
    objective, steps = build(World(0, 1, device))
    before = {name: each.detach().cpu().clone() for name, each in objective.named_parameters()}
    for step in range(1, STEPS):
        steps.forward_backward(micro_batches(step, range(4)))
        steps.optimizer_step(step)
    steps.synchronize()
    change, difference = 0.0, 0.0
    for name, parameter in objective.named_parameters():
        alone = parameter.detach().cpu()
        change += float((alone - before[name]).double().square().sum())
        difference += float((alone - weights[name]).double().square().sum())
    ratio = (difference / change) ** 0.5
    print(f"two processes: zero1 is ddp bit for bit; one process differs by {ratio:.2g} of its way")
    assert ratio < 0.1


def test_two_processes_share_a_gpu_and_train_as_one_with_shards_or_without(
    tmp_path: Path,
) -> None:
    (tmp_path / "worker.py").write_text(
        "import torch; from tests.test_gpu_processes import run_as_rank\n"
        'run_as_rank(torch.device("cuda", 0))\n'
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(tmp_path / "worker.py")]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    subprocess.run(command, check=True, env=environment, timeout=240)
