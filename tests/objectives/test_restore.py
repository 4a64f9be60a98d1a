"""The ablations between BERT and ELECTRA: ELECTRA 15 %, Replace MLM and All-Tokens MLM."""

from __future__ import annotations

import math

import pytest
import torch

from electra.model import networks
from electra.model.shape import GeneratorShape
from electra.objectives import restore
from electra.objectives.corruption import masked_counts
from electra.objectives.restore import mixture, mixture_loss
from electra.objectives.settings import (
    AllTokensMLMConfig,
    Masking,
    ReplacedTokenDetectionConfig,
    ReplaceMLMConfig,
)
from tests.conftest import toy_batch
from tests.objectives.test_objectives import SHAPE, UNIGRAMS, objective, seeded

RESTORING = pytest.mark.parametrize(
    "config", [ReplaceMLMConfig, AllTokensMLMConfig], ids=["replace", "all-tokens"]
)
BATCH = toy_batch([16, 9, 12])


def mean(values):
    return (sum(values) / len(values)).item()


def probs_at_every_position(model, generated):
    """Return the probabilities of the encoder that reads the corrupted text."""
    return model.encoder.logits(
        generated.corrupted.input_ids, BATCH.token_type_ids, BATCH.attention_mask
    ).softmax(-1)


def masked_places(masked):
    """(row, position) of each draw that counts."""
    return [
        (row, int(masked.positions[row, place])) for row, place in masked.scored.nonzero().tolist()
    ]


# ---- ELECTRA 15 % --------------------------------------------------------------------------------


@pytest.mark.parametrize("draws", ["distinct", "official"])
def test_the_masked_positions_are_scored_and_no_others(draws):
    config = ReplacedTokenDetectionConfig(scored="masked", masking=Masking(rate=0.3, draws=draws))
    model = objective(config).double()
    loss, output = model(BATCH, seeded()), model.predict(BATCH, seeded())
    places, rtd_losses = masked_places(output.masked), []
    for row, position in places:
        prob = output.disc_logits[row, position].sigmoid()
        rtd_losses.append(
            -(prob if output.corrupted.is_replaced[row, position] else 1 - prob).log()
        )
    assert len(places) == 4 + 3 + 4, "30 % of each row, but no more than 4 of 16"
    assert loss.parts["rtd"].item() == pytest.approx(mean(rtd_losses), rel=1e-6)
    assert loss.total.item() == pytest.approx(
        (loss.parts["mlm"] + 50 * mean(rtd_losses)).item(), rel=1e-6
    )


def test_a_logit_elsewhere_changes_neither_loss_nor_scores():
    model = objective(ReplacedTokenDetectionConfig(scored="masked")).eval()
    output = model.predict(BATCH, seeded())
    weights = model.token_weights(output.masked, BATCH)
    assert sorted(map(tuple, weights.nonzero().tolist())) == sorted(masked_places(output.masked))
    scores = model.measure(BATCH, seeded()).scores()
    hidden = [bool(output.corrupted.is_replaced[place]) for place in masked_places(output.masked)]
    assert scores["replaced_fraction"] == pytest.approx(sum(hidden) / len(hidden))


# ---- the losses, by hand -------------------------------------------------------------------------


def test_replace_mlm_is_the_mean_cross_entropy_at_the_masked_positions_of_the_corrupted_text():
    model = objective(ReplaceMLMConfig(generator_weight=0.5, encoder_weight=3.0)).double()
    loss, generated = model(BATCH, seeded()), model.generate(BATCH, seeded())
    probs = probs_at_every_position(model, generated)
    token_losses = [
        -probs[row, position, BATCH.input_ids[row, position]].log()
        for row, position in masked_places(generated.masked)
    ]
    assert not (generated.corrupted.input_ids == model.vocabulary.mask).any()
    assert loss.parts["restore"].item() == pytest.approx(mean(token_losses), rel=1e-6)
    assert loss.total.item() == pytest.approx(
        0.5 * loss.parts["mlm"].item() + 3 * mean(token_losses), rel=1e-6
    )


