"""The batch size of a step is a function of the step alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra.config import UserError
from electra.data.batch_schedule import BatchSchedule


def test_a_batch_grows_in_equal_stages_and_then_stays() -> None:
    batches = BatchSchedule(128, 32, ramp_steps=6)
    sizes = [batches.size_at(step) for step in range(1, 10)]
    assert sizes == [32, 32, 64, 64, 96, 96, 128, 128, 128]
    assert [batches.first_step(stage) for stage in range(batches.stages)] == [1, 3, 5, 7]


def test_without_a_ramp_all_steps_have_one_size() -> None:
    batches = BatchSchedule(128, 128)
    assert batches.stages == 1
    assert {batches.size_at(step) for step in range(1, 10)} == {128}
    assert batches.rows_after(10) == 1280


@given(st.integers(1, 9), st.integers(2, 9), st.integers(0, 50), st.integers(0, 80))
def test_rows_add_up_over_the_steps(initial: int, stages: int, longer: int, steps: int) -> None:
    batches = BatchSchedule(initial * stages, initial, ramp_steps=stages - 1 + longer)
    sizes = [batches.size_at(step) for step in range(1, steps + 1)]
    assert batches.rows_after(steps) == sum(sizes)
    assert sizes == sorted(sizes)
    for stage in range(stages):
        step = batches.first_step(stage)
        assert batches.size_at(step) == initial * (stage + 1)
        assert step == 1 or batches.size_at(step - 1) == initial * stage


@pytest.mark.parametrize("step", [7, 8, 1000])
def test_the_ramp_ends_where_it_says(step: int) -> None:
    assert BatchSchedule(128, 32, ramp_steps=6).size_at(step) == 128


def test_micro_batches_make_up_every_batch_and_give_each_process_one() -> None:
    batches = BatchSchedule(24, 12, ramp_steps=3)
    assert batches.micro_batch_sizes(1) == [12, 6, 4, 3, 2, 1]
    assert batches.micro_batch_sizes(5) == [2, 1]
    assert batches.micro_batch_sizes(5, fewest=2) == [2]
    with pytest.raises(UserError, match=r"12 rows cannot be divided .* each of 13 processes"):
        batches.micro_batch_sizes(13)
    with pytest.raises(UserError, match=r"equal micro-batches of 2 or more .* each of 3 processes"):
        BatchSchedule(size=7, initial_size=7).micro_batch_sizes(3, fewest=2)
