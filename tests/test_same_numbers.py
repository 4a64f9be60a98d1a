"""Two checkouts are compared by runs that their own code made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import same_numbers
from benchmarks.same_numbers import Checkout, Digest
from electra.config import UserError
from tests.wording import wording_of

wording = wording_of(__file__)


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """Compare the checkouts `old` and `new` in the folder `work`."""
    folders = {"before": "old", "after": "new", "corpus": "text", "work-dir": "work"}
    given = [f"--{name}={tmp_path / folder}" for name, folder in folders.items()]
    return [*given, f"--output={tmp_path / 'same.json'}"]


@pytest.mark.parametrize("name", ["before", "after"])
def test_runs_of_an_earlier_comparison_are_refused_and_kept(
    arguments: list[str], name: str, tmp_path: Path
) -> None:
    earlier = tmp_path / "work" / name / "tiny-rtd"
    earlier.mkdir(parents=True)
    with pytest.raises(UserError, match=wording("runs_of_an_earlier_comparison_are_refused")):
        same_numbers.main(arguments)
    assert earlier.is_dir()


def test_a_scenario_that_differs_is_named_and_ends_with_exit_code_1(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def equal(checkout: Checkout) -> Digest:
        checkout.output_dir.mkdir(parents=True)
        return {"loss": 1.0}

    def different(checkout: Checkout) -> Digest:
        return {"loss": checkout.root.name}

    named = {"shards": equal, "tiny rtd": different}
    monkeypatch.setattr(same_numbers, "scenarios", lambda _: named)
    with pytest.raises(SystemExit) as exit:
        same_numbers.main(arguments)
    assert exit.value.code == 1
    result = json.loads((tmp_path / "same.json").read_text(encoding="utf8"))
    assert result["scenarios"] == {"shards": True, "tiny rtd": False}
