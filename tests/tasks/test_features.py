"""Features are read as they were written, and the order of their batches is our own code's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors import SafetensorError

from electra.finetuning.setup import select_examples
from electra.tasks.features import Features, Row, epoch_batches


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
