"""Muon's update is torch's, matrix by matrix; it is of AdamW's size and bounded, and resumes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from electra.config import SettingError
from electra.engine.distributed import World
from electra.engine.muon import (
    hidden_matrices,
    is_muon,
    muon_groups,
    orthogonalize,
    orthogonalize_stacks,
)
from electra.engine.optimizer import build_optimizer, set_learning_rate
from electra.engine.settings import OptimizerConfig
from electra.engine.training_state import capture, restore
from electra.model.shape import EncoderShape, GeneratorShape
from electra.objectives.objective import Objective
from electra.objectives.settings import ReplacedTokenDetectionConfig
from electra.pretraining.recipe import Recipe, TrainingConfig, load_recipe
from tests.conftest import TOY_FLAGS, toy_batch, toy_objective
from tests.engine.ranks import run_as_ranks
from tests.engine.steps import build_step, needs_triton, walk

MUON = OptimizerConfig(
    name="muon", learning_rate=1e-2, muon_learning_rate=2e-2, warmup_steps=2, max_grad_norm=0.5
)
SHAPES = {
    "electra": EncoderShape(
        layers=1, width=16, heads=2, feedforward=40, embedding=8, positions=16, dropout=0.0
    ),
    "modernbert": EncoderShape(
        family="modernbert", layers=1, width=16, heads=2, feedforward=24, embedding=8, positions=16
    ),
}
PATHS = [False, pytest.param(True, marks=needs_triton)]


def build_objective(family: str = "electra", **generator: object) -> Objective:
    config = ReplacedTokenDetectionConfig(generator=GeneratorShape(**generator))
    return toy_objective(config, replace(SHAPES[family], dropout=0.0, attention_dropout=0.0))


def names_of(objective: nn.Module, matrices: dict[torch.Tensor, int]) -> dict[str, int]:
    return {name: matrices[p] for name, p in objective.named_parameters() if p in matrices}


@pytest.mark.parametrize(("family", "halves"), [("electra", 1), ("modernbert", 2)])
def test_muon_takes_the_matrices_of_the_blocks_of_both_networks_and_nothing_else(
    family: str, halves: int
) -> None:
    objective = build_objective(family)
    expected = {
        f"{network}.encoder.blocks.0.{layer}.weight": stacked
        for network in ("generator", "discriminator")
        for layer, stacked in {
            "attention.query_key_value": 3,
            "attention.output": 1,
            "expand": halves,
            "contract": 1,
        }.items()
    }
    assert names_of(objective, hidden_matrices(objective)) == expected
    optimizer = build_optimizer(objective, MUON)
    names = {id(p): name for name, p in objective.named_parameters()}
    muon, adamw = (
        [names[id(p)] for g in optimizer.param_groups if is_muon(g) is wanted for p in g["params"]]
        for wanted in (True, False)
    )
    assert set(muon) == set(expected)
    assert sorted(muon + adamw) == sorted(names.values())


def test_a_frozen_network_is_not_updated_by_muon() -> None:
    objective = build_objective(tie="none")
    objective.networks()["generator"].requires_grad_(False)
    assert all(
        n.startswith("discriminator") for n in names_of(objective, hidden_matrices(objective))
    )


def test_orthogonalising_keeps_the_singular_vectors_and_evens_out_the_values() -> None:
    torch.manual_seed(0)
    matrices = torch.randn(5, 12, 30)
    u, values, vh = torch.linalg.svd(matrices, full_matrices=False)
    result = orthogonalize(1e-4 * matrices)
    in_their_basis = u.mT @ result @ vh.mT
    diagonal = in_their_basis.diagonal(dim1=1, dim2=2)
    assert values.min() < 0.4 * values.max()
    assert 0.6 < diagonal.min() <= diagonal.max() < 1.3
    assert (in_their_basis - torch.diag_embed(diagonal)).abs().max() < 1e-4
    assert not orthogonalize(torch.zeros(1, 2, 3)).any()


def test_stacks_of_one_shape_and_its_transpose_are_one_batch_with_the_same_results() -> None:
    torch.manual_seed(0)
    stacks = [torch.randn(3, 4, 6), torch.randn(2, 6, 4), torch.randn(1, 5, 5)]
    wide, tall, square = orthogonalize_stacks(stacks)
    assert torch.allclose(wide, orthogonalize(stacks[0]), atol=1e-5)
    assert torch.allclose(tall, orthogonalize(stacks[1].mT).mT, atol=1e-5)
    assert torch.allclose(square, orthogonalize(stacks[2]), atol=1e-5)


@pytest.mark.parametrize(
    ("family", "flat"),
    [
        ("electra", False),
        ("modernbert", False),
        pytest.param("electra", True, marks=needs_triton),
        pytest.param("modernbert", True, marks=needs_triton),
    ],
)
def test_an_update_is_that_of_torchs_muon_for_each_matrix_of_a_stack(
    family: str, flat: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = build_objective(family)
    steps = build_step(objective, replace(MUON, max_grad_norm=1e9), flat=flat)
    matrices = hidden_matrices(objective)
    copies = {
        weight: [nn.Parameter(part.clone()) for part in weight.detach().chunk(stacked)]
        for weight, stacked in matrices.items()
    }
    everything = [part for parts in copies.values() for part in parts]
    theirs = torch.optim.Muon(
        everything, lr=1.0, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.float)  # ours on a CPU is float32
    for step in range(1, 4):
        steps.forward_backward([(step, toy_batch([16, 9], seed=step))])
        for weight, parts in copies.items():
            for part, gradient in zip(parts, weight.grad.chunk(len(parts)), strict=True):
                part.grad = gradient.clone()
        rate = steps.optimizer_step(step)
        theirs.param_groups[0]["lr"] = 2 * rate
        theirs.step()
    for weight, parts in copies.items():
        assert torch.allclose(weight, torch.cat(parts), atol=1e-5)


@needs_triton
def test_the_flat_update_with_clipping_is_the_plain_one() -> None:
    plain, other = build_objective(), build_objective()
    walk(build_step(plain, MUON, flat=False), range(1, 4))
    walk(build_step(other, MUON, flat=True), range(1, 4))
    for (name, mine), theirs in zip(other.named_parameters(), plain.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-4), name


def test_the_rate_of_muon_follows_the_schedule_without_adams_correction() -> None:
    objective = build_objective()
    optimizer = build_optimizer(objective, MUON)
    rate = set_learning_rate(optimizer, MUON, step=1, max_steps=10)
    assert rate == pytest.approx(1e-2 / 2)
    for group in filter(is_muon, optimizer.param_groups):
        assert group["lr"] == pytest.approx(2 * rate)
        assert group["weight_decay"] == 0.1
    with_same_rate = replace(MUON, muon_learning_rate=None)
    assert {group["lr_scale"] for group in muon_groups(objective, with_same_rate, lambda n: 1)} == {
        1
    }


def test_an_update_has_the_root_mean_square_of_adamws_whatever_the_gradient() -> None:
    for shape in ((64, 64), (64, 256), (256, 64)):
        torch.manual_seed(0)
        (update,) = orthogonalize_stacks([1e-3 * torch.randn(1, *shape)])
        rms = update.square().mean().sqrt() * 0.2 * math.sqrt(max(shape))
        assert 0.15 < rms < 0.25


def test_decay_bounds_the_norm_that_a_constant_gradient_leads_to() -> None:
    objective = build_objective()
    config = replace(MUON, warmup_steps=0, schedule="constant", muon_weight_decay=0.5)
    optimizer = build_optimizer(objective, config)
    set_learning_rate(optimizer, config, step=1, max_steps=10)
    weight = objective.networks()["discriminator"].encoder.blocks[0].contract.weight
    gradient = torch.randn_like(weight)
    norms = []
    for _ in range(500):
        weight.grad = gradient
        optimizer.step()
        norms.append(float(torch.linalg.matrix_norm(weight.detach(), 2)))
    bound = 0.2 * math.sqrt(40) / 0.5
    assert 0.7 * bound < norms[-1] < 1.25 * bound
    assert norms[-1] == pytest.approx(norms[-2], rel=1e-3)


@pytest.mark.parametrize("flat", PATHS)
def test_a_run_with_muon_continues_bit_for_bit_and_its_state_is_momentum_alone(flat: bool) -> None:
    unbroken = build_objective()
    walk(build_step(unbroken, MUON, flat=flat), range(1, 4))
    first = build_objective()
    steps = build_step(first, MUON, flat=flat)
    walk(steps, range(1, 3))
    weights, state = capture(first, steps.setup.optimizer)
    for name in names_of(first, hidden_matrices(first)):
        assert [key for key in state if key.startswith(f"{name}.")] == [f"{name}.momentum_buffer"]
    second = build_objective()
    steps = build_step(second, MUON, flat=flat, restored=(weights, state), updates=2)
    walk(steps, range(3, 4))
    pairs = zip(unbroken.named_parameters(), second.parameters(), strict=True)
    for (name, mine), theirs in pairs:
        assert torch.equal(mine, theirs), name


@needs_triton
def test_a_checkpoint_of_plain_muon_is_read_by_the_flat_one() -> None:
    first, second = build_objective(), build_objective()
    steps = build_step(first, MUON, flat=False)
    walk(steps, range(1, 4))
    flat = build_optimizer(second, MUON, low_precision=torch.float32)
    restore(capture(first, steps.setup.optimizer), module=second, optimizer=flat, updates=3)
    assert flat.update_count == 3
    _, plain_state = capture(first, steps.setup.optimizer)
    for name, tensor in capture(second, flat)[1].items():
        assert torch.equal(tensor, plain_state[name]), name
    flat.load_state_dict(steps.setup.optimizer.state_dict())
    assert flat.update_count == 3


@needs_triton
def test_a_gradient_that_is_not_finite_leaves_muons_matrices_as_they_were() -> None:
    objective = build_objective()
    steps = build_step(objective, MUON, flat=True)
    walk(steps, range(1, 3))
    before = [parameter.detach().clone() for parameter in objective.parameters()]
    momentum = steps.optimizer.exp_avg.clone()
    for step in (3, 4):
        steps.forward_backward([(step, toy_batch([16, 9]))])
        if step == 3:
            steps.optimizer.gradients[-1].view(-1)[0] = float("nan")
        steps.optimizer_step(step)
    assert all(torch.equal(*pair) for pair in zip(before, objective.parameters(), strict=True))
    assert torch.equal(momentum, steps.optimizer.exp_avg)


WORKER = """
from electra.engine.distributed import process_group
from tests.engine.test_muon import compare_with_one_process

