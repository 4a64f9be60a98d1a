"""A run's whole state in, the same run out — bit for bit.

Weights, the optimiser's slots and the step are all there is: data order, masks, samples and dropout follow from the
seed and the step. Stored as safetensors and JSON, since a user may be handed somebody else's run folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
import types
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from electra import atomic
from electra.config import convert, from_json, whole_text
from electra.training.sharded import in_parts, is_sharded, part_of, whole

FORMAT = 1
STATE = "state.json"  # a folder without it is not a checkpoint
TENSORS = ("weights.safetensors", "optimizer.safetensors")
SLOTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint on disk: every file is there and has the content it was written with."""

    folder: Path
    step: int
    state: dict[str, Any]


Contents = tuple[dict[str, Tensor], dict[str, Tensor]]  # weights and slots by name


def save(run: Path, *, step: int, module: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> Path:
    """Write `checkpoint-STEP` now, while nothing moves."""
    return write(run, (weights_of(module), slots_of(module, optimizer)), step=step, state=state)


def write(run: Path, contents: Contents, *, step: int, state: dict[str, Any]) -> Path:
    """`checkpoint-STEP`, whole or not at all."""
    target = run / f"checkpoint-{step}"
    with atomic.replacing(target) as folder:
        for file, tensors in zip(TENSORS, contents, strict=True):
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / file)
        checksums = {name: checksum(folder / name) for name in TENSORS}
        atomic.write_json(folder / STATE, {"format": FORMAT, "step": step, "checksums": checksums, **state})
    return target


