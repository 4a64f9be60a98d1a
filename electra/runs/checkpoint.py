"""The checkpoints of a run: its training state in safetensors and JSON.

Weights, optimizer state and the step are the whole state: data order, masks, samples and dropout
follow from the seed and the step. No file is a pickle, since a user may be handed somebody else's
run folder. Every file is covered by a checksum.
"""

from __future__ import annotations

import re
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from electra import atomic
from electra.checksums import CHECKSUMS, read_checksums, verify_file, write_checksums
from electra.config import UserError, convert
from electra.files import parse_json, read_bounded_text
from electra.runs.run_dir import METRICS

# Goes up when tensors inside get other names, or files other contents.
FORMAT = 3
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
        if number in (1, 2):
            message = (
                f"{folder} was written by an earlier version (checkpoint format {number}, this "
                f"version reads {FORMAT}) and cannot be continued; start a new run in another "
                "--output-dir (pre-training starts from the models that were exported with "
                f"--init-from {folder.parent})"
            )
        super().__init__(message)


class RenamedError(UserError):
    """A whole checkpoint in a folder that has the name of another step's."""

    def __init__(self, folder: Path, step: int) -> None:
        super().__init__(
            f"{folder} holds the checkpoint of step {step}; rename it to checkpoint-{step}, or "
            "move it out of this folder"
        )


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
    if (run / METRICS).exists():  # or a power cut could keep the checkpoint and lose its metrics
        atomic.sync(run / METRICS)
    with atomic.replace_folder(target) as folder:
        for file, named in zip(TENSORS, tensors, strict=True):
            contiguous = {name: tensor.contiguous() for name, tensor in named.items()}
            with atomic.default_mode(folder / file):
                save_file(contiguous, folder / file)
        atomic.write_json(folder / STATE, {"format": FORMAT, "step": step} | state)
        write_checksums(folder, [*TENSORS, STATE])
    return target


def latest(run: Path) -> Checkpoint | None:
    """Return the latest checkpoint that is whole; warn about those that are not, by file name.

    Raise FormatError or RenamedError for one that is whole, and must not be passed over.
    """
    for _, folder in sorted(list_checkpoints(run), reverse=True):
        try:
            return open_checkpoint(folder)
        except (FormatError, RenamedError):
            raise
        except ValueError as error:
            warnings.warn(f"{error}; using the checkpoint before it, if there is one", stacklevel=2)
    return None


def open_checkpoint(folder: Path) -> Checkpoint:
    """Return a checkpoint after verifying its files; raise ValueError where one is damaged."""
    state = read_state(folder)
    checksums = read_checksums(folder)
    for name in TENSORS:
        verify_file(folder / name, checksums)
    return Checkpoint(folder, state["step"], state)


def read_state(folder: Path) -> dict[str, Any]:
    """Read and verify state.json; raise FormatError, RenamedError, or another ValueError where it
    is damaged.
    """
    path = folder / STATE
    if (folder / CHECKSUMS).exists():
        verify_file(path, read_checksums(folder))
    try:
        state = dict(parse_json(read_bounded_text(path)))
        step = convert(state["step"], int, source=str(path), key="step")
    except FileNotFoundError:
        raise ValueError(f"{folder} is not whole: {STATE} is missing") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(f"{path} is damaged") from None
    if state.get("format") != FORMAT:
        raise FormatError(folder, state.get("format"))
    if not (folder / CHECKSUMS).exists():
        raise ValueError(f"{folder} is not whole: {CHECKSUMS} is missing")
    if step_in_name(folder) not in (None, step):
        raise RenamedError(folder, step)
    return state


def check_formats(run: Path) -> None:
    """Raise FormatError or RenamedError where a run folder holds such a checkpoint."""
    for _, folder in sorted(list_checkpoints(run)):
        try:
            read_state(folder)
        except (FormatError, RenamedError):
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
    """Remove checkpoints later than the step that a run continues from, and what is left of others.

    The later ones are damaged, and `rotate` would keep them as the latest. A folder without its
    state is one that a killed process was removing.
    """
    for number, folder in list_checkpoints(run):
        if number > step or not (folder / STATE).exists():
            remove(folder)


def remove_partial(run: Path) -> None:
    """Remove unfinished checkpoints of a process that was killed while it wrote."""
    for folder in run.glob(".checkpoint-*.partial"):
        atomic.remove_folder(folder, ignore_errors=True)


def list_checkpoints(run: Path) -> list[tuple[int, Path]]:
    """Return the step and folder of every checkpoint, whole or not, in no particular order."""
    checkpoints = []
    for path in run.glob("checkpoint-*"):
        step = step_in_name(path)
        if step is not None and path.is_dir():
            checkpoints.append((step, path))
    return checkpoints


def step_in_name(folder: Path) -> int | None:
    """Return the step that the name of a folder states, None where it is not a checkpoint's."""
    match = re.fullmatch(r"checkpoint-(\d+)", folder.name)
    return match and int(match[1])