with process_group() as world:
    compare_with_one_process(world)
"""


def compare_with_one_process(world: World) -> None:
    """Both optimizers in this process alone, and over all of them; run by several processes."""
    for flat in (False, True):
        alone, shared = build_objective(), build_objective()
        alone_steps = build_step(alone, MUON, flat=flat)
        steps = build_step(shared, MUON, flat=flat, world=world)
        for step in range(1, 4):
            batches = [(10 * step + n, toy_batch([16, 9], seed=n)) for n in range(world.size)]
            alone_steps.forward_backward(batches)
            steps.forward_backward([batches[world.rank]])
            alone_steps.optimizer_step(step)
            steps.optimizer_step(step)
        pairs = zip(shared.named_parameters(), alone.parameters(), strict=True)
        for (name, mine), theirs in pairs:
            assert torch.allclose(mine, theirs, atol=2e-5), (flat, name)


@needs_triton
@pytest.mark.slow
def test_two_processes_that_share_a_step_move_as_one(tmp_path: Path) -> None:
    run_as_ranks(WORKER, tmp_path, processes=2)


def test_muon_refuses_sharded_matrices() -> None:
    with pytest.raises(SettingError, match=r"optimizer\.name='muon' orthogonalises whole"):
        Recipe(optimizer=MUON, training=TrainingConfig(parallel="fsdp"))


def test_the_settings_of_muon_stand_in_recipes() -> None:
    flags = [*TOY_FLAGS, "--optimizer.name", "muon", "--muon-learning-rate", "3e-3"]
    optimizer = load_recipe("tiny", flags=flags).optimizer
    assert (optimizer.name, optimizer.muon_learning_rate) == ("muon", 3e-3)
