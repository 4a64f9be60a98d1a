"""What a run began from belongs to it: no later start puts other first weights in their place."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

from electra.config import UserError
from electra.pretraining.pretrain import pretrain as run_pretraining
from electra.runs import run_dir
from tests.pretraining.test_export import toy
from tests.wording import wording_of

wording = wording_of(__file__)

pytestmark = pytest.mark.usefixtures("few_threads")


@pytest.fixture(scope="module")
def trained(toy_shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs of other weights, and one that continued the first of them."""
    folder = tmp_path_factory.mktemp("origins")
    for name, seed in {"first": "0", "second": "1"}.items():
        run_pretraining(
            toy("tiny", "--seed", seed), data=toy_shards, output_dir=folder / name, quiet=True
        )
    run_pretraining(
        toy(), data=toy_shards, output_dir=folder / "run", init_from=folder / "first", quiet=True
    )
    return folder


def pretrain(shards: Path, run: Path, init_from: Path | None = None) -> None:
    run_pretraining(toy(), data=shards, output_dir=run, init_from=init_from, quiet=True)


def kill_before_first_checkpoint(shards: Path, run: Path, init_from: Path | None) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("electra.pretraining.pretrain.train", Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            pretrain(shards, run, init_from)


def card(run: Path) -> str:
    return (run / "discriminator" / "README.md").read_text(encoding="utf8")


def test_a_run_without_a_checkpoint_begins_again_from_the_models_it_began_from(
    trained: Path, toy_shards: Path, tmp_path: Path
) -> None:
    run, name = (
        tmp_path / "run",
        "a_run_without_a_checkpoint_begins_again_from_the_models_it_began_from",
    )
    kill_before_first_checkpoint(toy_shards, run, trained / "first")
    for other in (None, trained / "second"):
        with pytest.raises(UserError, match=wording(name)):
            pretrain(toy_shards, run, other)
    pretrain(toy_shards, run, trained / "first")
    assert "| Continued from | first |" in card(run)


def test_a_run_that_began_from_random_weights_does_not_begin_again_from_models(
    trained: Path, toy_shards: Path, tmp_path: Path
) -> None:
    name = "a_run_that_began_from_random_weights_does_not_begin_again_from_models"
    kill_before_first_checkpoint(toy_shards, tmp_path, None)
    with pytest.raises(UserError, match=wording(name)):
        pretrain(toy_shards, tmp_path, trained / "first")


def test_a_checkpoint_does_not_continue_as_that_of_other_models(
    trained: Path, toy_shards: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(trained / "run", tmp_path / "run")
    name = "a_checkpoint_does_not_continue_as_that_of_other_models"
    with pytest.raises(UserError, match=wording(name)):
        pretrain(toy_shards, run, trained / "second")
    moved = shutil.copytree(trained / "first", tmp_path / "moved")
    pretrain(toy_shards, run, moved)


def test_models_of_the_same_name_with_other_weights_are_others(
    trained: Path, toy_shards: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(trained / "run", tmp_path / "run")
    renamed = shutil.copytree(trained / "second", tmp_path / "first")
    name = "models_of_the_same_name_with_other_weights_are_others"
    with pytest.raises(UserError, match=wording(name)):
        pretrain(toy_shards, run, renamed)


def test_the_card_keeps_what_a_run_began_from_where_it_continues_without_the_flag(
    trained: Path, toy_shards: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(trained / "run", tmp_path / "run")
    shutil.rmtree(run / "discriminator")
    pretrain(toy_shards, run)
    assert "| Continued from | first |" in card(run)


def test_a_run_of_a_version_that_kept_no_origin_continues_as_it_did(
    trained: Path, toy_shards: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(trained / "run", tmp_path / "run")
    environment = json.loads((run / run_dir.ENVIRONMENT).read_text())
    del environment["init_from"]
    (run / run_dir.ENVIRONMENT).write_text(json.dumps(environment))
    shutil.rmtree(run / "discriminator")
    pretrain(toy_shards, run, trained / "second")
    assert "| Continued from | second |" in card(run)
    assert "init_from" not in json.loads((run / run_dir.ENVIRONMENT).read_text())
