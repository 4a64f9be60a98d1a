"""A run's whole state in, the same run out — bit for bit.

Weights, the optimiser's slots and the step are all there is: data order, masks, samples and dropout
follow from the seed and the step. Stored as safetensors and JSON, since a user may be handed
somebody else's run folder.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from electra import atomic
from electra.config import convert
from electra.files import parse_json, read_bounded_text

FORMAT = 1
STATE = "state.json"  # a folder without it is not a checkpoint
TENSORS = ("weights.safetensors", "optimizer.safetensors")
TrainingState = tuple[dict[str, Tensor], dict[str, Tensor]]  # weights and slots by name


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint on disk: every file is there and has the content it was written with."""

    folder: Path
    step: int
    state: dict[str, Any]

    def tensors(self) -> TrainingState:
        weights, slots = (load_file(self.folder / name) for name in TENSORS)
        return weights, slots


def write(run: Path, contents: TrainingState, *, step: int, state: dict[str, Any]) -> Path:
    """`checkpoint-STEP`, whole or not at all."""
    target = run / f"checkpoint-{step}"
    with atomic.replace_folder(target) as folder:
        for file, tensors in zip(TENSORS, contents, strict=True):
            save_file(
                {name: tensor.contiguous() for name, tensor in tensors.items()}, folder / file
            )
        checksums = {name: checksum(folder / name) for name in TENSORS}
        atomic.write_json(
            folder / STATE, {"format": FORMAT, "step": step, "checksums": checksums, **state}
        )
    return target


def newest(run: Path) -> Checkpoint | None:
    """The newest whole checkpoint; damaged ones are passed over with a warning that names the file."""
    for _, folder in sorted(numbered(run), reverse=True):
        try:
            return opened(folder)
        except ValueError as error:
            warnings.warn(f"{error}; using the checkpoint before it, if there is one", stacklevel=2)
    return None


def opened(folder: Path) -> Checkpoint:
    """This checkpoint, if it is whole."""
    try:
        state = parse_json(read_bounded_text(folder / STATE))
        wanted, step = (
            dict(state["checksums"]),
            convert(state["step"], int, source=str(folder / STATE), key="step"),
        )
    except FileNotFoundError:
        raise ValueError(f"{folder} is not a whole checkpoint: {STATE} is missing") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(f"{folder / STATE} is damaged") from None
    if state.get("format") != FORMAT:
        raise ValueError(
            f"{folder} has checkpoint format {state.get('format')!r}, this version reads {FORMAT}"
        )
    for name in TENSORS:
        if not (folder / name).is_file():
            raise ValueError(f"{folder} is not a whole checkpoint: {name} is missing")
        if checksum(folder / name) != wanted.get(name):
            raise ValueError(
                f"{folder / name} is damaged: its checksum is not the one it was written with"
            )
    return Checkpoint(folder, step, state)


def rotate(run: Path, *, keep: int) -> None:
    """Remove all but the newest few."""
    for _, folder in sorted(numbered(run))[:-keep]:
        remove(folder)


def remove(folder: Path) -> None:
    """A link alone where it is one: what it leads to was put aside on purpose."""
    if folder.is_symlink():
        folder.unlink()
        return
    (folder / STATE).unlink(
        missing_ok=True
    )  # from here on it is not a checkpoint, whatever happens next
    shutil.rmtree(folder)


def forget_after(run: Path, step: int) -> None:
    """Remove what is newer than the step a run goes on from: damaged ones, which rotation would
    take for the newest.
    """
    for number, folder in numbered(run):
        if number > step:
            remove(folder)


def sweep(run: Path) -> None:
    """Remove what a killed writer left."""
    for folder in run.glob(".checkpoint-*.partial"):
        shutil.rmtree(folder, ignore_errors=True)


def numbered(run: Path) -> list[tuple[int, Path]]:
    found = (
        (re.fullmatch(r"checkpoint-(\d+)", path.name), path) for path in run.glob("checkpoint-*")
    )
    return [(int(match[1]), path) for match, path in found if match and path.is_dir()]


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
