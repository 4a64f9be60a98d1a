"""A callable captured once for each batch shape and then replayed as one CUDA graph."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from electra.config import UserError

# A batch on the device, and options → its losses by name.
ForwardBackward = Callable[..., dict[str, Tensor]]


class GraphedCallable:
    """Run the forward and backward pass of a batch, as a CUDA graph if its shape has come before
    with the same options.

    The first batch of a shape runs plainly, which also warms up libraries and autotuners. The
    second is captured, and later ones are replayed.
    """

    def __init__(
        self, forward_backward: ForwardBackward, device: torch.device, *, capture: bool
    ) -> None:
        self.forward_backward = forward_backward
        self.device = device
        self.capture = capture
        self.graphs: dict[Any, CapturedGraph | None] = {}  # by shape and options; None: seen once
        self.pool: Any = None  # of device memory, which all graphs share

    def __call__(self, batch: Any, **options: bool) -> dict[str, Tensor]:
        shape = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors_in(batch))
        key = (shape, tuple(options.items()))
        forward_backward = partial(self.forward_backward, **options)
        if key not in self.graphs or not self.capture:
            self.graphs[key] = None
            return forward_backward(batch.to(self.device))
        graph = self.graphs[key]
        if graph is None:
            graph = CapturedGraph(forward_backward, batch.to(self.device), self.pool)
            self.graphs[key] = graph
            self.pool = graph.graph.pool()
        return graph(batch)


class CapturedGraph:
    """One captured CUDA graph, with the batch that it reads and the losses that it writes."""

    def __init__(self, forward_backward: ForwardBackward, batch: Any, pool: Any) -> None:
        self.batch = tree_map_only(Tensor, torch.clone, batch)
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        # thread_local: other threads may read batches meanwhile.
        capture = torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local")
        try:
            with without_garbage_collection(), capture:
                self.losses = forward_backward(self.batch)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise UserError(
                f"this pass cannot be captured as a CUDA graph ({str(error).splitlines()[0]}); a "
                "loss that reads values back or whose shapes depend on them needs `--cuda-graph "
                "off` (`--training.cuda-graph off` in pre-training)"
            ) from error

    def __call__(self, batch: Any) -> dict[str, Tensor]:
        for static, tensor in zip(tensors_in(self.batch), tensors_in(batch), strict=True):
            static.copy_(tensor, non_blocking=True)
        self.graph.replay()
        return self.losses


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Collect no cycles: a dead graph of an earlier model among them would end the capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def tensors_in(batch: Any) -> list[Tensor]:
    """Return the tensors of a batch in a fixed order."""
    return [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]
