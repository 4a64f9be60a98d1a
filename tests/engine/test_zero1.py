"""Runs of several processes with kernels: ddp and zero1, stopped and resumed, make one run."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from electra.config import SettingError, UserError
from electra.engine.distributed import World
from electra.engine.hardware import Speed
from electra.pretraining import loop, pretrain, resolve, setup
from electra.pretraining.recipe import load_recipe
from electra.runs.journal import read_metrics
from tests.conftest import TOY_FLAGS
from tests.engine.ranks import run_as_ranks
from tests.engine.steps import needs_triton
from tests.wording import wording_of

wording = wording_of(__file__)

STEPS = 5


def train(data: Path, run: Path, *more: str) -> Any:
    """Train in this process, or as one of several, with kernels that rest in float32."""
    flags = [*TOY_FLAGS, "--max-steps", str(STEPS), "--optimizer.schedule", "constant"]
    flags += ["--ema-decay", "0.9", "--logging-steps", "1", "--eval-steps", "3"]
    recipe = load_recipe("tiny", flags=[*flags, *more])
    with pytest.MonkeyPatch.context() as patch:
        for module in (setup, resolve):
            patch.setattr(module, "resolve_recipe_speed", lambda *_: Speed(True, False, False))
        return pretrain.pretrain(recipe, data=data, output_dir=run, quiet=True)


def stop_after(step: int) -> None:
    """Let this process receive SIGTERM after so many more steps of a run."""
    optimizer_step, steps = loop.optimizer_step, []

    def stopping(*arguments: Any) -> float:
        steps.append(optimizer_step(*arguments))
        if len(steps) == step:
            loop.optimizer_step = optimizer_step
            os.kill(os.getpid(), signal.SIGTERM)
        return steps[-1]

    loop.optimizer_step = stopping


def run_as_rank(data: str, folder: str, *flags: str) -> None:
    """Be one of two processes that train the same run in several ways."""

    def train_as(parallel: str, name: str, *more: str) -> Any:
        return train(Path(data), Path(folder, name), "--parallel", parallel, *flags, *more)

    train_as("ddp", "ddp")
    train_as("zero1", "zero1")
    if os.environ["RANK"] == "1":
        stop_after(1)
    outcome = train_as("zero1", "stopped")
    assert (outcome.status, outcome.step) == ("stopped", 3), outcome
    train_as("ddp", "stopped", "--max-steps", "4")
    train_as("zero1", "stopped")


def checkpoint(run: Path, step: int = STEPS) -> dict[str, torch.Tensor]:
    tensors = {}
    for path in sorted((run / f"checkpoint-{step}").glob("*.safetensors")):
        tensors |= load_file(path)
    for path in sorted(run.glob("*/model.safetensors")):
        tensors |= {f"{path.parent.name} {k}": v for k, v in load_file(path).items()}
    return tensors


def losses(run: Path) -> list[float]:
    return [entry["loss"] for entry in read_metrics(run / "metrics.jsonl") if "loss" in entry]


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("flags", [(), ("--optimizer.name", "muon")], ids=["adamw", "muon"])
def test_two_processes_with_shards_of_the_state_train_as_with_all_of_it_stopped_or_not(
    flags: tuple[str, ...], toy_shards: Path, tmp_path: Path
) -> None:
    worker = "import sys; from tests.engine.test_zero1 import run_as_rank"
    worker += "\nrun_as_rank(*sys.argv[1:])\n"
    run_as_ranks(worker, tmp_path, toy_shards, tmp_path, *flags, processes=2)
    expected = checkpoint(tmp_path / "ddp")
    for run in ("zero1", "stopped"):
        ours = checkpoint(tmp_path / run)
        assert ours.keys() == expected.keys()
        for name, tensor in expected.items():
            assert ours[name].equal(tensor), (run, name)
        assert losses(tmp_path / run) == losses(tmp_path / "ddp")
    train(toy_shards, tmp_path / "one", *flags)
    for name, tensor in checkpoint(tmp_path / "one").items():
        assert expected[name].allclose(tensor, rtol=1e-3, atol=1e-5), name
    assert losses(tmp_path / "one") == pytest.approx(losses(tmp_path / "ddp"), rel=1e-5)


def test_zero1_is_refused_without_kernels_and_fsdp_with_muon() -> None:
    with pytest.raises(SettingError, match=wording("fsdp_is_refused_with_muon")):
        load_recipe("tiny", flags=["--parallel", "fsdp", "--optimizer.name", "muon"])
    recipe = load_recipe("tiny", flags=["--parallel", "zero1"])
    with pytest.raises(UserError, match=wording("zero1_is_refused_without_kernels")):
        resolve.resolve_recipe_speed(recipe, World(0, 2, torch.device("cpu")))
    alone = resolve.resolve_recipe_speed(recipe, World(0, 1, torch.device("cpu")))
    assert not alone.kernels
