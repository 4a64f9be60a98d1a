"""The plain and the fused train step make the same updates."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from electra.engine.distributed import World
from electra.engine.hardware import Speed
from electra.engine.optimizer import build_optimizer
from electra.engine.settings import OptimizerConfig, Precision
from electra.engine.train_step import (
    Execution,
    FusedTrainStep,
    NonFiniteGradient,
    OptimizerSetup,
    PlainTrainStep,
    SkipBudget,
    TrainStep,
    build_train_step,
)
from electra.engine.training_state import capture, restore
from electra.model.shape import EncoderShape, GeneratorShape
from electra.objectives.objective import Objective
from electra.objectives.settings import (
    AllTokensMLMConfig,
    MaskedLMConfig,
    Masking,
    ObjectiveConfig,
    ReplaceMLMConfig,
)
from electra.objectives.settings import ReplacedTokenDetectionConfig as Detection
from electra.runs import checkpoint
from tests.conftest import toy_batch, toy_objective
from tests.engine.ranks import run_as_ranks
from tests.engine.steps import needs_triton
from tests.wording import wording_of

wording = wording_of(__file__)

pytestmark = needs_triton

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ALONE = World(0, 1, DEVICE)
SHAPE = EncoderShape(
    layers=2,
    width=32,
    heads=2,
    feedforward=64,
    embedding=16,
    positions=16,
    dropout=0.0,
    attention_dropout=0.0,
)
RTD = Detection()
ADVERSARIAL = Detection(generator_training="adversarial")
FROZEN = Detection(generator=GeneratorShape(tie="none"), generator_training="frozen")
SETTINGS = OptimizerConfig(learning_rate=1e-2, warmup_steps=3, max_grad_norm=0.5)


def build(
    *,
    kernels: bool,
    objective_config: ObjectiveConfig = RTD,
    precision: Precision = "fp32",
    world: World = ALONE,
    skip_budget: SkipBudget | None = None,
) -> tuple[Objective, Any, TrainStep]:
    """The same network each time; in float32 its kernels rest, so what is compared is the update
    alone.
    """
    objective = toy_objective(objective_config, SHAPE).to(DEVICE)
    speed = Speed(kernels, False, False)
    optimizer = build_optimizer(objective, SETTINGS, low_precision=speed.kernel_dtype(precision))
    scaler = torch.amp.GradScaler(DEVICE.type, enabled=False)
    steps = build_train_step(
        objective,
        lambda loss: {"loss": loss.total, **loss.parts},
        OptimizerSetup(optimizer, SETTINGS, 10, scaler, skip_budget=skip_budget or SkipBudget()),
        Execution(world, precision, speed),
    )
    return objective, optimizer, steps


def walk(steps: TrainStep, numbers: range) -> list[tuple[float, float]]:
    results = []
    for step in numbers:
        losses = steps.forward_backward(
            [(step, toy_batch([16, 9])), (100 + step, toy_batch([12, 16]))]
        )
        steps.optimizer_step(step)
        results.append((float(losses["loss"]), steps.synchronize()))
    return results


def test_an_update_over_flat_buffers_is_that_of_torch() -> None:
    (plain, _, steps), (fused, _, others) = build(kernels=False), build(kernels=True)
    assert (type(steps), type(others)) == (PlainTrainStep, FusedTrainStep)
    for ours, theirs in zip(walk(others, range(1, 7)), walk(steps, range(1, 7)), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)
    for (name, mine), exact in zip(fused.named_parameters(), plain.parameters(), strict=True):
        assert torch.allclose(mine, exact, atol=2e-5), name


@pytest.mark.slow
def test_low_precision_copies_follow_the_weights() -> None:
    objective, optimizer, steps = build(kernels=True, precision="fp16")
    walk(steps, range(1, 3))
    for name, parameter in objective.named_parameters():
        low_precision = optimizer.low_precision_weights[parameter]
        assert torch.equal(low_precision, parameter.detach().half()), name


def test_a_flat_optimizer_keeps_its_state_dict_in_flat_buffers() -> None:
    _, optimizer, steps = build(kernels=True)
    walk(steps, range(1, 3))
    _, other, _ = build(kernels=True)
    other.load_state_dict(optimizer.state_dict())
    for mine, theirs in zip(optimizer.parameters, other.parameters, strict=True):
        state, loaded = optimizer.state[mine], other.state[theirs]
        assert loaded["step"] == 2
        assert torch.equal(loaded["exp_avg"], state["exp_avg"])
        assert torch.equal(loaded["exp_avg_sq"], state["exp_avg_sq"])
        for view, buffer in (
            (theirs, other.flat_param),
            (theirs.grad, other.flat_grad),
            (loaded["exp_avg"], other.exp_avg),
            (loaded["exp_avg_sq"], other.exp_avg_sq),
            (other.low_precision_weights[theirs], other.flat_low_precision),
        ):
            assert view.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()
    other.zero_grad(set_to_none=True)
    assert not any(parameter.grad.any() for parameter in other.parameters)


def test_a_flat_optimizer_reads_the_state_dict_of_torchs() -> None:
    (_, torchs, steps), (_, flat, _) = build(kernels=False), build(kernels=True)
    walk(steps, range(1, 3))
    flat.load_state_dict(torchs.state_dict())
    for group, flat_group in zip(torchs.param_groups, flat.param_groups, strict=True):
        assert group["lr"] == flat_group["lr"]
        for theirs, mine in zip(group["params"], flat_group["params"], strict=True):
            assert torch.equal(torchs.state[theirs]["exp_avg"], flat.state[mine]["exp_avg"])
    assert flat.update_count == 2


@pytest.mark.slow
def test_blocks_of_kernels_learn_as_plain_ones_do() -> None:
    """Unigram replacements are drawn alike. What a generator samples is not, and one rare sample
    changes the loss of a toy batch by half: with one, only the losses before the first update are
    compared.
    """

    def curve(kernels: bool, config: ObjectiveConfig, count: int) -> list[float]:
        steps = build(kernels=kernels, objective_config=config, precision="fp16")[2]
        return [loss for loss, _ in walk(steps, range(1, count + 1))]

    for config, count in ((RTD, 1), (Detection(generator=GeneratorShape(kind="unigram")), 6)):
        plain, fused = (curve(kernels, config, count) for kernels in (False, True))
        assert fused == pytest.approx(plain, rel=0.02)


@pytest.mark.parametrize(
    "config",
    [
        MaskedLMConfig(),
        *(
            pytest.param(config, marks=pytest.mark.slow)
            for config in (
                Detection(generator=GeneratorShape(kind="unigram")),
                AllTokensMLMConfig(),
                Detection(generator=GeneratorShape(tie="all", fraction=1.0)),
                Detection(generator=GeneratorShape(tie="none")),
                Detection(masking=Masking(draws="official")),
                Detection(masking=Masking(final_rate=0.1)),
                Detection(temperature=2.0),
                Detection(scored="masked"),
                ReplaceMLMConfig(),
                Detection(disallow_correct=True),
                MaskedLMConfig(next_sentence=True),
                ADVERSARIAL,
                FROZEN,
            )
        ),
    ],
    ids=[
        "mlm",
        "unigram",
        "all-tokens-mlm",
        "tied",
        "untied",
        "official",
        "scheduled",
        "tempered",
        "electra-15",
        "replace-mlm",
        "disallowing",
        "nsp",
        "adversarial",
        "frozen",
    ],
)
def test_every_objective_takes_its_first_steps_by_kernels(config: ObjectiveConfig) -> None:
    """The first loss is of equal weights; after it both have moved the same way."""
    plain, fused = (
        walk(build(kernels=kernels, objective_config=config, precision="fp16")[2], range(1, 4))
        for kernels in (False, True)
    )
    assert fused[0][0] == pytest.approx(plain[0][0], rel=0.03)
    assert fused[2][0] < fused[0][0]
    assert plain[2][0] < plain[0][0]


@pytest.mark.parametrize(
    ("config", "micro_batches"),
    [
        (Detection(generator=GeneratorShape(kind="unigram")), 1),
        pytest.param(FROZEN, 1, marks=pytest.mark.slow),
        pytest.param(RTD, 2, marks=pytest.mark.slow),
        pytest.param(
            Detection(generator=GeneratorShape(tie="all", fraction=1.0)), 1, marks=pytest.mark.slow
        ),
    ],
    ids=["unigram", "frozen", "two micro-batches", "tied"],
)
def test_gradients_past_autograd_are_those_that_autograd_returns(
    config: ObjectiveConfig, micro_batches: int
) -> None:
    _, optimizer, steps = build(kernels=True, objective_config=config, precision="fp16")
    found = []
    for has_hook in (False, True):  # with a hook, all of them go through autograd
        handles = []
        if has_hook:
            handles = [each.register_hook(lambda _: None) for each in optimizer.parameters]
        batches = [(number, toy_batch([8 - number], length=8)) for number in range(micro_batches)]
        for gradient in optimizer.gradients:
            gradient.fill_(float("nan"))  # of the last step
        steps.forward_backward(batches)
        found.append(optimizer.flat_grad.clone())
        for handle in handles:
            handle.remove()
    ours, autograds = found
    assert autograds.any()
    assert ours.equal(autograds)


def test_the_only_micro_batch_of_a_step_zeroes_the_gradients_of_what_it_does_not_use() -> None:
    _, optimizer, steps = build(kernels=True)
    used = optimizer.parameters[1]
    steps.forward = lambda _: {"loss": used.sum()}
    for gradient in optimizer.gradients:
        gradient.fill_(float("nan"))  # of the last step
    steps.forward_backward([(0, toy_batch([8], length=8))])
    assert used.grad.eq(1).all()
    assert optimizer.flat_grad.sum() == used.numel()


@pytest.mark.parametrize(
    ("kernels", "precision"),
    [(False, "fp32"), (True, "fp32"), pytest.param(True, "fp16", marks=pytest.mark.slow)],
)
def test_a_frozen_generator_is_in_no_optimizer_and_keeps_every_bit(
    kernels: bool, precision: str
) -> None:
    objective, optimizer, steps = build(
        kernels=kernels, objective_config=FROZEN, precision=precision
    )
    networks = objective.networks()
    before = {
        name: {key: tensor.clone() for key, tensor in network.state_dict().items()}
        for name, network in networks.items()
    }
    walk(steps, range(1, 4))
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    assert held == {id(parameter) for parameter in networks["discriminator"].parameters()}
    for key, tensor in networks["generator"].state_dict().items():
        assert tensor.equal(before["generator"][key]), key
    for key, tensor in networks["discriminator"].state_dict().items():
        assert not tensor.equal(before["discriminator"][key]), key


def test_a_gradient_that_is_not_finite_changes_nothing_from_its_step_on() -> None:
    objective, _, steps = build(kernels=True)
    walk(steps, range(1, 3))
    before = [parameter.detach().clone() for parameter in objective.parameters()]
    steps.forward_backward([(3, toy_batch([16, 9]))])
    steps.optimizer.gradients[5].view(-1)[0] = float("nan")
    steps.optimizer_step(3)
    for step in (4, 5):  # the host has not looked yet
        steps.forward_backward([(step, toy_batch([16, 9]))])
        steps.optimizer_step(step)
    with pytest.raises(
        NonFiniteGradient,
        match=wording("a_gradient_that_is_not_finite_changes_nothing_from_its_step_on"),
    ):
        steps.synchronize()
    assert all(torch.equal(*pair) for pair in zip(before, objective.parameters(), strict=True))


@pytest.mark.parametrize("kernels", [False, True])
def test_with_a_skip_budget_a_bad_gradient_costs_its_update_and_one_too_many_stops(
    kernels: bool,
) -> None:
    objective, optimizer, steps = build(kernels=kernels, skip_budget=SkipBudget(1))
    walk(steps, range(1, 3))
    before = [parameter.detach().clone() for parameter in objective.parameters()]

    def spoilt(step: int) -> None:
        steps.forward_backward([(step, toy_batch([16, 9]))])
        next(objective.parameters()).grad.view(-1)[0] = float("nan")
        steps.optimizer_step(step)

    spoilt(3)
    assert (steps.skipped, steps.skip_budget.used) == (1, 1)
    assert all(torch.equal(*pair) for pair in zip(before, objective.parameters(), strict=True))
    walk(steps, range(4, 5))
    assert all(torch.isfinite(parameter).all() for parameter in objective.parameters())
    assert next(iter(optimizer.state.values()))["step"] == 3, "Adam counts updates, not steps"

    def last() -> None:
        spoilt(5)
        steps.synchronize()

    with pytest.raises(
        NonFiniteGradient,
        match=wording("with_a_skip_budget_a_bad_gradient_costs_its_update_and_one_too_many_stops"),
    ):
        last()


def test_a_checkpoint_of_fused_steps_continues_bit_for_bit(tmp_path) -> None:
    unbroken, _, steps = build(kernels=True)
    walk(steps, range(1, 7))
    first, optimizer, steps = build(kernels=True)
    walk(steps, range(1, 4))
    checkpoint.write(tmp_path, capture(first, optimizer), step=3, state={})
    second, optimizer, steps = build(kernels=True)
    restore(checkpoint.latest(tmp_path).tensors(), module=second, optimizer=optimizer, updates=3)
    steps = FusedTrainStep(steps.forward, steps.setup, steps.execution)
    walk(steps, range(4, 7))
    assert all(
        torch.equal(*pair) for pair in zip(unbroken.parameters(), second.parameters(), strict=True)
    )


WORKER = """
import sys
import torch.distributed as dist
from safetensors.torch import save_file
from electra.engine.distributed import process_group
from tests.conftest import toy_batch
from tests.engine.test_train_step import build

with process_group() as world:
    objective, _, steps = build(kernels=True, world=world)
    for step in range(1, 4):
        steps.forward_backward([(10 * step + world.rank, toy_batch([16, 9], seed=world.rank))])
        steps.optimizer_step(step)
    if world.is_main:
        save_file({name: p.detach() for name, p in objective.named_parameters()}, sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(
    DEVICE.type == "cuda", reason="a GPU draws other masks than the two processes on a CPU"
)
def test_two_processes_that_share_a_step_move_as_one(tmp_path) -> None:
    run_as_ranks(WORKER, tmp_path, tmp_path / "weights.safetensors", processes=2)
    objective, _, steps = build(kernels=True)
    for step in range(1, 4):
        steps.forward_backward(
            [(10 * step + rank, toy_batch([16, 9], seed=rank)) for rank in (0, 1)]
        )
        steps.optimizer_step(step)
    shared = load_file(tmp_path / "weights.safetensors")
    for name, parameter in objective.named_parameters():
        assert torch.allclose(parameter.detach().cpu(), shared[name], atol=2e-6), name
