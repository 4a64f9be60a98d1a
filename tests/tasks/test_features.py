"""Features are read as they were written, and the order of their batches is our own code's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors import SafetensorError

from electra.finetuning.setup import select_examples
from electra.tasks.features import Features, Row, epoch_batches, pool_batches


def test_a_flipped_bit_in_a_file_of_features_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "rows.safetensors"
    rows = [Row(n, [1, 2, n], 2, {"target": n}, {"tags": [0, 1, n]}) for n in range(3)]
    Features.from_rows(rows).save(path)
    assert Features.load(path).input_ids.tolist() == [1, 2, 0, 1, 2, 1, 1, 2, 2]
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(
            whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :]
        )
        with pytest.raises((ValueError, SafetensorError)):
            Features.load(path)


def test_the_order_of_examples_does_not_depend_on_the_version_of_numpy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(np, "random")
    lengths = np.full(10, 7)
    first = epoch_batches(lengths, batch_size=4, seed=0, epoch=0)
    assert [batch.tolist() for batch in first] == [[7, 5, 1, 8], [4, 2], [9, 6, 0, 3]]
    later = epoch_batches(lengths, batch_size=4, seed=1, epoch=2)
    assert [batch.tolist() for batch in later] == [[6, 2], [0, 7, 5, 8], [4, 1, 9, 3]]
    assert select_examples(list("abcdefghij"), 4) == ["d", "f", "g", "j"]


def test_batches_of_an_epoch_come_in_any_order() -> None:
    """The batch with the shortest rows is first, second and third equally often."""
    lengths = np.arange(12)
    places = [0, 0, 0]
    for epoch in range(300):
        batches = epoch_batches(lengths, batch_size=4, seed=0, epoch=epoch)
        places[[0 in batch for batch in batches].index(True)] += 1
    assert min(places) > 70


@pytest.mark.parametrize(
    ("examples", "expected"),
    [(20, 1), (2_490, 9), (2 * 3_668, 28), (8_551, 33), (20_000, 64), (392_702, 64)],
)
def test_a_pool_of_batches_of_one_length_is_at_most_an_eighth_of_an_epoch(
    examples: int, expected: int
) -> None:
    """The training sets of RTE, MRPC in both orders, CoLA and MNLI are among these."""
    assert pool_batches(-(-examples // 32)) == expected


def test_long_rows_of_a_small_training_set_meet_short_ones_in_random_batches_alone() -> None:
    lengths = np.repeat(np.arange(1, 129), 20)  # as many rows as RTE's

    def spread(*, by_length: bool) -> float:
        batches = epoch_batches(lengths, batch_size=32, seed=0, epoch=0, by_length=by_length)
        assert sorted(np.concatenate(batches)) == list(range(len(lengths)))
        return float(np.mean([lengths[batch].std() for batch in batches]))

    assert spread(by_length=True) < 8 < 30 < spread(by_length=False)


def test_an_example_of_a_small_training_set_meets_many_others() -> None:
    """In pools of 64 batches, the longest 32 of 2,490 rows would be one batch most of the time."""
    lengths = np.arange(2_490)
    together = 0
    for epoch in range(10):
        batches = epoch_batches(lengths, batch_size=32, seed=0, epoch=epoch)
        longest = next(batch for batch in batches if 2_489 in batch)
        together += int((longest >= 2_490 - 64).sum()) - 1
    assert together / 10 < 12  # of 31