def test_all_tokens_mlm_is_the_mean_cross_entropy_of_the_mixture_at_every_real_token():
    model = objective(AllTokensMLMConfig()).double()
    loss, generated = model(BATCH, seeded()), model.generate(BATCH, seeded())
    probs = probs_at_every_position(model, generated)
    gates = (
        model.gate(
            model.encoder.encoder(
                generated.corrupted.input_ids, BATCH.token_type_ids, BATCH.attention_mask
            )
        )
        .squeeze(-1)
        .sigmoid()
    )
    token_losses = []
    for row, position in BATCH.attention_mask.nonzero().tolist():
        original, gate = BATCH.input_ids[row, position], gates[row, position]
        copied = float(original == generated.corrupted.input_ids[row, position])
        token_losses.append(-(gate * copied + (1 - gate) * probs[row, position, original]).log())
    assert len(token_losses) == 16 + 9 + 12
    assert generated.corrupted.is_replaced.any()
    assert loss.parts["restore"].item() == pytest.approx(mean(token_losses), rel=1e-6)
    assert loss.total.item() == pytest.approx(
        loss.parts["mlm"].item() + mean(token_losses), rel=1e-6
    )


def test_the_generators_part_is_that_of_replaced_token_detection():
    """What all three share is one piece of code, fed by the same rng."""
    losses = []
    for config in (ReplacedTokenDetectionConfig(), ReplaceMLMConfig(), AllTokensMLMConfig()):
        model = objective(config)
        torch.nn.init.zeros_(
            model.generator.dense.weight
        )  # so that its words depend on its bias alone
        losses.append(model(BATCH, seeded()).parts["mlm"].item())
    assert losses[0] == losses[1] == losses[2]


@RESTORING
def test_shares_of_the_micro_batches_add_up_to_the_loss_of_the_whole_batch(config):
    model, whole = objective(config()), toy_batch([16, 5, 7, 3])
    parts = [
        whole._replace(
            input_ids=whole.input_ids[i : i + 2],
            token_type_ids=whole.token_type_ids[i : i + 2],
            lengths=whole.lengths[i : i + 2],
        )
        for i in (0, 2)
    ]
    shares = [model(part, seeded(i)).parts["restore"].item() for i, part in enumerate(parts)]
    alone = [
        model(part._replace(step_lengths=part.lengths), seeded(i)).parts["restore"].item()
        for i, part in enumerate(parts)
    ]
    weights = [
        int(part.lengths.sum())
        if config is AllTokensMLMConfig
        else int(masked_counts(part.lengths, Masking(), length=16).sum())
        for part in parts
    ]
    expected = sum(a * w for a, w in zip(alone, weights, strict=True)) / sum(weights)
    assert sum(shares) == pytest.approx(expected, rel=1e-6)


# ---- the mixture ---------------------------------------------------------------------------------


def test_the_mixture_sums_to_one_over_the_vocabulary_and_its_loss_is_the_originals():
    logits, gates = (
        torch.randn(6, 50, generator=seeded()) * 5,
        torch.tensor([-80.0, -2.0, 0.0, 0.5, 3.0, 80.0]),
    )
    read, originals = torch.tensor([7, 7, 7, 9, 9, 9]), torch.tensor([7, 7, 8, 9, 8, 9])
    log_probs = mixture(logits, gates, read)
    assert log_probs.exp().sum(-1).tolist() == pytest.approx([1.0] * 6, abs=1e-5)
    token_losses = -logits.log_softmax(-1).gather(1, originals[:, None]).squeeze(1)
    losses = mixture_loss(token_losses, gates, is_kept=read == originals)
    assert torch.allclose(losses, -log_probs.gather(1, originals[:, None]).squeeze(1), atol=1e-5)


@pytest.mark.parametrize("gate", [-200.0, 200.0])
def test_a_gate_that_is_sure_keeps_losses_and_gradients_finite(gate):
    gates = torch.tensor([gate, gate], requires_grad=True)
    token_losses = torch.tensor([150.0, 150.0], requires_grad=True)
    losses = mixture_loss(token_losses, gates, is_kept=torch.tensor([True, False]))
    losses.sum().backward()
    expected = [0.0, 350.0] if gate > 0 else [150.0, 150.0]
    assert losses.tolist() == pytest.approx(expected, abs=1e-4)
    assert all(math.isfinite(g) for g in [*gates.grad.tolist(), *token_losses.grad.tolist()])


def test_chunks_of_rows_have_the_losses_and_gradients_of_the_whole(monkeypatch):
    found = []
    for rows in (5, 1000):
        for module in (networks, restore):
            monkeypatch.setattr(module, "LOGITS_CHUNK", rows)
        model = objective(AllTokensMLMConfig()).double()
        loss = model(BATCH, seeded())
        loss.total.backward()
        scores = model.measure(BATCH, seeded()).scores()
        found.append((loss.total, [p.grad for p in model.parameters()], scores))
    (ours, gradients, scores), (theirs, expected, others) = found
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-7)
    assert scores == pytest.approx(others, rel=1e-6)
    assert all(
        torch.allclose(*pair, rtol=1e-5, atol=1e-8)
        for pair in zip(gradients, expected, strict=True)
    )


