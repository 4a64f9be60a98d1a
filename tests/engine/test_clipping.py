"""Each network's gradient may be clipped by its own norm."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from electra.engine.clipping import clip_groups
from electra.engine.settings import OptimizerConfig
from electra.model.shape import GeneratorShape
from electra.objectives.objective import Objective
from electra.objectives.settings import (
    AllTokensMLMConfig,
    MaskedLMConfig,
    ObjectiveConfig,
    ReplacedTokenDetectionConfig,
)
from tests.conftest import toy_batch, toy_objective
from tests.engine.steps import SHAPE, build_step, needs_triton

# Shorter than every group's gradient, so that all are clipped.
EACH = OptimizerConfig(learning_rate=1e-2, warmup_steps=2, max_grad_norm=1e-3, clip="each")


def build(config: ObjectiveConfig | None = None, *, tie: str = "embeddings") -> Objective:
    generator = GeneratorShape(tie=tie, fraction=1.0 if tie == "all" else 0.5)
    config = config or ReplacedTokenDetectionConfig(generator=generator)
    return toy_objective(config, SHAPE)


def grouped_names(objective: Objective) -> list[set[str]]:
    """The networks and, of what they share, the parts, group by group."""
    names = {id(p): name for name, p in objective.named_parameters()}
    return [
        {names[id(p)].replace(".encoder.embeddings", " embeddings").split(".")[0] for p in group}
        for group in clip_groups(objective, EACH)
    ]


@pytest.mark.parametrize(
    ("tie", "expected"),
    [
        (
            "none",
            [{"generator", "generator embeddings"}, {"discriminator", "discriminator embeddings"}],
        ),
        ("embeddings", [{"generator"}, {"generator embeddings"}, {"discriminator"}]),
    ],
)
def test_what_both_networks_move_is_clipped_by_its_own_norm(
    tie: str, expected: list[set[str]]
) -> None:
    objective = build(tie=tie)
    assert grouped_names(objective) == expected
    grouped = [id(p) for group in clip_groups(objective, EACH) for p in group]
    assert sorted(grouped) == sorted(id(p) for p in objective.parameters())


def test_a_disentangled_table_is_the_generators_and_the_difference_the_discriminators() -> None:
    objective = build(tie="gradient-disentangled")
    generators, discriminators = clip_groups(objective, EACH)
    by_name = dict(objective.named_parameters())
    table = "generator.encoder.embeddings.word_embeddings.weight"
    delta = "discriminator.encoder.embeddings.word_embeddings.delta"
    assert any(p is by_name[table] for p in generators)
    assert any(p is by_name[delta] for p in discriminators)


def test_an_objective_of_one_network_has_one_norm_and_a_gate_is_its_encoders() -> None:
    assert len(clip_groups(build(MaskedLMConfig()), EACH)) == 1
    with_gate = clip_groups(build(AllTokensMLMConfig()), EACH)
    assert len(with_gate) == 3


@pytest.mark.parametrize("name", ["adamw", pytest.param("muon", marks=needs_triton)])
@pytest.mark.parametrize("flat", [False, pytest.param(True, marks=needs_triton)])
def test_every_group_is_scaled_to_the_norm_and_the_logged_norm_is_of_all(
    flat: bool, name: str
) -> None:
    config = replace(EACH, name=name)
    objective = build()
    steps = build_step(objective, config, flat=flat)
    steps.forward_backward([(1, toy_batch([16, 9]))])
    before = {p: p.grad.clone() for p in objective.parameters()}
    steps.optimizer_step(1)
    whole = torch.cat([gradient.flatten() for gradient in before.values()]).norm()
    assert steps.synchronize() == pytest.approx(float(whole), rel=1e-5)
    for group in clip_groups(objective, config):
        norm = torch.cat([before[p].flatten() for p in group]).norm()
        assert norm > config.max_grad_norm
        for parameter in group:
            expected = before[parameter] * (config.max_grad_norm / (norm + 1e-6))
            assert torch.allclose(parameter.grad, expected, rtol=1e-5, atol=0)


@needs_triton
def test_flat_updates_with_separate_norms_are_the_plain_ones() -> None:
    plain, flat = build(), build()
    for objective in (plain, flat):
        steps = build_step(objective, EACH, flat=objective is flat)
        for step in range(1, 4):
            steps.forward_backward([(step, toy_batch([16, 9], seed=step))])
            steps.optimizer_step(step)
            steps.synchronize()
    for (name, mine), theirs in zip(flat.named_parameters(), plain.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=2e-5), name
