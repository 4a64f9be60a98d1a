"""A forward and backward pass captured once for each batch shape, then replayed as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from electra.config import UserError


class CapturedGraph:
    """One pass as a CUDA graph, with the batch it reads."""

    def __init__(self, once: Callable[[Any], dict[str, Tensor]], batch: Any, pool: Any) -> None:
        self.batch = tree_map_only(Tensor, torch.clone, batch)
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(
                self.graph, pool=pool, capture_error_mode="thread_local"
            ):  # others may read batches
                self.parts = once(self.batch)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise UserError(
                f"this pass cannot be captured as a CUDA graph ({str(error).splitlines()[0]}); a "
                "loss that "
                "reads values back or whose shapes depend on them needs `--cuda-graph off` "
                "(`--training.cuda-graph off` in pre-training)"
            ) from error

    def __call__(self, batch: Any) -> dict[str, Tensor]:
        for place, tensor in zip(tensors(self.batch), tensors(batch), strict=True):
            place.copy_(tensor, non_blocking=True)
        self.graph.replay()
        return self.parts


def tensors(batch: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]