def test_backward_keeps_the_logits_of_no_chunk(monkeypatch):
    monkeypatch.setattr(networks, "LOGITS_CHUNK", 8)
    model, kept = objective(AllTokensMLMConfig()), []
    predicted = torch.randn(48, 16, requires_grad=True)

    def keep(tensor):
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.encoder.token_loss(predicted, torch.arange(48))
    assert 8 * 50 not in kept
    assert 48 * 50 not in kept


# ---- who learns from what ------------------------------------------------------------------------


@RESTORING
@pytest.mark.parametrize("tie", ["none", "embeddings"])
def test_each_loss_reaches_its_network_and_what_the_two_share(config, tie):
    for silent, learns in (("generator", "encoder"), ("encoder", "generator")):
        model = objective(
            config(generator=GeneratorShape(tie=tie, fraction=0.5), **{f"{silent}_weight": 0.0})
        )
        model(toy_batch([16, 12]), seeded()).total.backward()
        networks = model.networks()
        reached = {id(p) for p in networks[learns].parameters()}
        for name, parameter in networks[silent].named_parameters():
            if id(parameter) not in reached:
                assert parameter.grad is None or not parameter.grad.any(), name
        assert all(p.grad is not None and p.grad.any() for p in networks[learns].parameters())
        if config is AllTokensMLMConfig:
            assert model.gate.weight.grad.any().item() == (learns == "encoder")


def test_all_weights_may_be_shared_but_for_the_heads():
    model = objective(ReplaceMLMConfig(generator=GeneratorShape(tie="all", fraction=1.0)))
    assert model.encoder.encoder is model.generator.encoder
    assert model.encoder.dense is not model.generator.dense


# ---- what is kept, exported, measured ------------------------------------------------------------


def test_the_gate_is_in_the_checkpoint_and_in_no_exported_network():
    model = objective(AllTokensMLMConfig())
    assert {"gate.weight", "gate.bias"} <= dict(model.named_parameters()).keys()
    assert list(model.networks()) == ["encoder", "generator"]
    exported = {id(p) for network in model.networks().values() for p in network.parameters()}
    assert [name for name, p in model.named_parameters() if id(p) not in exported] == [
        "gate.weight",
        "gate.bias",
    ]


@RESTORING
def test_chance_may_propose_and_then_there_is_one_network_and_one_loss(config):
    model = objective(config(generator=GeneratorShape(kind="unigram")))
    assert list(model.networks()) == ["encoder"]
    assert list(model(BATCH, seeded()).parts) == ["restore"]


@RESTORING
def test_held_out_loss_is_the_training_loss_and_copying_stands_beside_it(config):
    model = objective(config()).eval()
    loss, generated = model(BATCH, seeded()), model.generate(BATCH, seeded())
    scores = model.measure(BATCH, seeded()).scores()
    assert scores["restore_loss"] == pytest.approx(loss.parts["restore"].item(), rel=1e-5)
    assert scores["mlm_loss"] == pytest.approx(loss.parts["mlm"].item(), rel=1e-5)
    places = (
        BATCH.attention_mask.nonzero().tolist()
        if config is AllTokensMLMConfig
        else masked_places(generated.masked)
    )
    kept = [not generated.corrupted.is_replaced[row, position] for row, position in places]
    share = sum(kept) / len(kept)
    baseline = [
        -math.log(share * k + (1 - share) * float(UNIGRAMS[BATCH.input_ids[row, position]]))
        for k, (row, position) in zip(kept, places, strict=True)
    ]
    assert scores["baseline_restore_accuracy"] == pytest.approx(share)
    assert scores["baseline_restore_loss"] == pytest.approx(sum(baseline) / len(baseline), rel=1e-5)


def test_a_sure_gate_answers_what_it_reads():
    model = objective(AllTokensMLMConfig()).eval()
    torch.nn.init.constant_(model.gate.bias, 50.0)
    scores = model.measure(BATCH, seeded()).scores()
    assert scores["restore_accuracy"] == scores["baseline_restore_accuracy"] > 0.8


@RESTORING
@pytest.mark.parametrize("setting", ["generator_weight", "encoder_weight", "temperature"])
def test_a_weight_below_zero_is_refused(config, setting):
    with pytest.raises(ValueError, match=rf"^{setting}=-1\.0 must"):
        config(**{setting: -1.0})


def test_the_encoder_is_as_large_as_asked():
    assert objective(ReplaceMLMConfig()).encoder.encoder.shape == SHAPE
