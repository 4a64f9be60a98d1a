"""The files of a model folder, and the tensors in its safetensors files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from electra import atomic
from electra.checksums import verify_if_listed
from electra.config import UserError, convert
from electra.files import read_json_object
from electra.model.card_content import CARD as CARD

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
# What a folded table was made of; transformers does not read it.
FACTORS = "embedding_factors.safetensors"


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """Return the JSON object in a file of a model folder."""
    verify_if_listed(folder / name)
    remedy = f"name a folder that holds {CONFIG} and {WEIGHTS}"
    return read_json_object(folder / name, remedy=remedy)


def find_tensors(folder: Path, *, verify: bool = True) -> dict[str, Path]:
    """Return the file that holds each tensor of a model folder, by the tensor's name.

    The files are verified, which reads them whole, unless little of them is asked for.
    """
    if (folder / INDEX).exists():
        weight_map = read_index(folder)
        for path in sorted(set(weight_map.values())) if verify else ():
            verify_if_listed(path)
        return weight_map
    if (folder / WEIGHTS).exists():
        if verify:
            verify_if_listed(folder / WEIGHTS)
        with open_safetensors(folder / WEIGHTS) as file:
            return dict.fromkeys(file.keys(), folder / WEIGHTS)
    if (folder / "pytorch_model.bin").exists():
        raise UserError(
            f"{folder}: pytorch_model.bin is a pickle, which can run code when opened, and is not "
            "read; convert it where you trust it: load it with transformers, then "
            "save_pretrained(FOLDER)"
        )
    raise UserError(f"{folder}: neither {WEIGHTS} nor {INDEX} is there")


def read_index(folder: Path) -> dict[str, Path]:
    """Return the file of each tensor as the index of a sharded model states it."""
    stated = read_json(folder, INDEX).get("weight_map")
    weight_map = convert(stated, dict, source=str(folder / INDEX), key="weight_map")
    for file in weight_map.values():
        is_safetensors = re.fullmatch(r"[\w.-]+\.safetensors", str(file))
        if not is_safetensors or not is_within(folder, str(file)):
            raise UserError(
                f"{folder / INDEX}: weight_map names {file!r}, which is not a file of this folder "
                "in the safetensors format; download the model again from where you trust it"
            )
    return {name: folder / file for name, file in weight_map.items()}


def is_within(folder: Path, file: str) -> bool:
    """Return whether a file lies in its folder, or where the hub's cache keeps a snapshot's."""
    home = Path(os.path.realpath(folder))
    target = Path(os.path.realpath(folder / file))
    if target.parent == home:
        return True
    return home.parent.name == "snapshots" and target.parent == home.parent.parent / "blobs"


def read_tensor(path: Path, name: str, *, shape: list[int]) -> Tensor:
    """Return one tensor in float32; refuse one of another shape than the config promises."""
    with open_safetensors(path) as file:
        if name not in file.keys():  # noqa: SIM118 (not a mapping)
            raise UserError(f"{path}: {name} is missing, though {INDEX} places it there")
        stored = file.get_slice(name).get_shape()
        if stored != shape:
            raise UserError(
                f"{path}: {name} is {stored} where the {CONFIG} beside it promises {shape}; the "
                "two files do not belong together"
            )
        tensor: Tensor = file.get_tensor(name)
    return tensor.to(torch.float32)


def tensor_shape(path: Path, name: str, *, remedy: str) -> list[int]:
    """Return the shape of a table in a file without reading its values."""
    with open_safetensors(path) as file:
        shape: list[int] = []
        if name in file.keys():  # noqa: SIM118 (not a mapping)
            shape = file.get_slice(name).get_shape()
    if len(shape) != 2:
        raise UserError(f"{path}: {name} is missing or not a table; {remedy}")
    return shape


@contextmanager
def open_safetensors(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: cannot be read: {error}; copy or download it again") from None


# ---- writing -------------------------------------------------------------------------------------


def write_tensors(tensors: Mapping[str, Tensor], folder: Path, *, shard_bytes: int) -> None:
    """Write the tensors of a model in one file or in shards."""
    shards = split_tensors(tensors, shard_bytes=shard_bytes)
    if len(shards) == 1:
        write_safetensors(shards[0], folder / WEIGHTS)
    else:
        write_shards(shards, folder)


def write_shards(shards: Sequence[dict[str, Tensor]], folder: Path) -> None:
    """Write tensors in several files, and the index of what is where."""
    weight_map: dict[str, str] = {}
    total_size = 0
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_safetensors(shard, folder / file)
        weight_map |= dict.fromkeys(shard, file)
        total_size += sum(tensor.nbytes for tensor in shard.values())
    index = {"metadata": {"total_size": total_size}, "weight_map": weight_map}
    atomic.write_json(folder / INDEX, index)


def write_safetensors(tensors: dict[str, Tensor], path: Path) -> None:
    with atomic.default_mode(path):
        save_file(tensors, path, metadata={"format": "pt"})


def split_tensors(tensors: Mapping[str, Tensor], *, shard_bytes: int) -> list[dict[str, Tensor]]:
    """Split tensors into shards of at most so many bytes, in their order."""
    shards: list[dict[str, Tensor]] = [{}]
    for name, tensor in tensors.items():
        size = sum(each.nbytes for each in shards[-1].values())
        if shards[-1] and size + tensor.nbytes > shard_bytes:
            shards.append({})
        shards[-1][name] = tensor
    return shards
