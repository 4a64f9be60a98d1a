"""The checkpoints of a run: its training state in safetensors and JSON.

Weights, optimizer state and the step are the whole state: data order, masks, samples and dropout
follow from the seed and the step. No file is a pickle, since a user may be handed somebody else's
run folder.
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
from electra.config import UserError, convert
from electra.files import parse_json, read_bounded_text

# Goes up when tensors inside get other names.
FORMAT = 2
STATE = "state.json"  # a folder without it is not a checkpoint
TENSORS = ("weights.safetensors", "optimizer.safetensors")
TrainingState = tuple[dict[str, Tensor], dict[str, Tensor]]  # weights, optimizer state; by name


class FormatError(UserError):
    """A checkpoint that another version of this package wrote."""

    def __init__(self, folder: Path, number: object) -> None:
        message = (
            f"{folder} has checkpoint format {number!r}, this version reads {FORMAT}; "
            "continue this run with the version that wrote it"
        )
        if number == 1:
            message = (
                f"{folder} was written by an earlier version (checkpoint format 1, this version "
                f"reads {FORMAT}) and cannot be continued; start a new run in another --output-dir "
                f"(pre-training starts from the models that were exported with --init-from "
                f"{folder.parent})"
            )
        super().__init__(message)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk whose files are all there and have the checksums of their writing."""

    folder: Path
    step: int
    state: dict[str, Any]

    def tensors(self) -> TrainingState:
        """Read the weights and the optimizer state."""
        weights, optimizer_state = (load_file(self.folder / name) for name in TENSORS)
        return weights, optimizer_state


def write(run: Path, tensors: TrainingState, *, step: int, state: dict[str, Any]) -> Path:
    """Write the folder `checkpoint-STEP`, completely or not at all, and return it."""
    target = run / f"checkpoint-{step}"
    with atomic.replace_folder(target) as folder:
        for file, named in zip(TENSORS, tensors, strict=True):
            save_file({name: tensor.contiguous() for name, tensor in named.items()}, folder / file)
        checksums = {name: checksum(folder / name) for name in TENSORS}
        header = {"format": FORMAT, "step": step, "checksums": checksums}
        atomic.write_json(folder / STATE, header | state)
    return target


def latest(run: Path) -> Checkpoint | None:
    """Return the latest checkpoint that is whole; warn about those that are not, by file name.

    Raise FormatError for one of another format: it is whole, and must not be passed over.
    """
    for _, folder in sorted(list_checkpoints(run), reverse=True):
        try:
            return open_checkpoint(folder)
        except FormatError:
            raise
        except ValueError as error:
            warnings.warn(f"{error}; using the checkpoint before it, if there is one", stacklevel=2)
    return None


def open_checkpoint(folder: Path) -> Checkpoint:
    """Return a checkpoint after verifying its files; raise ValueError where one is damaged."""
    state = read_state(folder)
    step, checksums = state["step"], state["checksums"]
    for name in TENSORS:
        if not (folder / name).is_file():
            raise ValueError(f"{folder} is not a whole checkpoint: {name} is missing")
        if checksum(folder / name) != checksums.get(name):
            raise ValueError(
                f"{folder / name} is damaged: its checksum is not the one it was written with"
            )
    return Checkpoint(folder, step, state)


def read_state(folder: Path) -> dict[str, Any]:
    """Read and check state.json; raise FormatError, or another ValueError where it is damaged."""
    path = folder / STATE
    try:
        state = parse_json(read_bounded_text(path))
        state["checksums"] = dict(state["checksums"])
        state["step"] = convert(state["step"], int, source=str(path), key="step")
    except FileNotFoundError:
        raise ValueError(f"{folder} is not a whole checkpoint: {STATE} is missing") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(f"{path} is damaged") from None
    if state.get("format") != FORMAT:
        raise FormatError(folder, state.get("format"))
    return dict(state)


def check_formats(run: Path) -> None:
    """Raise FormatError where a run folder holds a checkpoint of another format."""
    for _, folder in sorted(list_checkpoints(run)):
        try:
            read_state(folder)
        except FormatError:
            raise
        except ValueError:
            continue  # `latest` warns about damaged ones


def rotate(run: Path, *, keep: int) -> None:
    """Remove all but the latest `keep` checkpoints."""
    for _, folder in sorted(list_checkpoints(run))[:-keep]:
        remove(folder)


def remove(folder: Path) -> None:
    """Remove a checkpoint, or only the link where it is one: its target was archived on purpose."""
    if folder.is_symlink():
        folder.unlink()
        return
    # Without this file it is not a checkpoint, even if the rest cannot be removed.
    (folder / STATE).unlink(missing_ok=True)
    shutil.rmtree(folder)


def remove_after(run: Path, step: int) -> None:
    """Remove checkpoints later than the step that a run continues from.

    They are damaged, and `rotate` would keep them as the latest.
    """
    for number, folder in list_checkpoints(run):
        if number > step:
            remove(folder)


def remove_partial(run: Path) -> None:
    """Remove unfinished checkpoints of a process that was killed while it wrote."""
    for folder in run.glob(".checkpoint-*.partial"):
        atomic.remove_folder(folder, ignore_errors=True)


def list_checkpoints(run: Path) -> list[tuple[int, Path]]:
    """Return the step and folder of every checkpoint, whole or not, in no particular order."""
    checkpoints = []
    for path in run.glob("checkpoint-*"):
        match = re.fullmatch(r"checkpoint-(\d+)", path.name)
        if match and path.is_dir():
            checkpoints.append((int(match[1]), path))
    return checkpoints


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
