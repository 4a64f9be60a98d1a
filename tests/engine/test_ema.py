"""The average of the weights follows its formula on every path, and stands in for the weights."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from electra.engine.distributed import World
from electra.engine.ema import WeightAverage
from electra.engine.hardware import Speed
from electra.engine.optimizer import build_optimizer
from electra.engine.settings import OptimizerConfig
from electra.engine.train_step import (
    Execution,
    OptimizerSetup,
    SkipBudget,
    TrainStep,
    build_train_step,
)
from electra.engine.training_state import TrainingState, capture, data_pointers, restore
from electra.objectives.objective import Objective
from electra.objectives.settings import ReplacedTokenDetectionConfig
from tests.conftest import toy_batch, toy_objective
from tests.engine.steps import SHAPE, needs_triton, walk

ADAMW = OptimizerConfig(learning_rate=1e-2, warmup_steps=2)
CONFIGS = {"adamw": ADAMW, "muon": replace(ADAMW, name="muon")}
DECAY = 0.25  # reached after t = 2: 2/11 and 3/12
PATHS = [
    ("adamw", False),
    ("muon", False),
    pytest.param("adamw", True, marks=needs_triton),
    pytest.param("muon", True, marks=[needs_triton, pytest.mark.slow]),
]
each_path = pytest.mark.parametrize(("name", "flat"), PATHS)


def build(
    name: str,
    *,
    flat: bool,
    decay: float = DECAY,
    restored: TrainingState | None = None,
    updates: int = 0,
) -> tuple[Objective, TrainStep]:
    objective = toy_objective(ReplacedTokenDetectionConfig(), SHAPE)
    config = CONFIGS[name]
    low_precision = torch.float16 if flat else None
    optimizer = build_optimizer(objective, config, low_precision=low_precision)
    if restored is not None:
        restore(restored, module=objective, optimizer=optimizer, updates=updates)
    average = WeightAverage(optimizer, decay) if decay else None
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    steps = build_train_step(
        objective,
        lambda loss: {"loss": loss.total},
        OptimizerSetup(optimizer, config, 10, scaler, skip_budget=SkipBudget(1), average=average),
        Execution(World(0, 1, torch.device("cpu")), "fp32", Speed(flat, False, False)),
    )
    return objective, steps


def weights_of(objective: Objective) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in objective.named_parameters()}


@each_path
def test_the_average_is_that_of_the_formula_and_stands_in_for_the_weights(
    name: str, flat: bool
) -> None:
    objective, steps = build(name, flat=flat)
    walk(steps, range(1, 2))
    expected = weights_of(objective)
    for step, decay in ((2, 2 / 11), (3, DECAY), (4, DECAY)):
        walk(steps, range(step, step + 1))
        for key, weight in weights_of(objective).items():
            expected[key] = decay * expected[key] + (1 - decay) * weight
    before = weights_of(objective)
    with steps.averaged_weights():
        for key, parameter in objective.named_parameters():
            assert torch.allclose(parameter, expected[key], atol=1e-6), key
            if flat:
                low_precision = steps.optimizer.low_precision_weights[parameter]
                assert torch.equal(low_precision, parameter.detach().half())
    for key, parameter in objective.named_parameters():
        assert torch.equal(parameter, before[key]), key


@each_path
def test_training_is_the_same_with_an_average_and_without(name: str, flat: bool) -> None:
    averaged, steps = build(name, flat=flat)
    walk(steps, range(1, 3))
    with steps.averaged_weights():
        pass
    walk(steps, range(3, 4))
    plain, steps = build(name, flat=flat, decay=0.0)
    walk(steps, range(1, 4))
    assert not [key for key in capture(plain, steps.setup.optimizer)[1] if key.endswith(".ema")]
    for mine, theirs in zip(averaged.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@each_path
def test_a_resumed_average_continues_bit_for_bit(name: str, flat: bool) -> None:
    unbroken, unbroken_steps = build(name, flat=flat)
    walk(unbroken_steps, range(1, 4))
    first, steps = build(name, flat=flat)
    walk(steps, range(1, 3))
    saved = capture(first, steps.setup.optimizer)
    pointers = data_pointers(steps.setup.optimizer)
    assert steps.setup.optimizer.state[next(first.parameters())]["ema"].data_ptr() in pointers
    second, steps = build(name, flat=flat, restored=saved, updates=2)
    walk(steps, range(3, 4))
    with unbroken_steps.averaged_weights(), steps.averaged_weights():
        for mine, theirs in zip(unbroken.parameters(), second.parameters(), strict=True):
            assert torch.equal(mine, theirs)


@needs_triton
def test_the_average_of_a_plain_run_continues_in_a_flat_one() -> None:
    first, steps = build("adamw", flat=False)
    walk(steps, range(1, 3))
    saved = capture(first, steps.setup.optimizer)
    second, flat_steps = build("adamw", flat=True, restored=saved, updates=2)
    state = capture(second, flat_steps.setup.optimizer)[1]
    assert state.keys() == saved[1].keys()
    for key, tensor in state.items():
        assert torch.equal(tensor, saved[1][key]), key


def test_a_skipped_update_is_not_averaged() -> None:
    objective, steps = build("adamw", flat=False)
    walk(steps, range(1, 3))
    with steps.averaged_weights():
        before = weights_of(objective)
    steps.forward_backward([(3, toy_batch([16, 9]))])
    next(objective.parameters()).grad.view(-1)[0] = float("nan")
    steps.optimizer_step(3)
    assert steps.skipped == 1
    with steps.averaged_weights():
        for key, parameter in objective.named_parameters():
            assert torch.equal(parameter, before[key]), key
