"""The left-to-right LM: every token but the first is predicted, from those before it alone."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from electra.objectives.settings import LeftToRightConfig
from tests.conftest import toy_batch
from tests.objectives.test_objectives import SHAPE, UNIGRAMS, VOCABULARY, objective

BATCH = toy_batch([16, 9, 12])


def left_to_right():
    return objective(LeftToRightConfig(), shape=replace(SHAPE, causal=True))


def test_the_loss_is_the_mean_cross_entropy_at_every_next_token():
    model = left_to_right().double()
    losses = []
    for row, length in enumerate(BATCH.lengths.tolist()):
        for position in range(1, length):  # each from its own past, in a row that ends there
            past = (
                BATCH.input_ids[row : row + 1, :position],
                BATCH.token_type_ids[row : row + 1, :position],
            )
            probs = model.encoder.logits(*past, torch.ones_like(past[0], dtype=torch.bool))[
                0, -1
            ].softmax(-1)
            losses.append(-probs[BATCH.input_ids[row, position]].log().item())
    assert len(losses) == 15 + 8 + 11
    loss = model(BATCH)
    assert loss.total.item() == pytest.approx(sum(losses) / len(losses), rel=1e-6)
    assert list(loss.parts) == ["lm"]


def test_shares_of_the_micro_batches_add_up_to_the_loss_of_the_whole_batch():
    model = left_to_right()
    parts = [
        BATCH._replace(
            input_ids=BATCH.input_ids[i:j],
            token_type_ids=BATCH.token_type_ids[i:j],
            lengths=BATCH.lengths[i:j],
        )
        for i, j in ((0, 2), (2, 3))
    ]
    assert sum(model(part).total.item() for part in parts) == pytest.approx(
        model(BATCH).total.item(), rel=1e-6
    )


def test_every_weight_learns_and_the_encoder_is_what_is_exported():
    model = left_to_right()
    model(BATCH).total.backward()
    assert all(
        parameter.grad is not None and parameter.grad.any() for parameter in model.parameters()
    )
    assert model.networks() == {"encoder": model.encoder}


def test_held_out_loss_is_the_training_loss_and_word_frequencies_stand_beside_it():
    model = left_to_right().eval()
    scores = model.measure(BATCH).scores()
    following = [
        BATCH.input_ids[row, position].item()
        for row, length in enumerate(BATCH.lengths.tolist())
        for position in range(1, length)
    ]
    baseline = [
        0.0 if token == VOCABULARY.sep else -math.log(UNIGRAMS[token]) for token in following
    ]
    is_correct = [token in (VOCABULARY.sep, UNIGRAMS.argmax().item()) for token in following]
    assert scores["lm_loss"] == pytest.approx(model(BATCH).total.item(), rel=1e-5)
    assert scores["baseline_lm_loss"] == pytest.approx(sum(baseline) / len(baseline), rel=1e-5)
    assert scores["baseline_lm_accuracy"] == pytest.approx(sum(is_correct) / len(is_correct))
    assert 0 <= scores["lm_accuracy"] <= 1
