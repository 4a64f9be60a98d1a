"""A generator that learns nothing: it proposes, and nothing reaches it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from electra.model.shape import EncoderShape, GeneratorShape
from electra.objectives.settings import ReplacedTokenDetectionConfig
from tests.conftest import toy_batch
from tests.objectives.test_objectives import SHAPE, objective, seeded

FROZEN = ReplacedTokenDetectionConfig(
    generator_training="frozen", generator=GeneratorShape(tie="none", fraction=1.0)
)
BATCH = toy_batch([16, 9, 12])


def test_the_loss_is_the_discriminators_alone_and_the_generators_is_still_reported():
    model = objective(FROZEN)
    as_wide = replace(FROZEN.generator, embedding=SHAPE.embedding)
    loss, usual = (
        model(BATCH, seeded()),
        objective(ReplacedTokenDetectionConfig(generator=as_wide)),
    )
    assert loss.total.item() == pytest.approx(50 * loss.parts["rtd"].item())
    assert loss.parts["mlm"].item() == pytest.approx(usual(BATCH, seeded()).parts["mlm"].item())


def test_no_gradient_reaches_it_and_every_one_reaches_the_discriminator():
    model = objective(FROZEN)
    model(BATCH, seeded()).total.backward()
    assert all(p.grad is None and not p.requires_grad for p in model.generator.parameters())
    assert all(p.grad is not None and p.grad.any() for p in model.discriminator.parameters())


def test_it_has_the_embedding_width_of_its_first_stage_unless_the_settings_say_otherwise():
    assert SHAPE.embedding != SHAPE.width
    assert FROZEN.generator_settings(SHAPE).beside(SHAPE) == SHAPE
    own = replace(FROZEN, generator=replace(FROZEN.generator, embedding=SHAPE.width))
    assert own.generator_settings(SHAPE).beside(SHAPE).embedding == SHAPE.width


@pytest.mark.parametrize("mode", ["as built", "train", "eval and train"])
def test_it_never_drops_out_while_the_discriminator_does(mode):
    shape = EncoderShape(
        **{
            field: getattr(SHAPE, field)
            for field in ("layers", "width", "heads", "feedforward", "embedding", "positions")
        },
        dropout=0.5,
    )
    model = objective(FROZEN, shape=shape)
    if mode != "as built":
        model = model.eval().train() if "eval" in mode else model.train()
    assert model.training
    assert model.discriminator.training
    assert not any(part.training for part in model.generator.modules())
    torch.manual_seed(1)
    first = model.predict(BATCH, seeded())
    torch.manual_seed(2)
    second = model.predict(BATCH, seeded())
    assert first.mlm.logits.equal(second.mlm.logits)
    assert not first.disc_logits.equal(second.disc_logits)


@pytest.mark.parametrize("tie", ["embeddings", "all"])
def test_what_the_discriminator_would_change_cannot_be_frozen(tie):
    with pytest.raises(
        ValueError, match=rf"change what generator\.tie='{tie}' shares; set .* to 'none'"
    ):
        ReplacedTokenDetectionConfig(
            generator_training="frozen", generator=GeneratorShape(tie=tie, fraction=1.0)
        )


@pytest.mark.parametrize("kind", ["unigram", "uniform"])
def test_chance_cannot_be_frozen(kind):
    with pytest.raises(
        ValueError, match=rf"generator\.kind='{kind}' draws by chance and never learns"
    ):
        ReplacedTokenDetectionConfig(
            generator_training="frozen", generator=GeneratorShape(kind=kind, tie="none")
        )
