"""The losses are what the paper writes down, and each reaches its network and only its network."""

from __future__ import annotations

import math

import pytest
import torch

from electra.model.shape import EncoderShape, GeneratorShape
from electra.objectives.corruption import mask_tokens, masked_counts
from electra.objectives.mlm import mlm_token_loss
from electra.objectives.settings import (
    AllTokensMLMConfig,
    MaskedLMConfig,
    Masking,
    ReplacedTokenDetectionConfig,
    ReplaceMLMConfig,
)
from tests.conftest import ToyVocabulary, toy_batch

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
VOCABULARY = ToyVocabulary()
UNIGRAMS = torch.arange(1, 51).float() / torch.arange(1, 51).sum()


def objective(config=None, *, shape=SHAPE, seed=0):
    torch.manual_seed(seed)
    config = config or ReplacedTokenDetectionConfig()
    return config.build(encoder=shape, vocabulary=VOCABULARY, unigrams=UNIGRAMS)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_loss_is_a_plain_recomputation_token_by_token():
    model, batch = objective().double(), toy_batch([16, 9, 12])
    loss = model(batch, seeded())
    output = model.predict(batch, seeded())
    losses, rtd_losses = [], []
    for row in range(3):
        for place in range(output.masked.positions.shape[1]):
            if output.masked.scored[row, place]:
                probs = output.mlm.logits[row, place].softmax(-1)
                losses.append(-probs[output.masked.labels[row, place]].log())
        for position in range(int(batch.lengths[row])):
            replaced = output.corrupted.input_ids[row, position] != batch.input_ids[row, position]
            prob = output.disc_logits[row, position].sigmoid()
            rtd_losses.append(-(prob if replaced else 1 - prob).log())
    mlm, rtd = sum(losses) / len(losses), sum(rtd_losses) / len(rtd_losses)
    assert len(rtd_losses) == 16 + 9 + 12
    # The losses are taken in float32 whatever the networks' precision.
    assert loss.parts["mlm"].item() == pytest.approx(mlm.item(), rel=1e-6)
    assert loss.parts["rtd"].item() == pytest.approx(rtd.item(), rel=1e-6)
    assert loss.total.item() == pytest.approx((mlm + 50 * rtd).item(), rel=1e-6)


@pytest.mark.parametrize("tie", ["none", "embeddings"])
def test_the_discriminators_gradient_stays_out_of_the_generators_body(tie):
    config = ReplacedTokenDetectionConfig(
        generator=GeneratorShape(tie=tie, fraction=0.5), generator_weight=0.0
    )
    model = objective(config)
    model(toy_batch([16, 12]), seeded()).total.backward()
    shared = {id(p) for p in model.discriminator.parameters()}
    for name, parameter in model.generator.named_parameters():
        if id(parameter) not in shared:
            assert parameter.grad is None or not parameter.grad.any(), name
    assert all(p.grad is not None and p.grad.any() for p in model.discriminator.parameters())


def test_the_generators_gradient_stays_out_of_the_discriminators_body():
    model = objective(ReplacedTokenDetectionConfig(discriminator_weight=0.0))
    model(toy_batch([16, 12]), seeded()).total.backward()
    shared = {id(p) for p in model.generator.parameters()}
    for name, parameter in model.discriminator.named_parameters():
        if id(parameter) not in shared:
            assert parameter.grad is None or not parameter.grad.any(), name
    assert model.generator.dense.weight.grad.any()


