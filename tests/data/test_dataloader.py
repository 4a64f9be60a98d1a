"""The global batch of a step is a function of (seed, step)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra.data.batch_schedule import BatchSchedule
from electra.data.dataloader import DataLoader, eval_batches
from electra.data.shards import Shards
from electra.data.shuffle import random_key, shuffle_indices


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 2**62))
def test_an_epoch_is_a_permutation_of_the_rows(size, key):
    assert sorted(shuffle_indices(np.arange(size), size=size, key=key).tolist()) == list(
        range(size)
    )


def test_shuffling_leaves_no_trace_of_the_order_on_disk():
    indices = shuffle_indices(np.arange(100_000), size=100_000, key=1)
    assert abs(np.corrcoef(np.arange(100_000), indices)[0, 1]) < 0.01
    assert abs(np.corrcoef(indices[1:], indices[:-1])[0, 1]) < 0.01
    assert (indices != shuffle_indices(np.arange(100_000), size=100_000, key=2)).mean() > 0.99


@pytest.fixture
def rows(toy_shards):
    return Shards.open(toy_shards).train


def test_no_row_comes_twice_in_an_epoch_and_none_is_left_out(rows):
    batches = DataLoader(rows, batches=BatchSchedule(7, 7), micro_batch_size=7, seed=3)
    epochs = 3
    seen = np.concatenate(
        [batches.step_indices(step) for step in range(1, epochs * len(rows) // 7 + 2)]
    )
    for epoch in range(epochs):
        assert sorted(seen[epoch * len(rows) : (epoch + 1) * len(rows)].tolist()) == list(
            range(len(rows))
        )


def test_two_epochs_and_two_seeds_have_different_orders(rows):
    size = len(rows)
    first, again, other = (
        DataLoader(
            rows, batches=BatchSchedule(size, size), micro_batch_size=size, seed=seed
        ).step_indices(step)
        for seed, step in ((0, 1), (0, 2), (1, 1))
    )
    assert (first != again).any()
    assert (first != other).any()


def test_the_batch_of_a_step_does_not_depend_on_how_the_stream_came_there(rows):
    batches = DataLoader(rows, batches=BatchSchedule(8, 8), micro_batch_size=4, seed=0)
    walked = list(batches.iterate(range(1, 10), lambda step: range(2)))
    resumed = list(batches.iterate(range(6, 10), lambda step: range(2)))
    for before, after in zip(walked[5:], resumed, strict=True):
        assert all(
            a.input_ids.equal(b.input_ids) and a.token_type_ids.equal(b.token_type_ids)
            for a, b in zip(before, after, strict=True)
        )
    assert len(walked) == 9


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_a_stream_ends_where_its_steps_end(rows, steps):
    batches = DataLoader(rows, batches=BatchSchedule(4, 4), micro_batch_size=4, seed=0)
    assert len(list(batches.iterate(range(1, steps + 1), lambda step: range(1)))) == steps


def test_processes_share_a_step_without_overlap(rows):
    batches = DataLoader(rows, batches=BatchSchedule(12, 12), micro_batch_size=4, seed=0)
    whole = batches.load_step(5, range(3))
    parts = [*batches.load_step(5, range(0, 1)), *batches.load_step(5, range(1, 3))]
    assert all(a.input_ids.equal(b.input_ids) for a, b in zip(whole, parts, strict=True))
    assert all(part.step_lengths.equal(whole[0].step_lengths) for part in parts)
    assert whole[0].step_lengths.sum() == sum(part.lengths.sum() for part in parts)


def test_types_and_padding_follow_the_ends_of_the_segments(toy_shards):
    shards = Shards.open(toy_shards)
    tokenizer = shards.tokenizer
    for batch in eval_batches(shards.held_out, micro_batch_size=8, max_rows=16):
        for ids, token_type_ids, attention_mask, length in zip(
            batch.input_ids, batch.token_type_ids, batch.attention_mask, batch.lengths, strict=True
        ):
            assert ids[0] == tokenizer.cls
            assert ids[length - 1] == tokenizer.sep
            assert (ids[length:] == tokenizer.pad).all()
            assert attention_mask.sum() == length
            first_sep = ids.tolist().index(tokenizer.sep)
            assert token_type_ids[: first_sep + 1].sum() == 0
            assert (token_type_ids[first_sep + 1 : length] == 1).all()
            assert token_type_ids[length:].sum() == 0


def test_keys_depend_on_every_part():
    assert (
        len({random_key(0, 1, 2), random_key(0, 12), random_key(1, 0, 2), random_key("0", 1, 2)})
        == 4
    )
