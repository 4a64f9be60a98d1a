"""FSDP2: weights, gradients and Adam's slots lie spread over the processes, and come together where
they are used.

A block is one unit: its weights are gathered when it is called, dropped, gathered again when
backward reaches it, and its gradient is added up and spread out there and then. All the rest is a
second kind of unit, the objective itself: embeddings that two networks share, the word table that
also predicts, and heads are used from outside their modules, and stay whole from the beginning of a
pass to its end. A block that two networks share is still one unit.

Weights are gathered in float32 and cast where they are used, as without sharding: in half the bytes
the norms would see other weights than they do there, and the losses would not be the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

import torch.distributed as dist
from torch import Tensor, nn

from electra.model.encoder import Block

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def shard(objective: nn.Module, device_type: str) -> None:
    """Leave each process its part of every parameter, on its device; parameters are other objects
    from here on.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(device_type, (dist.get_world_size(),))
    for module in list(objective.modules()):
        if isinstance(module, Block):
            fully_shard(module, mesh=mesh)
    fully_shard(objective, mesh=mesh)
    register_fsdp_forward_method(objective, "measure")


# Known by what they have and not by their classes, whose modules take most of a second to import.


def is_sharded(module: nn.Module) -> bool:
    return hasattr(module, "reshard")


def is_dtensor(tensor: Tensor) -> TypeGuard[DTensor]:
    return hasattr(tensor, "full_tensor")


def reshard(module: nn.Module) -> None:
    """Back to parts after passes that no backward follows, which leave the objective's own unit
    whole.
    """
    if is_sharded(module):
        module.reshard()  # type: ignore[operator]


def full_tensor(tensor: Tensor) -> Tensor:
    """All of a tensor, of which this process may hold a part; then every process takes part."""
    return tensor.full_tensor() if is_dtensor(tensor) else tensor


def local_tensor(tensor: Tensor) -> Tensor:
    """What lies in this process; nobody else is asked."""
    return tensor.to_local() if is_dtensor(tensor) else tensor


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """What this process keeps of a whole tensor, if it holds `like` in part. Nobody is asked: all
    have read the same.
    """
    if not is_dtensor(like):
        return tensor.to(like.device)
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(
        tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None
    )
