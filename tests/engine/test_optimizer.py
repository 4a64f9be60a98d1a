"""The update is the paper's formula, the schedule is the reference code's, and no parameter is
forgotten.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from electra.engine.optimizer import (
    build_optimizer,
    largest_first_update,
    layer_lr_scale,
    learning_rate_factor,
    set_learning_rate,
)
from electra.engine.settings import OptimizerConfig
from electra.pretraining.recipe import load_recipe
from tests.conftest import TOY_FLAGS, toy_batch, toy_objective


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.matrix = nn.Parameter(torch.randn(3, 4, dtype=torch.float64))
        self.bias = nn.Parameter(torch.randn(4, dtype=torch.float64))


@pytest.mark.parametrize("bias_correction", [False, True])
def test_the_update_equals_the_plain_formula(bias_correction):
    config = OptimizerConfig(
        learning_rate=0.1, warmup_steps=2, weight_decay=0.2, bias_correction=bias_correction
    )
    model = Toy()
    optimizer = build_optimizer(model, config)
    plain = {name: p.detach().clone() for name, p in model.named_parameters()}
    m, v = ({name: torch.zeros_like(p) for name, p in plain.items()} for _ in range(2))
    for step in range(1, 8):
        rate = set_learning_rate(optimizer, config, step=step, max_steps=10)
        assert rate == pytest.approx(0.1 * (1 - (step - 1) / 10) * min(1, step / 2))
        for number, (name, parameter) in enumerate(model.named_parameters()):
            torch.manual_seed(100 * step + number)
            gradient = torch.randn_like(parameter)
            parameter.grad = gradient.clone()
            m[name] = 0.9 * m[name] + 0.1 * gradient
            v[name] = 0.999 * v[name] + 0.001 * gradient**2
            first = m[name] / (1 - 0.9**step) if bias_correction else m[name]
            second = v[name] / (1 - 0.999**step) if bias_correction else v[name]
            decay = 0.2 if name == "matrix" else 0.0
            plain[name] = plain[name] - rate * (
                first / (second.sqrt() + 1e-6) + decay * plain[name]
            )
        optimizer.step()
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter, plain[name], rtol=1e-9, atol=1e-12), name


@pytest.mark.parametrize(
    ("warmup_steps", "largest"), [(0, 6.57), (12, 6.57), (100, 3.24), (400, 1.74), (1000, 1.26)]
)
def test_the_first_updates_without_bias_correction_are_larger_than_the_rate(warmup_steps, largest):
    """An equal gradient in every step: Adam's update is its rate, if the bias is corrected."""
    config = OptimizerConfig(learning_rate=1.0, warmup_steps=warmup_steps, schedule="constant")
    assert largest_first_update(config) == pytest.approx(largest, abs=0.01)
    assert largest_first_update(replace(config, bias_correction=True)) == 1.0
    slow = replace(config, betas=(0.9, 0.99999), warmup_steps=10_000)
    assert largest_first_update(slow) == pytest.approx(3.24, abs=0.01)
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = torch.optim.AdamW([{"params": [weight], "lr_scale": 1.0, "decay": 0.0}])
    updates, before = [], 0.0
    for step in range(1, 1001):
        set_learning_rate(optimizer, config, step=step, max_steps=5000)
        weight.grad = torch.full_like(weight, 1e3)
        optimizer.step()
        updates.append(abs(weight.item() - before))
        before = weight.item()
    assert max(updates) == pytest.approx(largest, abs=0.01)


def test_the_schedule_multiplies_warm_up_and_decay_and_every_update_has_a_rate():
    config = OptimizerConfig(warmup_steps=10_000)
    expected = {
        1: 1e-4,
        5_001: 0.5001 * 0.995,
        10_001: 0.99,
        500_001: 0.5,
        1_000_000: 1e-6,
    }
    assert {
        step: learning_rate_factor(config, step=step, max_steps=1_000_000) for step in expected
    } == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant", "wsd"])
