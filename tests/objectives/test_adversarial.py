"""A generator that learns to fool: REINFORCE's gradient is the exact one but for the noise of its
samples.
"""

from __future__ import annotations

import math

import pytest
import torch

from electra.model.shape import EncoderShape, GeneratorShape
from electra.objectives.adversarial import BASELINE_WEIGHT
from electra.objectives.corruption import mask_tokens, masked_counts, replace_tokens
from electra.objectives.rtd import rtd_token_loss
from electra.objectives.settings import Masking, ReplacedTokenDetectionConfig
from tests.conftest import ToyVocabulary, toy_batch
from tests.objectives.test_objectives import objective, seeded

UNTIED = GeneratorShape(tie="none", fraction=0.5)
BATCH = toy_batch([16, 9, 12])


def adversarial(**settings):
    return ReplacedTokenDetectionConfig(generator_training="adversarial", **settings)


def learning(model) -> set[str]:
    """The parts that a gradient reaches."""
    return {
        name.split(".")[0]
        for name, p in model.named_parameters()
        if p.grad is not None and p.grad.any()
    }


# ---- the loss, by hand ---------------------------------------------------------------------------


@pytest.mark.parametrize("draws", ["distinct", "official"])
def test_the_loss_is_a_plain_recomputation_token_by_token(draws):
    model = objective(
        adversarial(generator_weight=0.7, masking=Masking(rate=0.3, draws=draws))
    ).double()
    loss, output = model(BATCH, seeded()), model.predict(BATCH, seeded())
    weight, bias = model.baseline.weight[0], model.baseline.bias[0]
    hidden = model.generator.encoder(
        output.masked.input_ids, BATCH.token_type_ids, BATCH.attention_mask
    )
    rewards, errors, fooled = [], [], []
    for row, place in output.masked.scored.nonzero().tolist():
        position, word = output.masked.positions[row, place], output.sampled[row, place]
        original = (
            output.disc_logits[row, position].neg().sigmoid()
        )  # D: the prob that it is the original
        is_original = output.corrupted.input_ids[row, position] == BATCH.input_ids[row, position]
        rewards.append(-(original if is_original else 1 - original).log().item())
        expected = (hidden[row, position] @ weight + bias).item()
        errors.append((rewards[-1] - expected) ** 2)
        prob = output.mlm.logits[row, place].softmax(-1)[word].item()
        fooled.append((rewards[-1] - expected) * -math.log(prob))
    assert len(rewards) == 4 + 3 + 4
    reward, error, fooling = (sum(each) / len(each) for each in (rewards, errors, fooled))
    assert loss.parts["reward"].item() == pytest.approx(reward, rel=1e-6)
    assert loss.parts["baseline"].item() == pytest.approx(error, rel=1e-5)
    expected = 50 * loss.parts["rtd"].item() + 0.7 * fooling + BASELINE_WEIGHT * error
    assert loss.total.item() == pytest.approx(expected, rel=1e-6)
    assert list(loss.parts) == ["mlm", "rtd", "reward", "baseline"]


def test_the_discriminator_and_the_masks_are_those_of_the_joint_objective():
    joint, ours = objective(ReplacedTokenDetectionConfig()), objective(adversarial())
    theirs, parts = (model(BATCH, seeded()).parts for model in (joint, ours))
    assert (parts["rtd"], parts["mlm"]) == (theirs["rtd"], theirs["mlm"])


def test_shares_of_the_micro_batches_add_up_to_the_loss_of_the_whole_batch():
    model, whole = objective(adversarial()), toy_batch([16, 5, 7, 3])
    parts = [
        whole._replace(
            input_ids=whole.input_ids[i : i + 2],
            token_type_ids=whole.token_type_ids[i : i + 2],
            lengths=whole.lengths[i : i + 2],
        )
        for i in (0, 2)
    ]
    weights = [int(masked_counts(part.lengths, Masking(), length=16).sum()) for part in parts]
    for name in ("reward", "baseline"):
        shares = [model(part, seeded(i)).parts[name].item() for i, part in enumerate(parts)]
        alone = [
            model(part._replace(step_lengths=part.lengths), seeded(i)).parts[name].item()
            for i, part in enumerate(parts)
        ]
        expected = sum(a * w for a, w in zip(alone, weights, strict=True)) / sum(weights)
        assert sum(shares) == pytest.approx(expected, rel=1e-6)


# ---- the gradient --------------------------------------------------------------------------------

THREE_WORDS = ToyVocabulary(
    size=3, pad=0, unk=0, cls=0, sep=0, mask=0
)  # the special one may be proposed, too
TINY = EncoderShape(
    layers=1,
    width=8,
    heads=2,
    feedforward=16,
    embedding=8,
    positions=6,
    dropout=0.0,
    attention_dropout=0.0,
)


