"""What only a GPU can show: low precision, compilation, and exact resume there. `pytest -m gpu`"""

from __future__ import annotations

import os
import signal

import pytest
import torch
from safetensors.torch import load_file

from electra.training.journal import read
from electra.training.pretrain import pretrain
from electra.training.recipe import load_recipe
from tests.conftest import TOY_FLAGS
from tests.test_resume import assert_identical, finish, start, wait_for_step

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
NO_DROPOUT = ("--encoder.dropout", "0", "--encoder.attention-dropout", "0")


def losses(data, run, *flags):
    pretrain(load_recipe("tiny", flags=[*TOY_FLAGS, *NO_DROPOUT, *flags]), data=data, output_dir=run, quiet=True)
    return [entry["loss"] for entry in read(run / "metrics.jsonl") if "loss" in entry]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("compiled", ["on", "off"])
def test_low_precision_and_compilation_follow_the_plain_run(toy_shards, tmp_path, precision, compiled):
    """Compiled code draws other random numbers, and fp16 leaves out its first updates until its scaler has found its
    scale: such runs agree as two seeds do, not to the digit."""
    plain = losses(toy_shards, tmp_path / "plain", "--precision", "fp32", "--compile", "off")
    fast = losses(toy_shards, tmp_path / "fast", "--precision", precision, "--compile", compiled)
    tolerance = 0.02 if compiled == "off" and precision == "bf16" else 0.15
    assert sum(fast[-5:]) == pytest.approx(sum(plain[-5:]), rel=tolerance)


@pytest.mark.parametrize("more", [("--training.compile", "off"),
                                  ("--training.compile", "on", "--training.deterministic", "true")])
def test_a_killed_run_goes_on_bit_for_bit(toy_shards, tmp_path, more):
    finish(toy_shards, tmp_path / "unbroken", *more)
    process = start(toy_shards, tmp_path / "killed", *more)
    wait_for_step(process, tmp_path / "killed", 12)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    finish(toy_shards, tmp_path / "killed", *more)
    assert_identical(tmp_path / "unbroken", tmp_path / "killed")


def test_the_export_of_a_gpu_run_is_float32_and_was_verified_with_transformers(toy_shards, tmp_path):
    losses(toy_shards, tmp_path, "--compile", "off")
    weights = load_file(tmp_path / "discriminator" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
