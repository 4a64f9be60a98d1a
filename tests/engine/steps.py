"""Train steps on a CPU, with kernels where Triton is installed and without them."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from electra.engine.distributed import World
from electra.engine.hardware import Speed
from electra.engine.optimizer import build_optimizer
from electra.engine.settings import OptimizerConfig
from electra.engine.train_step import Execution, OptimizerSetup, TrainStep, build_train_step
from electra.engine.training_state import TrainingState, restore
from electra.model.shape import EncoderShape
from electra.objectives.objective import Objective
from tests.conftest import toy_batch

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)
SHAPE = EncoderShape(
    layers=1,
    width=16,
    heads=2,
    feedforward=32,
    embedding=8,
    positions=16,
    dropout=0.0,
    attention_dropout=0.0,
)


def build_step(
    objective: Objective,
    config: OptimizerConfig,
    *,
    flat: bool,
    restored: TrainingState | None = None,
    updates: int = 0,
    world: World | None = None,
) -> TrainStep:
    low_precision = torch.float32 if flat else None
    optimizer = build_optimizer(objective, config, low_precision=low_precision)
    world = world or World(0, 1, torch.device("cpu"))
    if restored is not None:
        restore(restored, module=objective, optimizer=optimizer, updates=updates)
    return build_train_step(
        objective,
        lambda loss: {"loss": loss.total},
        OptimizerSetup(optimizer, config, 10, torch.amp.GradScaler("cpu", enabled=False)),
        Execution(world, "fp32", Speed(flat, False, False)),
    )


def walk(steps: TrainStep, numbers: range) -> None:
    for step in numbers:
        steps.forward_backward([(step, toy_batch([16, 9], seed=step))])
        steps.optimizer_step(step)
        steps.synchronize()
