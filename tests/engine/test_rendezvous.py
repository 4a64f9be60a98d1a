from __future__ import annotations

from typing import Any

import pytest

from electra.config import UserError
from electra.engine import rendezvous


def compare(monkeypatch: pytest.MonkeyPatch, *ranks: dict[str, Any]) -> None:
    """Compare the values of several ranks as rank 0 does."""
    gathered = [(f"process {rank}", values) for rank, values in enumerate(ranks)]
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr(rendezvous, "all_gather_json", lambda ours: gathered)
    rendezvous.assert_same_on_all_ranks(ranks[0])


def test_a_rank_with_another_value_is_named_with_both_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    message = r"optimizer\.clip: 1 in rank 0 \(process 0\), 2 in rank 1 \(process 1\)\n"
    with pytest.raises(UserError, match=message):
        compare(monkeypatch, {"optimizer.clip": 1, "seed": 3}, {"optimizer.clip": 2, "seed": 3})


def test_a_key_that_one_rank_does_not_have_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="seed: None in rank 0"):
        compare(monkeypatch, {}, {"seed": 3})


def test_a_commit_that_one_rank_could_not_find_out_is_no_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compare(monkeypatch, {"commit": "40d74d6"}, {"commit": None})
    with pytest.raises(UserError, match="commit: '40d74d6' in rank 0"):
        compare(monkeypatch, {"commit": "40d74d6"}, {"commit": "b8571d2"})
