"""Masking and splicing, as properties of any batch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from electra.model.sampling import sample
from electra.objectives.corruption import (
    choose_positions,
    mask_tokens,
    masked_counts,
    replace_tokens,
)
from electra.objectives.masking import Masking
from tests.conftest import ToyVocabulary, toy_batch

rows = st.lists(st.integers(min_value=3, max_value=32), min_size=1, max_size=6)
rates = st.sampled_from([0.05, 0.15, 0.25, 0.5, 0.9])
draws = st.sampled_from(["distinct", "official"])
VOCABULARY = ToyVocabulary()


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(max_examples=60, deadline=None)
@given(rows, rates, draws, st.integers(0, 1000))
def test_special_tokens_and_padding_are_never_chosen(lengths, rate, draws, seed):
    batch = toy_batch(lengths, length=32, seed=seed)
    positions, scored = choose_positions(
        batch, Masking(rate=rate, draws=draws), VOCABULARY, seeded(seed)
    )
    chosen = batch.input_ids.gather(1, positions)[scored]
    assert not torch.isin(
        chosen, torch.tensor([VOCABULARY.pad, VOCABULARY.cls, VOCABULARY.sep, VOCABULARY.mask])
    ).any()


@settings(max_examples=60, deadline=None)
@given(rows, rates, st.integers(0, 1000))
def test_distinct_draws_choose_exactly_as_many_different_positions_as_the_length_says(
    lengths, rate, seed
):
    batch, masking = toy_batch(lengths, length=32, seed=seed), Masking(rate=rate)
    positions, scored = choose_positions(batch, masking, VOCABULARY, seeded(seed))
    different = [len(set(row[keep].tolist())) for row, keep in zip(positions, scored, strict=True)]
    assert different == masked_counts(batch.lengths, masking, length=32).tolist()


@pytest.mark.parametrize(
    ("length", "rate", "most"), [(128, 0.15, 19), (512, 0.15, 79), (512, 0.25, 130)]
)
def test_full_rows_choose_as_many_as_the_reference_code(length, rate, most):
    masking = Masking(rate=rate)
    assert masking.max_predictions(length) == most
    assert masked_counts(torch.tensor([length]), masking, length=length).tolist() == [
        min(most, round(rate * length))
    ]


def test_a_row_of_one_word_still_predicts_it():
    assert masked_counts(torch.tensor([3]), Masking(), length=128).tolist() == [1]


def test_an_unknown_token_may_be_masked():
    batch = toy_batch([3], length=8)
    batch.input_ids[0, 1] = VOCABULARY.unk
    positions, scored = choose_positions(batch, Masking(), VOCABULARY, seeded(0))
    assert positions[scored].tolist() == [1]


def test_official_draws_mask_13_8_percent_of_a_row_of_128():
    batch = toy_batch([128] * 200, length=128)
    batch.input_ids[:, 64] = (
        7  # one segment, 126 candidates, as in the arithmetic 126 · (1 − (125/126)^19) / 128
    )
    positions, scored = choose_positions(batch, Masking(draws="official"), VOCABULARY, seeded(0))
    distinct = sum(
        len(set(row[keep].tolist())) for row, keep in zip(positions, scored, strict=True)
    )
    assert distinct / (200 * 128) == pytest.approx(0.138, abs=0.001)


@pytest.mark.parametrize("draws", ["distinct", "official"])
def test_of_the_chosen_85_percent_are_hidden_and_15_keep_their_token(draws):
    batch = toy_batch([128] * 300, length=128)
    masked = mask_tokens(batch, Masking(draws=draws), VOCABULARY, seeded(0))
    seen = masked.input_ids.gather(1, masked.positions)[masked.scored]
    original = masked.labels[masked.scored]
    assert ((seen == VOCABULARY.mask) | (seen == original)).all(), (
        "the official code puts no random tokens in"
    )
    # A position drawn twice is hidden when either draw says so, which lifts the official share a
    # little.
    expected = 0.85 if draws == "distinct" else 0.86
    assert (seen == VOCABULARY.mask).float().mean().item() == pytest.approx(expected, abs=0.012)


def test_bert_masks_80_keeps_10_and_swaps_10_percent():
    vocabulary = ToyVocabulary(size=30000)
    batch = toy_batch([128] * 400, length=128, vocabulary=vocabulary)
    masked = mask_tokens(batch, Masking(keep=0.1, random=0.1), vocabulary, seeded(0))
    seen, original = (
        masked.input_ids.gather(1, masked.positions)[masked.scored],
        masked.labels[masked.scored],
    )
    shares = [
        (seen == vocabulary.mask),
        (seen == original),
        (seen != original) & (seen != vocabulary.mask),
    ]
    assert [share.float().mean().item() for share in shares] == pytest.approx(
        [0.8, 0.1, 0.1], abs=0.01
    )


@settings(max_examples=60, deadline=None)
@given(rows, rates, st.integers(0, 1000))
def test_every_replaced_token_was_sampled_at_that_position_and_nothing_else_changed(
    lengths, rate, seed
):
    batch = toy_batch(lengths, length=32, seed=seed)
    masked = mask_tokens(batch, Masking(rate=rate), VOCABULARY, seeded(seed))
    sampled = torch.randint(5, VOCABULARY.size, masked.positions.shape, generator=seeded(seed + 1))
    corrupted = replace_tokens(batch.input_ids, masked, sampled)
    replacements = {
        (row, int(p)): int(s)
        for row in range(len(lengths))
        for p, s, keep in zip(masked.positions[row], sampled[row], masked.scored[row], strict=True)
        if keep
    }
    for row in range(len(lengths)):
        for position in range(32):
            expected = replacements.get((row, position), int(batch.input_ids[row, position]))
            assert int(corrupted.input_ids[row, position]) == expected
            assert bool(corrupted.is_replaced[row, position]) == (
                expected != int(batch.input_ids[row, position])
            )


def test_a_token_the_generator_guesses_right_counts_as_original():
    batch = toy_batch([16])
    masked = mask_tokens(batch, Masking(), VOCABULARY, seeded(0))
    corrupted = replace_tokens(batch.input_ids, masked, sampled=masked.labels)
    assert not corrupted.is_replaced.any()
    assert corrupted.input_ids.equal(batch.input_ids)


@settings(max_examples=30, deadline=None)
@given(rows, rates, st.integers(0, 1000))
def test_distinct_positions_are_replaced_as_if_they_might_coincide(lengths, rate, seed):
    batch = toy_batch(lengths, length=32, seed=seed)
    masked = mask_tokens(batch, Masking(rate=rate), VOCABULARY, seeded(seed))
    sampled = torch.randint(5, VOCABULARY.size, masked.positions.shape, generator=seeded(seed + 1))
    simply, carefully = (
        replace_tokens(batch.input_ids, masked._replace(distinct=known), sampled)
        for known in (True, False)
    )
    assert simply.input_ids.equal(carefully.input_ids)
    assert simply.is_replaced.equal(carefully.is_replaced)


def test_official_draws_of_one_position_leave_the_mean_of_their_ids():
    batch = toy_batch([16])
    masked = mask_tokens(batch, Masking(draws="official"), VOCABULARY, seeded(0))
    twice = masked._replace(positions=torch.tensor([[5, 5]]), scored=torch.tensor([[True, True]]))
    assert replace_tokens(batch.input_ids, twice, torch.tensor([[10, 21]])).input_ids[0, 5] == 15


def test_samples_follow_the_softmax():
    logits = torch.tensor([0.0, 1.0, 2.0, -3.0])
    drawn = sample(logits.expand(20000, 4), rng=seeded(0))
    shares = torch.bincount(drawn, minlength=4) / 20000
    assert shares.tolist() == pytest.approx(logits.softmax(-1).tolist(), abs=0.01)


def test_a_raised_temperature_flattens_the_samples():
    logits = torch.tensor([0.0, 4.0])
    drawn = sample(logits.expand(20000, 2), temperature=4.0, rng=seeded(0))
    assert drawn.float().mean().item() == pytest.approx(
        (logits / 4).softmax(-1)[1].item(), abs=0.01
    )


@pytest.mark.parametrize("draws", ["distinct", "official"])
def test_rarer_words_are_masked_more_often_when_preferred(draws):
    """Half of the words are a hundred times as frequent as the others, so the others weigh ten
    times as much.
    """
    frequent, rare, rows = 7, 8, 3000
    unigrams = torch.full((50,), 1e-4)
    unigrams[frequent] = 1e-2
    batch = toy_batch([32] * rows, length=32)
    words = (batch.input_ids != VOCABULARY.cls) & (batch.input_ids != VOCABULARY.sep)
    batch = batch._replace(
        input_ids=torch.where(
            words, torch.where(torch.arange(32) % 2 == 0, frequent, rare), batch.input_ids
        )
    )
    masking = Masking(rate=0.04, draws=draws, prefer="rare")
    positions, scored = choose_positions(batch, masking, VOCABULARY, seeded(0), unigrams=unigrams)
    chosen = batch.input_ids.gather(1, positions)[scored]
    candidates = [int((batch.input_ids[0] == word).sum()) for word in (frequent, rare)]
    expected = 10 * candidates[1] / (candidates[0] + 10 * candidates[1])
    assert len(chosen) == rows, "one of a row, so that draws with and without replacement are alike"
    assert (chosen == rare).float().mean().item() == pytest.approx(expected, abs=0.015)


@settings(max_examples=60, deadline=None)
@given(rows, rates, draws, st.integers(0, 1000))
def test_a_preference_neither_changes_how_many_are_chosen_nor_lets_in_what_is_no_word(
    lengths, rate, draws, seed
):
    batch, masking = (
        toy_batch(lengths, length=32, seed=seed),
        Masking(rate=rate, draws=draws, prefer="rare"),
    )
    unigrams = torch.rand(50, generator=seeded(seed)).pow(8) + 1e-12
    positions, scored = choose_positions(
        batch, masking, VOCABULARY, seeded(seed), unigrams=unigrams
    )
    assert scored.sum(1).tolist() == masked_counts(batch.lengths, masking, length=32).tolist()
    assert (batch.input_ids.gather(1, positions)[scored] >= 5).all()
    if draws == "distinct":
        for row, keep in zip(positions, scored, strict=True):
            assert len(set(row[keep].tolist())) == keep.sum()


def test_a_banned_token_is_never_sampled_and_the_others_keep_their_proportions():
    logits = torch.tensor([0.0, 1.0, 2.0, -3.0])
    drawn = sample(logits.expand(20000, 4), banned=torch.full((20000,), 2), rng=seeded(0))
    shares = torch.bincount(drawn, minlength=4) / 20000
    expected = logits.index_fill(0, torch.tensor(2), -torch.inf).softmax(-1)
    assert shares[2] == 0
    assert shares.tolist() == pytest.approx(expected.tolist(), abs=0.01)
