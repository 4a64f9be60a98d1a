"""Exchange bytes and JSON values between processes, never a pickle.

Torch's `all_gather_object` and `broadcast_object_list` unpickle what arrives, so whoever reaches
the port of a run could make its processes run code. Bytes go in two collectives: their lengths
first, then the bytes themselves, padded to the longest.
"""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def all_gather_json(value: Any) -> list[Any]:
    """Return the JSON values of all processes, by rank; tuples come back as lists."""
    return [json.loads(data) for data in all_gather_bytes(json.dumps(value).encode())]


def broadcast_json(value: Any) -> Any:
    """Return the main process's JSON value in every process; tuples come back as lists."""
    return json.loads(broadcast_bytes(json.dumps(value).encode()))


def all_gather_bytes(data: bytes) -> list[bytes]:
    """Return the bytes of all processes, by rank."""
    own_length = torch.tensor([len(data)], device=collective_device())
    lengths = [torch.zeros_like(own_length) for _ in range(dist.get_world_size())]
    dist.all_gather(lengths, own_length)
    sizes = [int(length) for length in lengths]
    padded = as_tensor(data, max(sizes))
    gathered = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(gathered, padded)
    return [as_bytes(tensor, size) for tensor, size in zip(gathered, sizes, strict=True)]


def broadcast_bytes(data: bytes) -> bytes:
    """Return the main process's bytes in every process."""
    length = torch.tensor([len(data)], device=collective_device())
    dist.broadcast(length, src=0)
    size = int(length)
    tensor = as_tensor(data[:size], size)
    dist.broadcast(tensor, src=0)
    return as_bytes(tensor, size)


def collective_device() -> torch.device:
    """Return where the tensors of a collective must be: NCCL takes those of a GPU alone."""
    if dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def as_tensor(data: bytes, size: int) -> Tensor:
    """Return bytes as a tensor, padded with zeros to `size`."""
    padded = bytearray(data.ljust(max(1, size), b"\0"))  # torch takes no empty buffer
    return torch.frombuffer(padded, dtype=torch.uint8).to(collective_device())


def as_bytes(tensor: Tensor, size: int) -> bytes:
    return tensor[:size].cpu().numpy().tobytes()
