"""Next-sentence prediction: which second segments come from elsewhere, and what it costs not to notice."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from electra.objectives.corruption import masked_counts
from electra.objectives.next_sentence import swap_segments
from electra.objectives.settings import MaskedLMConfig
from tests.conftest import toy_batch
from tests.objectives.test_objectives import VOCABULARY, objective, seeded

CONFIG = MaskedLMConfig(next_sentence=True)
BATCH = toy_batch([16, 9, 12, 4])  # the last has one segment


def words_of(ids):
    return [token for token in ids.tolist() if token not in (VOCABULARY.pad, VOCABULARY.cls, VOCABULARY.sep)]


def second_words(batch, row):
    """The second segment without the [SEP] that ends it."""
    return batch.ids[row][batch.types[row] == 1].tolist()[:-1]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(min_value=3, max_value=16), min_size=1, max_size=7), st.integers(0, 1000))
def test_a_strange_segment_is_the_end_of_another_rows_text_and_nothing_else_changes(lengths, seed):
    batch = toy_batch(lengths, seed=seed)
    paired = swap_segments(batch, VOCABULARY, seeded(seed))
    assert paired.batch._replace(ids=batch.ids) == batch
    for row in range(len(lengths)):
        if not paired.strange[row]:
            assert paired.batch.ids[row].equal(batch.ids[row])
            continue
        assert paired.scored[row]
        found = second_words(paired.batch, row)
        others = [words_of(batch.ids[other])[-len(found):] for other in range(len(lengths)) if other != row]
        assert found in others
        outside = (batch.types[row] == 0) | (batch.ids[row] == VOCABULARY.sep)
        assert paired.batch.ids[row][outside].equal(batch.ids[row][outside])


def test_half_of_the_second_segments_come_from_elsewhere():
    paired = swap_segments(toy_batch([16] * 4000), VOCABULARY, seeded())
    assert paired.scored.all()
    assert paired.strange.float().mean().item() == pytest.approx(0.5, abs=0.03)


def test_short_rows_beside_a_long_one_do_not_make_long_segments_follow_more_often():
    long = [swap_segments(toy_batch([16, 5, 5, 5, 16]), VOCABULARY, seeded(seed)).strange[0] for seed in range(2000)]
    assert sum(map(int, long)) / 2000 == pytest.approx(0.5, abs=0.04)


def test_a_row_too_short_to_give_leaves_the_other_as_it_is_and_not_scored():
    batch = toy_batch([16, 5])  # 7 words in the second segment of one, 2 words in all of the other
    for seed in range(20):
        paired = swap_segments(batch, VOCABULARY, seeded(seed))
        assert (bool(paired.strange[0]), bool(paired.scored[0]), bool(paired.scored[1])) == (False, False, True)
        assert paired.batch.ids[0].equal(batch.ids[0])


def test_a_row_with_one_segment_or_without_company_is_not_scored():
    assert swap_segments(BATCH, VOCABULARY, seeded()).scored.tolist() == [True, True, True, False]
    alone = swap_segments(toy_batch([16]), VOCABULARY, seeded())
    assert (alone.scored.tolist(), alone.strange.tolist()) == ([False], [False])


def test_the_loss_is_a_plain_recomputation_row_by_row():
    model = objective(CONFIG).double()
    loss, (paired, masked, _) = model(BATCH, seeded(1)), model.read(BATCH, seeded(1))
    assert 0 < paired.strange.sum() < 3, "the seed is one that gives both kinds"
    hidden = model.encoder.encoder(masked.ids, BATCH.types, BATCH.real)
    mistakes, surprises = [], []
    for row in range(3):
        chances = (model.verdict.weight @ hidden[row, 0] + model.verdict.bias).softmax(-1)
        mistakes.append(-chances[int(paired.strange[row])].log())
    chances = model.encoder.logits(masked.ids, BATCH.types, BATCH.real).softmax(-1)
    for row, place in masked.scored.nonzero().tolist():
        position = masked.positions[row, place]
        surprises.append(-chances[row, position, paired.batch.ids[row, position]].log())
    nsp, mlm = sum(mistakes).item() / 4, (sum(surprises) / len(surprises)).item()
    assert loss.parts["nsp"].item() == pytest.approx(nsp, rel=1e-6)
    assert loss.parts["mlm"].item() == pytest.approx(mlm, rel=1e-6)
    assert loss.total.item() == pytest.approx(mlm + nsp, rel=1e-6)


def test_shares_of_the_micro_batches_add_up_to_the_loss_of_the_whole_batch():
    model = objective(CONFIG)
    parts = [BATCH._replace(ids=BATCH.ids[i:i + 2], types=BATCH.types[i:i + 2], lengths=BATCH.lengths[i:i + 2])
             for i in (0, 2)]
    shares = [model(part, seeded(i)).total.item() for i, part in enumerate(parts)]
    alone = [model(part._replace(step_lengths=part.lengths), seeded(i)).parts for i, part in enumerate(parts)]
    counts = [int(masked_counts(part.lengths, CONFIG.masking, length=16).sum()) for part in parts]
    mlm = sum(found["mlm"].item() * n for found, n in zip(alone, counts, strict=True)) / sum(counts)
    assert sum(shares) == pytest.approx(mlm + sum(found["nsp"].item() for found in alone) / 2, rel=1e-6)


def test_the_layer_that_tells_segments_apart_is_in_the_checkpoint_and_in_no_exported_network():
    model = objective(CONFIG)
    model(BATCH, seeded()).total.backward()
    assert model.verdict.weight.grad.any()
    exported = {id(p) for network in model.networks().values() for p in network.parameters()}
    own = [name for name, p in model.named_parameters() if id(p) not in exported]
    assert (list(model.networks()), own) == (["encoder"], ["verdict.weight", "verdict.bias"])


def test_accuracy_stands_beside_that_of_always_saying_follows():
    model, batch = objective(CONFIG).eval(), toy_batch([16] * 40)
    torch.nn.init.zeros_(model.verdict.weight)
    model.verdict.bias.data = torch.tensor([1.0, 0.0])
    scores = model.measure(batch, seeded()).scores()
    following = 1 - swap_segments(batch, VOCABULARY, seeded()).strange.double().mean().item()
    assert scores["nsp_accuracy"] == scores["trivial_nsp_accuracy"] == pytest.approx(following)
    assert scores["mlm_loss"] == pytest.approx(model(batch, seeded()).parts["mlm"].item(), rel=1e-5)
    assert scores["nsp_loss"] == pytest.approx(model(batch, seeded()).parts["nsp"].item(), rel=1e-5)


def test_without_it_a_masked_lm_draws_and_computes_what_it_always_did():
    plain, both = objective(MaskedLMConfig()), objective(CONFIG)
    assert "verdict.weight" not in plain.state_dict()
    assert all(plain.state_dict()[name].equal(tensor) for name, tensor in both.state_dict().items()
               if not name.startswith("verdict."))