def test_the_only_update_of_a_run_of_one_step_has_the_full_rate(schedule):
    config = OptimizerConfig(warmup_steps=1, schedule=schedule)
    assert learning_rate_factor(config, step=1, max_steps=1) == 1


def test_the_decay_is_that_of_the_official_code_which_counts_from_zero():
    config = OptimizerConfig(warmup_steps=0)
    ours = [learning_rate_factor(config, step=step, max_steps=5) for step in range(1, 6)]
    assert ours == pytest.approx([1 - global_step / 5 for global_step in range(5)])


def test_the_other_schedules_end_where_they_should():
    base = OptimizerConfig(warmup_steps=10, decay_ratio=0.4)
    at = {
        name: [
            learning_rate_factor(replace(base, schedule=name), step=step, max_steps=100)
            for step in (5, 51, 81, 100)
        ]
        for name in ("constant", "cosine", "wsd")
    }
    assert at["constant"] == pytest.approx([0.5, 1, 1, 1])
    assert at["wsd"] == pytest.approx([0.5, 1, 0.5, 0.025])
    half_cosine = [(1 - math.cos(left * math.pi)) / 2 for left in (0.96, 0.5, 0.2, 0.01)]
    assert at["cosine"] == pytest.approx([0.5 * half_cosine[0], *half_cosine[1:]])


@pytest.mark.parametrize(
    "flags", [[], ["--generator.tie", "none"], ["--generator.tie", "all", "--fraction", "1.0"]]
)
def test_every_parameter_is_in_exactly_one_group_and_moves_in_the_first_step(flags):
    flags = [word.replace("--generator", "--objective.generator") for word in flags]
    recipe = load_recipe("tiny", flags=[*TOY_FLAGS, *flags])
    objective = toy_objective(recipe.objective, recipe.encoder)
    optimizer = build_optimizer(objective, recipe.optimizer)
    grouped = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(grouped) == sorted(id(p) for p in objective.parameters())
    before = {name: p.detach().clone() for name, p in objective.named_parameters()}
    objective(toy_batch([32] * 4, length=32)).total.backward()
    set_learning_rate(optimizer, recipe.optimizer, step=1, max_steps=20)
    optimizer.step()
    still = [name for name, p in objective.named_parameters() if p.equal(before[name])]
    assert still == []


def test_only_norms_and_biases_are_spared_from_decay():
    recipe = load_recipe("small")
    objective = toy_objective(recipe.objective, recipe.encoder)
    decayed, spared = build_optimizer(objective, recipe.optimizer).param_groups
    names = {id(p): name for name, p in objective.named_parameters()}
    assert all("norm" in names[id(p)] or "bias" in names[id(p)] for p in spared["params"])
    assert not any("norm" in names[id(p)] or "bias" in names[id(p)] for p in decayed["params"])
    assert any("embeddings.word_embeddings" in names[id(p)] for p in decayed["params"])


def test_each_layer_learns_less_than_the_one_above_and_the_head_the_full_rate():
    names = (
        "head.output.weight",
        "encoder.final_norm.weight",
        "encoder.blocks.1.expand.weight",
        "encoder.blocks.0.expand.bias",
        "encoder.projection.weight",
        "encoder.embeddings.word_embeddings.weight",
    )
    assert [layer_lr_scale(name, layers=2, decay=0.5) for name in names] == [
        1,
        0.5,
        0.5,
        0.25,
        0.125,
        0.125,
    ]


def test_the_official_code_counts_one_layer_too_many_below_the_head():
    # d² for the top layer and d^(n+2) for the embeddings of n layers
    names = (
        "head.output.weight",
        "encoder.blocks.11.expand.weight",
        "encoder.embeddings.norm.weight",
    )
    assert [
        layer_lr_scale(name, layers=12, decay=0.8, official=True) for name in names
    ] == pytest.approx([1, 0.8**2, 0.8**14])