def exact_gradient(model, batch, rng):
    """Of −E[R] over all three words at every masked position, by summing over them."""
    masked = mask_tokens(batch, model.config.masking, THREE_WORDS, rng)
    probs = model.generator(
        masked.input_ids, batch.token_type_ids, batch.attention_mask, masked.positions
    ).softmax(-1)
    expected = 0.0
    for word in range(3):
        sampled = torch.full_like(masked.labels, word)
        corrupted = replace_tokens(batch.input_ids, masked, sampled)
        with torch.no_grad():
            disc_logits = model.discriminator(
                corrupted.input_ids, batch.token_type_ids, batch.attention_mask
            )
        losses = rtd_token_loss(disc_logits, corrupted.is_replaced)
        rewards = losses.gather(1, masked.positions)
        expected = expected + (probs[..., word] * rewards).sum() / len(batch.input_ids)
    return torch.cat(
        [g.flatten() for g in torch.autograd.grad(-expected, list(model.generator.parameters()))]
    )


def test_the_gradient_is_that_of_the_exact_expectation_within_sampling_error(few_threads):
    """48 batches of 256 rows: the mean difference from the exact gradient, in units of its own
    standard error.
    """
    torch.manual_seed(0)
    config = adversarial(
        generator=GeneratorShape(tie="none", fraction=1.0),
        discriminator_weight=0.0,
        masking=Masking(keep=0.0),
    )
    model = config.build(
        encoder=TINY,
        vocabulary=THREE_WORDS,
        unigrams=torch.full((3,), 1 / 3),
    )
    with torch.no_grad():  # at their first values networks say the same of everything
        for parameter in [*model.generator.parameters(), *model.discriminator.parameters()]:
            if parameter.ndim > 1:
                parameter.mul_(15)
    input_ids = torch.zeros(256, 6, dtype=torch.long)
    input_ids[:, 1:5] = torch.randint(1, 3, (256, 4), generator=seeded())
    batch = toy_batch([6] * 256, length=6)._replace(input_ids=input_ids)
    exact, differences = [], []
    for seed in range(48):
        model.zero_grad()
        model(batch, seeded(seed)).total.backward()
        exact.append(exact_gradient(model, batch, seeded(seed)))
        differences.append(
            torch.cat([p.grad.flatten() for p in model.generator.parameters()]) - exact[-1]
        )
    mean, error = torch.stack(differences).mean(0), torch.stack(differences).std(0) / math.sqrt(48)
    moving = error > 1e-8
    standard = mean[moving] / error[moving]
    assert standard.abs().max() < 5
    assert standard.square().mean() < 2
    assert torch.stack(exact).mean(0).norm() > 8 * error.norm(), (
        "far from zero, and so worth agreeing with"
    )


def test_the_baseline_learns_alone_and_reaches_nothing_else():
    model = objective(adversarial(generator_weight=0.0, discriminator_weight=0.0))
    model(BATCH, seeded()).total.backward()
    assert learning(model) == {"baseline"}


def test_the_baseline_descends_its_own_error_and_nothing_else():
    model = objective(adversarial()).double()
    model(BATCH, seeded()).total.backward()
    output = model.predict(BATCH, seeded())
    masked = output.masked
    losses = rtd_token_loss(output.disc_logits, output.corrupted.is_replaced)
    rewards = losses.gather(1, masked.positions)[masked.scored]
    hidden = output.mlm.hidden_states[masked.scored].detach()
    errors = (hidden @ model.baseline.weight[0] + model.baseline.bias - rewards).detach()
    weight = 2 * BASELINE_WEIGHT
    assert model.baseline.weight.grad[0].allclose(weight * (errors[:, None] * hidden).mean(0))
    assert model.baseline.bias.grad.item() == pytest.approx(weight * errors.mean().item())


def test_the_generator_learns_by_the_reward_alone_and_the_discriminator_is_not_touched_by_it():
    model = objective(adversarial(generator=UNTIED, discriminator_weight=0.0))
    model(BATCH, seeded()).total.backward()
    assert learning(model) == {"generator", "baseline"}
    with torch.no_grad():  # a baseline that foresees every reward leaves nothing to learn
        torch.nn.init.zeros_(model.discriminator.output.weight)
        torch.nn.init.zeros_(model.baseline.weight)
        model.baseline.bias.fill_(math.log(2))
    model.zero_grad()
    model(BATCH, seeded()).total.backward()
    assert all(p.grad.abs().max() < 1e-6 for p in model.generator.parameters())


# ---- what is kept, exported, refused -------------------------------------------------------------


def test_the_baseline_is_in_the_checkpoint_and_in_no_exported_network():
    model = objective(adversarial())
    exported = {id(p) for network in model.networks().values() for p in network.parameters()}
    assert [name for name, p in model.named_parameters() if id(p) not in exported] == [
        "baseline.weight",
        "baseline.bias",
    ]


def test_held_out_rows_tell_what_the_generator_lost():
    scores = objective(adversarial()).eval().measure(BATCH, seeded()).scores()
    assert {"mlm_loss", "mlm_accuracy", "generator_entropy", "auc"} <= scores.keys()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 2.0}, r"temperature=2\.0 samples from another distribution"),
        (
            {"generator": GeneratorShape(kind="unigram")},
            r"generator\.kind='unigram' draws by chance",
        ),
    ],
)
def test_what_cannot_be_reinforced_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        adversarial(**settings)
