"""FSDP2: weights, gradients and optimizer state are sharded over the processes.

A block is one FSDP unit: its weights are gathered when it is called, freed, gathered again when
backward reaches it, and its gradient is reduced and scattered at once. Everything else is
the unit of the objective itself: embeddings that two networks share, the word embeddings that also
predict, and heads are used from outside their modules, and stay gathered from the beginning of a
pass to its end. A block that two networks share is still one unit.

Weights are gathered in float32 and cast where they are used, as without sharding: in bf16 the norms
would see other weights than they do there, and the losses would differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

import torch.distributed as dist
from torch import Tensor, nn

from electra.model.encoder import Block

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def shard(objective: nn.Module, device_type: str) -> None:
    """Replace every parameter by this process's shard of it, a new object on its device."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(device_type, (dist.get_world_size(),))
    for module in list(objective.modules()):
        if isinstance(module, Block):
            fully_shard(module, mesh=mesh)
    fully_shard(objective, mesh=mesh)
    register_fsdp_forward_method(objective, "measure")


# Recognised by attributes and not by class: importing those modules takes most of a second.


def is_sharded(module: nn.Module) -> bool:
    """Return whether FSDP2 shards this module."""
    return hasattr(module, "reshard")


def is_dtensor(tensor: Tensor) -> TypeGuard[DTensor]:
    return hasattr(tensor, "full_tensor")


def reshard(module: nn.Module) -> None:
    """Free the gathered weights after a forward pass without backward, which leaves them there."""
    if is_sharded(module):
        module.reshard()  # type: ignore[operator]


def full_tensor(tensor: Tensor) -> Tensor:
    """Gather a tensor of which this process may hold a shard; every process must call this."""
    if is_dtensor(tensor):
        return tensor.full_tensor()
    return tensor


def local_tensor(tensor: Tensor) -> Tensor:
    """Return this process's shard, without communication."""
    if is_dtensor(tensor):
        return tensor.to_local()
    return tensor


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Return this process's shard of a full tensor, or all of it where `like` is not sharded.

    No communication: all processes have read the same tensor.
    """
    if not is_dtensor(like):
        return tensor.to(like.device)
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(
        tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None
    )
