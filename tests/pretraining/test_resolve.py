"""What a recipe leaves open is decided for the machine."""

from __future__ import annotations

import pytest
import torch

from electra.config import UserError
from electra.engine.distributed import World
from electra.pretraining import resolve
from electra.pretraining.recipe import Recipe, load_recipe
from electra.pretraining.resolve import fit_micro_batch
from tests.wording import wording_of

wording = wording_of(__file__)


def test_memory_is_estimated_only_for_micro_batches_that_divide_the_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    estimated = []

    def micro_batch_bytes(recipe: Recipe, vocabulary: int, world: World, size: int) -> float:
        estimated.append(size)
        return size

    monkeypatch.setattr(resolve, "micro_batch_bytes", micro_batch_bytes)
    monkeypatch.setattr(resolve, "free_bytes", lambda device: 10)
    recipe = load_recipe("large", flags=["--batch-size", "48"])
    world = World(rank=0, size=2, device=torch.device("cpu"))
    assert fit_micro_batch(recipe, recipe.data.vocab_size, world) == 6
    assert estimated == [24, 16, 12, 8, 6]


def test_the_smallest_micro_batch_is_named_where_none_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Next sentence prediction needs two rows in a micro-batch."""
    monkeypatch.setattr(resolve, "free_bytes", lambda device: 1e6)
    recipe = load_recipe("bert-nsp-base", flags=["--batch-size", "8"])
    world = World(rank=0, size=2, device=torch.device("cpu"))
    with pytest.raises(
        UserError, match=wording("the_smallest_micro_batch_is_named_where_none_fits")
    ):
        fit_micro_batch(recipe, recipe.data.vocab_size, world)
