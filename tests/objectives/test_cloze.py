from __future__ import annotations

import pytest
import torch

from electra.objectives.cloze import cloze
from electra.objectives.settings import ReplacedTokenDetectionConfig
from tests.conftest import toy_batch
from tests.objectives.test_objectives import SHAPE, UNIGRAMS, VOCABULARY


@pytest.fixture
def networks():
    torch.manual_seed(3)
    objective = ReplacedTokenDetectionConfig().build(
        encoder=SHAPE, vocabulary=VOCABULARY, unigrams=UNIGRAMS
    )
    for parameter in objective.parameters():
        parameter.data += 0.3 * torch.randn_like(
            parameter
        )  # far from the start, where all words are alike
    objective.eval()
    return objective.generator.requires_grad_(False), objective.discriminator.requires_grad_(False)


def test_every_candidate_has_the_probability_that_the_formula_gives_it(networks):
    generator, discriminator = networks
    batch, places = toy_batch([16, 9]), torch.tensor([5, 2])
    found = cloze(
        generator, discriminator, batch, places, mask=VOCABULARY.mask, mask_rate=0.2, top=7
    )
    for row, place in enumerate(places):
        input_ids, token_type_ids, attention_mask = (
            each[row : row + 1].clone()
            for each in (batch.input_ids, batch.token_type_ids, batch.attention_mask)
        )
        input_ids[0, place] = VOCABULARY.mask
        probs = generator(input_ids, token_type_ids, attention_mask, place.view(1, 1))[
            0, 0
        ].softmax(-1)
        weights = {}
        for word in probs.topk(7).indices.tolist():
            input_ids[0, place] = word
            original = (
                1 - discriminator(input_ids, token_type_ids, attention_mask)[0, place].sigmoid()
            )
            weights[word] = float(
                probs[word] * original / (0.8 / 0.2 * (1 - original) + probs[word])
            )
        wanted = {word: weight / sum(weights.values()) for word, weight in weights.items()}
        given = dict(zip(found.token_ids[row].tolist(), found.probs[row].tolist(), strict=True))
        assert given == pytest.approx(wanted, rel=1e-5)


def test_candidates_come_best_first_and_add_up_to_one(networks):
    found = cloze(*networks, toy_batch([16, 9]), torch.tensor([5, 2]), mask=VOCABULARY.mask)
    assert found.token_ids.shape == (2, 50), "no more words than there are"
    assert torch.allclose(found.probs.sum(-1), torch.ones(2))
    assert (found.probs.diff(dim=-1) <= 0).all()
    assert sorted(found.token_ids[0].tolist()) == list(range(50))
