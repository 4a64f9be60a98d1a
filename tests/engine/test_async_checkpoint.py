"""Copies that are made beside training hold one step; tests/test_gpu.py shows it on a GPU."""

from __future__ import annotations

import threading
import warnings

import pytest
import torch
from torch import nn

from electra.engine.async_checkpoint import AsyncCheckpointer
from electra.engine.training_state import PinnedStaging
from tests.engine.lazy_streams import LazyStreams


@pytest.fixture
def trained() -> tuple[nn.Linear, torch.optim.AdamW]:
    module = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(module.parameters())
    update(module, optimizer)
    return module, optimizer


def update(module: nn.Linear, optimizer: torch.optim.Optimizer) -> None:
    module(torch.ones(1, 3)).sum().backward()
    optimizer.step()


def test_a_copy_that_nothing_was_submitted_for_cannot_reach_into_the_next_checkpoint(
    trained: tuple[nn.Linear, torch.optim.AdamW], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two copies of one step, an update, and then all that could be delayed until now."""
    module, optimizer = trained
    streams, late = LazyStreams(monkeypatch), threading.Event()
    wanted, written = module.weight.detach().clone(), []
    with AsyncCheckpointer() as checkpointer:
        checkpointer.copy_state(module, optimizer)
        weights, _ = checkpointer.copy_state(module, optimizer)
        checkpointer.submit(lambda: (late.wait(30), written.append(weights["weight"].clone())))
        checkpointer.wait_for_copy()
        update(module, optimizer)
        streams.run_all()
        late.set()
    assert streams.copies == 2
    assert written[0].equal(wanted)
    assert not module.weight.equal(wanted)


def test_allocating_the_staging_memory_copies_nothing(
    trained: tuple[nn.Linear, torch.optim.AdamW], monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = LazyStreams(monkeypatch)
    with AsyncCheckpointer() as checkpointer:
        checkpointer.allocate_staging(*trained)
        staging = checkpointer.staging
        assert staging is not None
        assert streams.copies == 0
        checkpointer.copy_state(*trained)
        assert checkpointer.staging is staging


class CudaTensor:
    """A tensor on a GPU, as far as the allocation of its copy looks at it."""

    is_cuda, shape, dtype = True, (4,), torch.float32


def test_ordinary_memory_takes_the_place_of_pinned_memory_with_one_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    empty, asked = torch.empty, []

    def without_pinned_memory(*shape: object, pin_memory: bool = False, **options: object):
        asked.append(pin_memory)
        if pin_memory:
            raise RuntimeError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA ...")
        return empty(*shape, **options)

    monkeypatch.setattr(torch, "empty", without_pinned_memory)
    staging = PinnedStaging([], ({}, {}))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        copies = [staging.allocate_copy(CudaTensor()) for _ in range(2)]
    assert [copy.shape for copy in copies] == [(4,), (4,)]
    assert asked == [True, False, False]
    (warning,) = caught
    assert "no pinned memory for checkpoints (CUDA error: out of memory);" in str(warning.message)
    assert "\n" not in str(warning.message)
