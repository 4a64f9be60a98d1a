"""The space that a dry run plans with is what a run takes on the disk."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from electra.config import UserError
from electra.data.shards import Shards
from electra.pretraining.dry_run import (
    checkpoint_bytes,
    describe_disk,
    held_bytes,
    model_bytes,
    with_one_micro_batch,
)
from electra.pretraining.pretrain import pretrain
from electra.pretraining.recipe import Recipe, load_recipe
from tests.conftest import TOY_FLAGS

pytestmark = pytest.mark.usefixtures("few_threads")

HEADERS = 0.1  # of a file of this size: the names and places of its tensors


def toy(name: str, *flags: str) -> Recipe:
    return load_recipe(name, flags=[*TOY_FLAGS, "--max-steps", "4", *flags])


def check_bytes(recipe: Recipe, shards: Path, run: Path) -> None:
    vocabulary = Shards.open(shards).tokenizer.size
    optimizer_and_weights = (run / "checkpoint-4").glob("*.safetensors")
    written = sum(path.stat().st_size for path in optimizer_and_weights)
    assert written * (1 - HEADERS) < checkpoint_bytes(recipe, vocabulary) < written
    models = run.glob("*/model.safetensors")
    written = sum(path.stat().st_size for path in models)
    assert written * (1 - HEADERS) < model_bytes(recipe, vocabulary) < written


@pytest.mark.parametrize("flags", [(), ("--optimizer.name", "muon"), ("--ema-decay", "0.9")])
def test_a_checkpoint_and_the_models_take_the_bytes_that_are_planned(
    toy_shards: Path, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    recipe = toy("tiny", *flags)
    pretrain(recipe, data=toy_shards, output_dir=tmp_path, quiet=True)
    check_bytes(recipe, toy_shards, tmp_path)


def test_a_frozen_generator_has_no_optimizer_state_in_a_checkpoint(
    toy_shards: Path, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    pretrain(toy("two-stage-generator-base"), data=toy_shards, output_dir=first, quiet=True)
    recipe = toy("two-stage-base")
    pretrain(recipe, data=toy_shards, output_dir=second, quiet=True, init_from=first)
    check_bytes(recipe, toy_shards, second)


def test_checkpoints_that_are_there_are_not_needed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three checkpoints at a time where two are kept, and the models."""
    recipe = toy("tiny", "--max-steps", "100", "--save-steps", "10", "--save-total-limit", "2")
    one, models = checkpoint_bytes(recipe, 200), model_bytes(recipe, 200)
    for step in (10, 20):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "weights.safetensors").write_bytes(bytes(int(one)))
    assert held_bytes(tmp_path) == 2 * one
    free = SimpleNamespace(free=one + models)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    assert "beside the 0.00 GB of those that are there" in describe_disk(recipe, 200, tmp_path)
    free.free -= 1
    with pytest.raises(UserError, match="name a folder on another disk"):
        describe_disk(recipe, 200, tmp_path)
    free.free = 3 * one + models
    assert "beside" not in describe_disk(recipe, 200, tmp_path / "new")
    free.free -= 1
    with pytest.raises(UserError, match="name a folder on another disk"):
        describe_disk(recipe, 200, tmp_path / "new")


def test_a_run_with_few_checkpoints_needs_no_space_for_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = toy("tiny", "--max-steps", "4", "--save-steps", "10", "--save-total-limit", "2")
    needed = checkpoint_bytes(recipe, 200) + model_bytes(recipe, 200)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=needed))
    assert "GB for checkpoints and models" in describe_disk(recipe, 200, tmp_path)


def test_each_of_two_processes_has_one_micro_batch_of_the_step_that_is_measured() -> None:
    ramp = ("--initial-batch-size", "48", "--batch-ramp-steps", "2")
    training = with_one_micro_batch(toy("tiny", "--batch-size", "96", *ramp), 2).training
    assert training.micro_batch_size == 4
    assert (training.batch_size, training.initial_batch_size) == (2 * 4, None)
