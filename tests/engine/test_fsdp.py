"""Weights spread over processes: the same steps, the same checkpoints, and any number of processes
after them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from electra.config import RunFailed
from electra.engine.distributed import World
from electra.engine.fsdp import is_dtensor, shard
from electra.engine.hardware import Speed
from electra.engine.optimizer import build_optimizer
from electra.engine.train_step import Execution, OptimizerSetup, build_train_step
from electra.model.encoder import set_activation_checkpointing
from electra.objectives.objective import Objective
from electra.pretraining.pretrain import pretrain
from electra.pretraining.recipe import load_recipe
from electra.runs.journal import read_metrics
from tests.conftest import TOY_FLAGS, toy_batch, toy_objective
from tests.engine.ranks import run_as_ranks
from tests.wording import wording_of

wording = wording_of(__file__)


@pytest.fixture
def group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def train(data: Path, run: Path, *more: str) -> None:
    pretrain(load_recipe("tiny", flags=[*TOY_FLAGS, *more]), data=data, output_dir=run, quiet=True)


def state(run: Path, step: int) -> dict[str, torch.Tensor]:
    return {
        f"{path.name} {name}": tensor
        for path in sorted((run / f"checkpoint-{step}").glob("*.safetensors"))
        for name, tensor in load_file(path).items()
    }


def losses(run: Path) -> list[float]:
    return [entry["loss"] for entry in read_metrics(run / "metrics.jsonl") if "loss" in entry]


@pytest.mark.usefixtures("group_of_one")
def test_a_run_goes_on_with_weights_in_parts_and_back_again(
    toy_shards: Path, tmp_path: Path
) -> None:
    constant = (
        "--optimizer.schedule",
        "constant",
    )  # the schedule would feel another number of steps
    train(toy_shards, tmp_path / "unbroken", *constant, "--max-steps", "3")
    for steps, parallel in (("1", "ddp"), ("2", "fsdp"), ("3", "ddp")):
        train(
            toy_shards, tmp_path / "moved", *constant, "--max-steps", steps, "--parallel", parallel
        )
    assert losses(tmp_path / "moved") == pytest.approx(losses(tmp_path / "unbroken"), rel=1e-6)
    ours, theirs = state(tmp_path / "moved", 3), state(tmp_path / "unbroken", 3)
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert ours[name].allclose(tensor, rtol=1e-4, atol=1e-6), name


@pytest.mark.usefixtures("group_of_one")
def test_a_number_that_is_not_finite_is_named_where_weights_are_in_parts(
    toy_shards: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        RunFailed, match=wording("a_number_that_is_not_finite_is_named_where_weights_are_in_parts")
    ):
        train(
            toy_shards,
            tmp_path,
            "--parallel",
            "fsdp",
            "--learning-rate",
            "1e30",
            "--warmup-steps",
            "0",
        )


TIED = ("--objective.generator.tie", "all", "--objective.generator.fraction", "1.0")
CASES = {
    "embeddings shared": ("tiny",),
    "all weights shared": ("tiny", *TIED),
    "nothing shared": ("tiny", "--objective.generator.tie", "none"),
    "a masked LM": ("bert-small",),
    "every token restored": ("all-tokens-mlm-base",),
    "an adversary": ("adversarial-base",),
    "a frozen generator": ("two-stage-base",),
    "left to right": ("left-to-right-base",),
    "blocks computed again": ("tiny", *TIED, "--activation-checkpointing", "true"),
}


def train_case(case: str, world: World, *, sharing: bool) -> tuple[list[float], Objective]:
    """Losses and weights after three steps of four passes, of which three processes take one, one
    and two.
    """
    name, *flags = CASES[case]
    recipe = load_recipe(name, flags=[*TOY_FLAGS, *flags])
    objective = toy_objective(recipe.objective, recipe.encoder)
    set_activation_checkpointing(objective, recipe.training.activation_checkpointing)
    if sharing:
        shard(objective, "cpu")
    optimizer = build_optimizer(objective, recipe.optimizer)
    steps = build_train_step(
        objective,
        lambda loss: {"loss": loss.total},
        OptimizerSetup(optimizer, recipe.optimizer, 20, torch.amp.GradScaler("cpu", enabled=False)),
        Execution(world, "fp32", Speed(False, False, False), world.max_micro_batches_per_rank(4)),
    )
    step_losses = []
    for step in range(1, 4):
        sums = steps.forward_backward(
            [
                (10 * step + i, toy_batch([16, 9], seed=10 * step + i))
                for i in world.my_micro_batches(4)
            ]
        )
        steps.optimizer_step(step)
        world.all_reduce_sum(sums.values())
        step_losses.append(float(sums["loss"]))
    return step_losses, objective


def compare(world: World) -> None:
    """Every case in this process alone, and over all of them; run by several processes."""
    for case in CASES:
        expected, alone = train_case(case, World(0, 1, world.device), sharing=False)
        step_losses, shared = train_case(case, world, sharing=True)
        assert step_losses == pytest.approx(expected, rel=1e-5), case
        pairs = zip(alone.named_parameters(), shared.named_parameters(), strict=True)
        for (name, parameter), (same, part) in pairs:
            assert name == same
            assert is_dtensor(part), (case, name)
            assert part.to_local().numel() < parameter.numel() or len(parameter) == 1, (
                case,
                name,
            )  # split by rows
            assert part.full_tensor().allclose(parameter, rtol=1e-3, atol=1e-5), (case, name)


WORKER = """
from electra.engine.distributed import process_group
from tests.engine.test_fsdp import compare

with process_group() as world:
    compare(world)
"""


@pytest.mark.slow
def test_three_processes_with_weights_in_parts_move_as_one_whatever_is_shared(
    tmp_path: Path,
) -> None:
    run_as_ranks(WORKER, tmp_path, processes=3)