@pytest.mark.parametrize(
    "config", [ReplacedTokenDetectionConfig(), MaskedLMConfig()], ids=["rtd", "mlm"]
)
def test_shares_of_the_micro_batches_add_up_to_the_loss_of_the_whole_batch(config):
    """Rows of unequal length: the mean of the micro-batches' means would be another number."""
    model, lengths = objective(config), [16, 5, 7, 3]
    whole = toy_batch(lengths)
    parts = [
        whole._replace(
            input_ids=whole.input_ids[i : i + 2],
            token_type_ids=whole.token_type_ids[i : i + 2],
            lengths=whole.lengths[i : i + 2],
        )
        for i in (0, 2)
    ]
    shares = [model(part, seeded(i)).total for i, part in enumerate(parts)]
    counted = [masked_counts(part.lengths, config.masking, length=16).sum() for part in parts]
    alone = [
        model(part._replace(step_lengths=part.lengths), seeded(i)) for i, part in enumerate(parts)
    ]
    mlm = sum(a.parts["mlm"] * n for a, n in zip(alone, counted, strict=True)) / sum(counted)
    expected = mlm
    if "rtd" in alone[0].parts:
        tokens = [part.lengths.sum() for part in parts]
        expected = mlm + 50 * sum(
            a.parts["rtd"] * n for a, n in zip(alone, tokens, strict=True)
        ) / sum(tokens)
    assert sum(shares).item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("kind", ["unigram", "uniform"])
def test_a_generator_without_a_network_replaces_words_with_words(kind):
    model = objective(ReplacedTokenDetectionConfig(generator=GeneratorShape(kind=kind)))
    batch = toy_batch([16] * 64)
    output = model.predict(batch, seeded())
    drawn = output.corrupted.input_ids[output.corrupted.is_replaced]
    assert (drawn >= 5).all(), "special tokens are never drawn"
    assert list(model.networks()) == ["discriminator"]
    assert list(model(batch, seeded()).parts) == ["rtd"]
    share_of_rare = (drawn < 28).float().mean().item()
    expected = UNIGRAMS[5:28].sum() / UNIGRAMS[5:].sum() if kind == "unigram" else 23 / 45
    assert share_of_rare == pytest.approx(float(expected), abs=0.13)


def test_masked_lm_is_the_mean_cross_entropy_at_the_chosen_positions():
    model, batch = objective(MaskedLMConfig()), toy_batch([16, 10])
    loss = model(batch, seeded())
    masked = mask_tokens(batch, model.config.masking, VOCABULARY, seeded())
    everywhere = torch.arange(16).expand(2, 16)
    probs = model.encoder(
        masked.input_ids, batch.token_type_ids, batch.attention_mask, everywhere
    ).log_softmax(-1)
    losses = [
        -probs[row, position, batch.input_ids[row, position]]
        for row in range(2)
        for position in masked.positions[row][masked.scored[row]]
    ]
    assert len(losses) == round(0.15 * 16) + round(0.15 * 10)
    assert loss.total.item() == pytest.approx((sum(losses) / len(losses)).item(), rel=1e-6)
    assert list(model.networks()) == ["encoder"]


@pytest.mark.parametrize(
    "config", [ReplacedTokenDetectionConfig(), MaskedLMConfig()], ids=["rtd", "mlm"]
)
def test_the_same_rng_gives_the_same_measure_and_the_trivial_scores_beside_it(config):
    model, batch = objective(config).eval(), toy_batch([16, 12, 9])
    first, second = (model.measure(batch, seeded(3)).scores() for _ in range(2))
    assert first == second
    assert first["baseline_mlm_loss"] > 0
    assert 0 <= first["mlm_accuracy"] <= 1


@pytest.mark.parametrize(
    "config",
    [ReplacedTokenDetectionConfig, ReplaceMLMConfig, AllTokensMLMConfig],
    ids=["rtd", "replace", "all-tokens"],
)
def test_the_generators_entropy_is_that_of_its_words_at_the_masked_positions(config):
    model, batch = objective(config()).eval(), toy_batch([16, 12, 9])
    generated = model.generate(batch, seeded(), keep_logits=True)
    entropies = [
        -sum(p * math.log(p) for p in generated.mlm.logits[row, place].softmax(-1).tolist())
        for row, place in generated.masked.scored.nonzero().tolist()
    ]
    scores = model.measure(batch, seeded()).scores()
    assert scores["generator_entropy"] == pytest.approx(sum(entropies) / len(entropies), rel=1e-5)


def test_chance_has_no_entropy_to_report_and_neither_has_a_masked_lm():
    for config in (
        ReplacedTokenDetectionConfig(generator=GeneratorShape(kind="unigram")),
        MaskedLMConfig(),
    ):
        assert (
            "generator_entropy"
            not in objective(config).eval().measure(toy_batch([16]), seeded()).scores()
        )