def contribute(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Hand over this process's parts of what the leading one saves."""
    weights_of(module, kept=False)
    slots_of(module, optimizer, kept=False)


class Background:
    """Writes one copy at a time beside the steps. What goes wrong there is raised here, when next asked about it."""

    def __init__(self) -> None:
        self.pool, self.work = ThreadPoolExecutor(1, "checkpoint"), Future[None]()
        self.work.set_result(None)
        self.room: Room | None = None
        self.copying: torch.cuda.Event | None = None

    def copied(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> Contents:
        """Weights and slots as they are now, in this machine's memory, to be written while they move on. The other
        processes `contribute` to a module that is spread over them.

        A GPU copies beside the next pass: work that is begun waits until it has, and so must whatever changes weights
        or slots (`hold`)."""
        self.wait()  # two copies may be too many for the memory
        if is_sharded(module) or not torch.cuda.is_available():
            weights, slots = weights_of(module), slots_of(module, optimizer)
            # What lay in parts was copied when it was gathered.
            return (weights, slots) if is_sharded(module) else (on_host(weights.items()), on_host(slots.items()))
        places = places_of(optimizer)
        if self.room is None or self.room.places != places:
            self.room = None  # both may be too much for the memory
            self.room = Room(places, weights_of(module), slots_of(module, optimizer))
        beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            self.room.fill()
            self.copying = beside.record_event()
        return self.room.contents

    def hold(self) -> None:
        """Whatever a GPU is told from here on it does after its copy."""
        if self.copying is not None:
            torch.cuda.current_stream().wait_event(self.copying)

    def begin(self, work: Callable[[], None]) -> None:
        """As soon as a copy that a GPU is making is whole."""
        self.wait()
        self.work = self.pool.submit(after, self.copying, work)

    def look(self) -> None:
        if self.work.done():
            self.wait()

    def wait(self) -> None:
        self.work.result()

    def __enter__(self) -> Background:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: types.TracebackType | None) -> None:
        self.pool.shutdown()
        with contextlib.suppress(Exception) if error else contextlib.nullcontext():  # the first failure is the one told
            self.wait()


def after(event: torch.cuda.Event | None, work: Callable[[], None]) -> None:
    if event is not None:
        event.synchronize()
    work()


def load(checkpoint: Checkpoint, *, module: nn.Module, optimizer: torch.optim.Optimizer, updates: int) -> None:
    """Put weights and slots back where they were, after so many updates."""
    weights, slots = (load_file(checkpoint.folder / name) for name in TENSORS)
    named = dict(module.named_parameters())
    weights = {name: part_of(tensor, named[name]) if name in named else tensor for name, tensor in weights.items()}
    module.load_state_dict(complete(weights, module), strict=True)
    if not updates and not slots:  # an optimiser has none before its first update
        return
    for name, parameter in named.items():
        if parameter.requires_grad:
            for slot in ("exp_avg", "exp_avg_sq"):
                if slots[f"{name}.{slot}"].shape != parameter.shape:
                    raise ValueError(f"{name}.{slot} is of another shape than its weight")
            optimizer.state[parameter] = {
                "step": torch.tensor(float(updates), device=parameter.device),
                **{slot: part_of(slots[f"{name}.{slot}"], parameter) for slot in ("exp_avg", "exp_avg_sq")},
            }


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
        state = from_json(whole_text(folder / STATE))
        wanted, step = dict(state["checksums"]), convert(state["step"], int, source=str(folder / STATE), key="step")
    except FileNotFoundError:
        raise ValueError(f"{folder} is not a whole checkpoint: {STATE} is missing") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(f"{folder / STATE} is damaged") from None
    if state.get("format") != FORMAT:
        raise ValueError(f"{folder} has checkpoint format {state.get('format')!r}, this version reads {FORMAT}")
    for name in TENSORS:
        if not (folder / name).is_file():
            raise ValueError(f"{folder} is not a whole checkpoint: {name} is missing")
        if checksum(folder / name) != wanted.get(name):
            raise ValueError(f"{folder / name} is damaged: its checksum is not the one it was written with")
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
    (folder / STATE).unlink(missing_ok=True)  # from here on it is not a checkpoint, whatever happens next
    shutil.rmtree(folder)


def forget_after(run: Path, step: int) -> None:
    """Remove what is newer than the step a run goes on from: damaged ones, which rotation would take for the newest."""
    for number, folder in numbered(run):
        if number > step:
            remove(folder)


def sweep(run: Path) -> None:
    """Remove what a killed writer left."""
    for folder in run.glob(".checkpoint-*.partial"):
        shutil.rmtree(folder, ignore_errors=True)


def numbered(run: Path) -> list[tuple[int, Path]]:
    found = ((re.fullmatch(r"checkpoint-(\d+)", path.name), path) for path in run.glob("checkpoint-*"))
    return [(int(match[1]), path) for match, path in found if match and path.is_dir()]


def weights_of(module: nn.Module, *, kept: bool = True) -> dict[str, Tensor]:
    """Every parameter once, whole, under the first of its names."""
    return gathered({name: parameter.detach() for name, parameter in module.named_parameters()}, kept=kept)


def complete(weights: dict[str, Tensor], module: nn.Module) -> dict[str, Tensor]:
    """Shared parameters again under all their names, as `load_state_dict` wants them."""
    first_name = {id(parameter): name for name, parameter in module.named_parameters()}
    return {name: weights[first_name[id(parameter)]]
            for name, parameter in module.named_parameters(remove_duplicate=False)}


def slots_of(module: nn.Module, optimizer: torch.optim.Optimizer, *, kept: bool = True) -> dict[str, Tensor]:
    return gathered({f"{name}.{slot}": optimizer.state[parameter][slot]
                     for name, parameter in module.named_parameters() if parameter in optimizer.state
                     for slot in SLOTS}, kept=kept)


def gathered(tensors: dict[str, Tensor], *, kept: bool) -> dict[str, Tensor]:
    """All of each, off the device where they lay in parts: together they need not fit there. Nothing where they are
    not kept."""
    if not any(in_parts(tensor) for tensor in tensors.values()):
        return tensors
    wholes = ((name, whole(tensor)) for name, tensor in tensors.items())  # one at a time
    return on_host((name, full) for name, full in wholes if kept)


def on_host(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Copies in this machine's memory; from a GPU into pinned memory, which is several times as fast to fill."""
    copies = {name: tensor.to("cpu", non_blocking=True, copy=True) for name, tensor in tensors}
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return copies


class Room:
    """Where a GPU's weights and slots are copied to: pinned memory, held, since to take it lasts as long as many steps,
    and so does finding out anew what lies where. Tensors that share a stretch of memory are copied as one."""

    def __init__(self, places: list[int], *contents: dict[str, Tensor]) -> None:
        self.places = places  # of what it was made for
        self.stretches: dict[int, tuple[Tensor, Tensor]] = {}  # by its place: there and here
        weights, slots = ({name: self.view(tensor) for name, tensor in tensors.items()} for tensors in contents)
        self.contents: Contents = weights, slots

    def view(self, tensor: Tensor) -> Tensor:
        """What will be this tensor's copy."""
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in self.stretches:
            there = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(memory)
            self.stretches[memory.data_ptr()] = there, torch.empty(there.shape, dtype=there.dtype,
                                                                   pin_memory=there.is_cuda)
        _, here = self.stretches[memory.data_ptr()]
        return here.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def fill(self) -> None:
        for there, here in self.stretches.values():
            here.copy_(there, non_blocking=True)


def places_of(optimizer: torch.optim.Optimizer) -> list[int]:
    """Where in memory everything lies that training changes. It changes no shapes, and nothing that does not learn."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    slots = [optimizer.state[parameter][slot] for parameter in parameters if parameter in optimizer.state
             for slot in SLOTS]
    return [tensor.data_ptr() for tensor in (*parameters, *slots)]


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
