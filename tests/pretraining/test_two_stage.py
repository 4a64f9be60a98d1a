"""Two-stage training is two runs chained: both networks begin as the first stage's, and one of them
stays so.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import ElectraForMaskedLM

from electra.config import UserError
from electra.data.shards import Shards
from electra.pretraining.export import initialise_from
from electra.pretraining.pretrain import pretrain
from electra.runs.journal import read_metrics
from tests.pretraining.test_export import build_objective_with_seed, stock_config, toy
from tests.wording import wording_of

wording = wording_of(__file__)

STEADY = ["--schedule", "constant", "--save-steps", "2", "--encoder.dropout", "0.1"]
STAGES = ("two-stage-generator-base", "two-stage-base")
pytestmark = pytest.mark.usefixtures("few_threads")


@pytest.fixture(scope="module")
def shards(toy_shards: Path) -> Shards:
    return Shards.open(toy_shards)


@pytest.fixture(scope="module")
def first(toy_shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stages") / "first"
    pretrain(toy(STAGES[0]), data=toy_shards, output_dir=folder, quiet=True)
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def train_second_stage(
    first: Path, run: Path, data: Path, *, steps: int
) -> dict[str, dict[str, torch.Tensor]]:
    pretrain(
        toy(STAGES[1], *STEADY, "--max-steps", str(steps)),
        data=data,
        output_dir=run,
        init_from=first,
        quiet=True,
    )
    return {name: weights(run / name) for name in ("generator", "discriminator")}


@pytest.mark.parametrize("inner", ["", "encoder"])
def test_both_networks_begin_with_the_weights_of_the_first_stage_but_for_the_rtd_head(
    first: Path, shards: Shards, inner: str
) -> None:
    objective, stage = (
        build_objective_with_seed(toy(STAGES[1]), shards, seed=1),
        build_objective_with_seed(toy(STAGES[0]), shards, seed=2),
    )
    generator, discriminator = (
        objective.networks()[name] for name in ("generator", "discriminator")
    )
    head = {
        key: tensor.clone()
        for key, tensor in discriminator.state_dict().items()
        if "encoder." not in key
    }
    messages = initialise_from(objective, first / inner, shards)
    initialise_from(stage, first, shards)
    learnt = stage.networks()["encoder"].state_dict()
    for key, tensor in generator.state_dict().items():
        assert tensor.equal(learnt[key]), key
    for key, tensor in discriminator.encoder.state_dict().items():
        assert tensor.equal(learnt[f"encoder.{key}"]), key
    assert head
    for key, tensor in head.items():
        assert discriminator.state_dict()[key].equal(tensor), key
    source = first / "encoder"
    assert messages[0].startswith(f"generator from {source}: ")
    assert messages[0].endswith("tensors loaded")
    assert messages[1].startswith(f"discriminator from {source}: ")
    assert "freshly initialised: discriminator_predictions.dense.weight" in messages[1]


def test_the_generator_keeps_every_bit_through_steps_and_a_resume_while_the_discriminator_learns(
    first: Path, toy_shards: Path, tmp_path: Path
) -> None:
    learnt = weights(first / "encoder")
    halfway = train_second_stage(first, tmp_path / "run", toy_shards, steps=2)
    after = train_second_stage(first, tmp_path / "run", toy_shards, steps=4)
    unbroken = train_second_stage(first, tmp_path / "unbroken", toy_shards, steps=4)
    for networks in (halfway, after, unbroken):
        assert networks["generator"].keys() == learnt.keys()
        assert [key for key in learnt if not networks["generator"][key].equal(learnt[key])] == []
    body = [key for key in learnt if key.startswith("electra.")]
    assert [key for key in body if after["discriminator"][key].equal(learnt[key])] == []
    assert [
        key for key in body if after["discriminator"][key].equal(halfway["discriminator"][key])
    ] == []
    assert all(
        after["discriminator"][key].equal(tensor)
        for key, tensor in unbroken["discriminator"].items()
    )
    assert not [
        key
        for key in load_file(tmp_path / "run" / "checkpoint-4" / "optimizer.safetensors")
        if key.startswith("generator.")
    ]
    entries = [
        entry for entry in read_metrics(tmp_path / "run" / "metrics.jsonl") if "rtd" in entry
    ]
    assert all(entry["loss"] == pytest.approx(50 * entry["rtd"], rel=1e-5) for entry in entries)


def test_a_run_whose_generator_has_not_learnt_is_refused(toy_shards: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UserError,
        match=wording("a_run_whose_generator_has_not_learnt_is_refused"),
    ):
        pretrain(toy(STAGES[1]), data=toy_shards, output_dir=tmp_path / "run", quiet=True)


def test_a_first_stage_as_small_as_the_generator_fills_the_generator_alone(
    toy_shards: Path, shards: Shards, tmp_path: Path
) -> None:
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 1}
    ElectraForMaskedLM(stock_config(shards, **shape)).save_pretrained(tmp_path)
    objective = build_objective_with_seed(
        toy(STAGES[1], "--objective.generator.fraction", "0.5"), shards, seed=1
    )
    messages = initialise_from(objective, tmp_path, shards)
    assert messages[0].startswith(f"generator from {tmp_path}: ")
    assert messages[1].startswith("discriminator: no model in")


def test_a_generator_that_would_stay_partly_random_is_refused(
    shards: Shards, tmp_path: Path, first: Path
) -> None:
    ElectraForMaskedLM(stock_config(shards)).electra.save_pretrained(tmp_path / "body")
    joint = tmp_path / "joint"
    shutil.copytree(first / "encoder", joint / "discriminator")
    for source in (tmp_path / "body", joint):
        with pytest.raises(
            UserError, match=wording("a_generator_that_would_stay_partly_random_is_refused")
        ):
            initialise_from(
                build_objective_with_seed(toy(STAGES[1]), shards, seed=1), source, shards
            )


def test_a_generator_that_learns_takes_no_first_stage_for_both(first: Path, shards: Shards) -> None:
    flags = ["--objective.generator-training", "mlm"]
    with pytest.raises(
        UserError, match=wording("a_generator_that_learns_takes_no_first_stage_for_both")
    ):
        initialise_from(
            build_objective_with_seed(toy(STAGES[1], *flags), shards, seed=1), first, shards
        )


def test_an_adversary_continues_bit_for_bit(toy_shards: Path, tmp_path: Path) -> None:
    recipe = ["adversarial-base", *STEADY]
    for steps in (2, 4):
        pretrain(
            toy(*recipe, "--max-steps", str(steps)),
            data=toy_shards,
            output_dir=tmp_path / "twice",
            quiet=True,
        )
    pretrain(
        toy(*recipe, "--max-steps", "4"), data=toy_shards, output_dir=tmp_path / "once", quiet=True
    )
    ours, theirs = (
        load_file(tmp_path / run / "checkpoint-4" / "weights.safetensors")
        for run in ("once", "twice")
    )
    assert {"baseline.weight", "baseline.bias"} <= ours.keys()
    assert [key for key in ours if not ours[key].equal(theirs[key])] == []