def test_the_trivial_guesser_copies_what_it_is_shown_and_otherwise_says_the_commonest_word():
    model, batch = (
        objective(MaskedLMConfig(masking=Masking(rate=0.5, keep=0.5))).eval(),
        toy_batch([16] * 200),
    )
    masked = mask_tokens(batch, model.config.masking, VOCABULARY, seeded())
    hidden, kept, commonest = 0, 0, 0
    for row, position in zip(*masked.scored.nonzero().T.tolist(), strict=True):
        original, read = (
            masked.labels[row, position],
            masked.input_ids[row, masked.positions[row, position]],
        )
        kept += int(read == original)
        hidden += int(read != original)
        commonest += int(read != original and original == UNIGRAMS.argmax())
    scores = model.measure(batch, seeded()).scores()
    assert scores["baseline_mlm_accuracy"] == pytest.approx((kept + commonest) / (kept + hidden))
    assert kept / (kept + hidden) == pytest.approx(0.5, abs=0.05)


def test_a_position_drawn_twice_weighs_twice():
    model, batch = objective(MaskedLMConfig(masking=Masking(draws="official"))), toy_batch([16])
    masked = mask_tokens(batch, model.config.masking, VOCABULARY, seeded())
    twice = masked._replace(
        positions=masked.positions[:, :1].expand(1, 2),
        labels=masked.labels[:, :1].expand(1, 2),
        scored=torch.tensor([[True, True]]),
    )
    losses = mlm_token_loss(
        model.encoder(
            masked.input_ids, batch.token_type_ids, batch.attention_mask, twice.positions
        ),
        twice,
    )
    assert losses.sum().item() == pytest.approx(2 * losses[0, 0].item())


@pytest.mark.parametrize("kind", ["network", "unigram", "uniform"])
@pytest.mark.parametrize(
    "config", [ReplacedTokenDetectionConfig, ReplaceMLMConfig, AllTokensMLMConfig]
)
def test_where_the_correct_word_is_disallowed_every_masked_position_is_replaced(config, kind):
    model = objective(config(generator=GeneratorShape(kind=kind), disallow_correct=True))
    if kind == "network":
        model.generator.bias.data[7] = 50.0  # a generator that is all but sure
    batch = toy_batch([16] * 32)
    batch = batch._replace(input_ids=torch.where(batch.input_ids >= 5, 7, batch.input_ids))
    generated = model.generate(batch, seeded())
    replaced = generated.corrupted.is_replaced.gather(1, generated.masked.positions)
    assert replaced[generated.masked.scored].all()
    assert generated.corrupted.is_replaced.sum() == generated.masked.scored.sum()
    if kind != "network":
        assert (generated.corrupted.input_ids[generated.corrupted.is_replaced] >= 5).all(), (
            "special tokens are never drawn"
        )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scored": "masked"}, "every scored token would be a replacement"),
        ({"masking": Masking(draws="official")}, r"goes with masking\.draws='distinct'"),
    ],
)
def test_disallowing_the_correct_word_is_refused_where_it_means_nothing(settings, message):
    with pytest.raises(ValueError, match=message):
        ReplacedTokenDetectionConfig(disallow_correct=True, **settings)


@pytest.mark.parametrize("config", [ReplacedTokenDetectionConfig, MaskedLMConfig])
def test_a_preference_for_rare_words_goes_by_the_corpus_of_the_objective(config):
    masking = Masking(rate=0.25, keep=0.0, prefer="rare")
    model, batch = objective(config(masking=masking)), toy_batch([16, 12])
    masked = mask_tokens(batch, masking, VOCABULARY, seeded(), unigrams=UNIGRAMS)
    guesser = getattr(model, "generator", None) or model.encoder
    losses = mlm_token_loss(
        guesser(masked.input_ids, batch.token_type_ids, batch.attention_mask, masked.positions),
        masked,
    )
    expected = (losses.sum() / masked.scored.sum()).item()
    assert model(batch, seeded()).parts["mlm"].item() == pytest.approx(expected, rel=1e-6)
