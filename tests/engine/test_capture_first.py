"""The largest batches are captured before the first step, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from electra.data.batches import Batch, largest_batches, pack_rows
from electra.engine import cuda_graph
from electra.engine.hardware import Speed
from electra.engine.train_step import FusedTrainStep
from electra.pretraining import resolve
from electra.pretraining.pretrain import pretrain
from electra.pretraining.recipe import load_recipe
from electra.runs.journal import read_metrics
from tests.conftest import TOY_FLAGS, toy_batch
from tests.engine.steps import needs_triton
from tests.engine.test_train_step import build

pytestmark = needs_triton
ROWS, LENGTH = 12, 32


class Replayed:
    """In place of a CUDA graph: takes the pass at every replay, and none while it is captured."""

    captures: list[Batch]

    def __init__(self, forward_backward: Any, batch: Batch, pool: Any) -> None:
        self.forward_backward, self.graph = forward_backward, self
        self.captures.append(batch)

    def pool(self) -> str:
        return "pool"

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        losses: dict[str, Tensor] = self.forward_backward(batch)
        return losses


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    """Take steps over flat buffers and by graphs; in float32 the other kernels rest."""
    Replayed.captures = []
    monkeypatch.setattr(cuda_graph, "CapturedGraph", Replayed)
    monkeypatch.setattr(resolve, "resolve_speed", lambda *_, **__: Speed(True, True, False))
    return Replayed.captures


def train(data: Path, run: Path) -> list[dict[str, Any]]:
    flags = f"--max-steps 3 --eval-steps 3 --batch-size {ROWS} --micro-batch-size {ROWS}".split()
    pretrain(load_recipe("tiny", flags=[*TOY_FLAGS, *flags]), data=data, output_dir=run, quiet=True)
    timed = ("seconds", "per_second", "wait", "mfu", "time")
    return [
        {key: value for key, value in entry.items() if not any(word in key for word in timed)}
        for entry in read_metrics(run / "metrics.jsonl")
    ]


def packed_tokens(batch: Batch) -> int:
    if batch.packing is None:
        return batch.input_ids.numel()
    return len(batch.packing.token_indices)


@pytest.mark.slow
def test_a_run_that_captures_the_largest_batches_first_has_the_numbers_of_one_that_does_not(
    captures: list[Batch], toy_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = train(toy_shards, tmp_path / "first")
    sizes = [packed_tokens(batch) for batch in captures]
    assert sizes[0] == ROWS * LENGTH
    assert sizes[1] == max(sizes[1:]) < sizes[0]
    monkeypatch.setattr(FusedTrainStep, "capture_first", lambda *_: None)
    assert train(toy_shards, tmp_path / "never") == first
    weights = [
        (tmp_path / name / "discriminator" / "model.safetensors").read_bytes()
        for name in ("first", "never")
    ]
    assert weights[0] == weights[1]


def test_capturing_the_largest_batches_leaves_gradients_weights_and_random_numbers_alone(
    captures: list[Batch],
) -> None:
    (_, plain, never), (_, optimizer, steps) = build(kernels=True), build(kernels=True)
    assert isinstance(steps, FusedTrainStep)
    steps.graphed.capture = True
    before, weights = torch.get_rng_state(), optimizer.flat_param.clone()
    steps.capture_first(largest_batches(toy_batch([16, 9])))
    assert torch.get_rng_state().equal(before)
    assert [packed_tokens(batch) for batch in captures] == [32, 16]
    assert not optimizer.flat_grad.any()
    assert optimizer.flat_param.equal(weights)
    ours, theirs = (each.forward_backward([(7, toy_batch([16, 9]))]) for each in (steps, never))
    assert ours == theirs
    assert optimizer.flat_grad.equal(plain.flat_grad)


@pytest.mark.parametrize(("rows", "length"), [(2, 16), (7, 16), (64, 32), (100, 48)])
def test_no_batch_of_the_same_rows_has_more_tokens_than_the_largest_ones(
    rows: int, length: int
) -> None:
    full, packed = largest_batches(toy_batch([length] * rows, length=length))
    assert full.packing is None
    assert full.lengths.tolist() == [length] * rows
    assert packed.packing is not None
    assert packed.packing.cu_seqlens[-1] == packed_tokens(packed)
    rng = torch.Generator().manual_seed(0)
    for missing in range(rows * length):
        lengths = torch.full((rows,), length)
        take = torch.randint(rows, (missing,), generator=rng)
        lengths -= torch.bincount(take, minlength=rows)
        if (lengths < 1).any():
            break
        packing = pack_rows(lengths.numpy(), length)
        if packing is not None:
            assert len(packing.token_indices) <= packed_tokens(packed)
            assert len(packing.cu_seqlens) == len(packed.packing.cu_seqlens)


def test_a_single_row_is_never_packed() -> None:
    (full,) = largest_batches(toy_batch([9]))
    assert full.lengths.tolist() == [16]
