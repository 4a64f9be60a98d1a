"""A shape of batch runs plainly, is captured, and is then replayed."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from electra.config import UserError
from electra.engine import cuda_graph
from electra.engine.cuda_graph import CapturedGraph, GraphedCallable

CPU = torch.device("cpu")


class Row(NamedTuple):
    values: Tensor

    def to(self, device: torch.device) -> Row:
        return self


class Pool:
    def pool(self) -> str:
        return "pool"


class Recorded:
    """In place of a CUDA graph: calls the captured function again at every replay."""

    captures: list[tuple[int, object]]

    def __init__(self, forward_backward, batch, pool) -> None:
        self.forward_backward, self.graph = forward_backward, Pool()
        self.captures.append((len(batch.values), pool))

    def __call__(self, batch):
        return {"replayed": self.forward_backward(batch)["loss"]}


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, object]]:
    Recorded.captures = []
    monkeypatch.setattr(cuda_graph, "CapturedGraph", Recorded)
    return Recorded.captures


def total(batch: Row) -> dict[str, Tensor]:
    return {"loss": batch.values.sum()}


def test_the_second_batch_of_a_shape_is_captured_and_later_ones_are_replayed(captures) -> None:
    graphed = GraphedCallable(total, CPU, capture=True)
    kinds = [list(graphed(Row(torch.ones(size)))) for size in (2, 3, 2, 2, 3)]
    assert kinds == [["loss"], ["loss"], ["replayed"], ["replayed"], ["replayed"]]
    assert captures == [(2, None), (3, "pool")], "graphs share the memory of the first"


def test_every_choice_of_options_has_a_graph_of_its_own(captures) -> None:
    def scaled(batch: Row, *, doubled: bool) -> dict[str, Tensor]:
        return {"loss": batch.values.sum() * (1 + doubled)}

    graphed = GraphedCallable(scaled, CPU, capture=True)
    row, found = Row(torch.ones(3)), []
    for doubled in (False, True, False, True):
        found += graphed(row, doubled=doubled).items()
    assert found == [("loss", 3), ("loss", 6), ("replayed", 3), ("replayed", 6)]
    assert captures == [(3, None), (3, "pool")]


def test_another_dtype_is_another_shape(captures) -> None:
    graphed = GraphedCallable(total, CPU, capture=True)
    assert list(graphed(Row(torch.ones(2)))) == ["loss"]
    assert list(graphed(Row(torch.ones(2, dtype=torch.long)))) == ["loss"]


def test_without_capture_every_batch_runs_plainly(captures) -> None:
    graphed = GraphedCallable(total, CPU, capture=False)
    assert [float(graphed(Row(torch.ones(2)))["loss"]) for _ in range(4)] == [2.0] * 4
    assert captures == []


def test_no_garbage_is_collected_during_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead cycle may hold the graph of an earlier model, whose end would end the capture."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Pool)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, **options: nullcontext())
    seen = []

    def forward_backward(batch: Row) -> dict[str, Tensor]:
        seen.append(gc.isenabled())
        if not float(batch.values.sum()):
            raise RuntimeError("operation not permitted when stream is capturing")
        return total(batch)

    CapturedGraph(forward_backward, Row(torch.ones(2)), None)
    with pytest.raises(UserError, match="cannot be captured"):
        CapturedGraph(forward_backward, Row(torch.zeros(2)), None)
    assert seen == [False, False]
    assert gc.isenabled(), "also after a capture that failed"
