"""Weights and optimizer state as named tensors: gathered, copied to the host, and put back."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from electra.engine.fsdp import full_tensor, is_dtensor, shard_like

STATE_KEYS = ("exp_avg", "exp_avg_sq")
TrainingState = tuple[dict[str, Tensor], dict[str, Tensor]]  # weights and slots by name


def contribute(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Hand over this process's parts of what the leading one saves."""
    weights_of(module, kept=False)
    optimizer_state_of(module, optimizer, kept=False)


def capture(module: nn.Module, optimizer: torch.optim.Optimizer) -> TrainingState:
    """Weights and slots as they are now."""
    return weights_of(module), optimizer_state_of(module, optimizer)


def restore(
    contents: TrainingState, *, module: nn.Module, optimizer: torch.optim.Optimizer, updates: int
) -> None:
    """Put weights and slots back where they were, after so many updates."""
    weights, slots = contents
    named = dict(module.named_parameters())
    weights = {
        name: shard_like(tensor, named[name]) if name in named else tensor
        for name, tensor in weights.items()
    }
    module.load_state_dict(complete(weights, module), strict=True)
    if not updates and not slots:  # an optimiser has none before its first update
        return
    names = {parameter: name for name, parameter in named.items()}
    states: dict[int, dict[str, Tensor]] = {}
    groups = (group["params"] for group in optimizer.param_groups)
    for number, parameter in enumerate(itertools.chain.from_iterable(groups)):
        name = names[parameter]
        # A parameter that no loss uses has no gradient, and so no state.
        if not slots or f"{name}.{STATE_KEYS[0]}" in slots:
            states[number] = parameter_state(name, parameter, slots, updates)
    optimizer.load_state_dict(optimizer.state_dict() | {"state": states})


def parameter_state(
    name: str, parameter: nn.Parameter, state: dict[str, Tensor], updates: int
) -> dict[str, Tensor]:
    """Return one parameter's part of an optimizer's state dict; raise for one of another shape."""
    restored = {"step": torch.tensor(float(updates), device=parameter.device)}
    for key in STATE_KEYS:
        tensor = state[f"{name}.{key}"]
        if tensor.shape != parameter.shape:
            raise ValueError(f"{name}.{key} is of another shape than its weight")
        restored[key] = shard_like(tensor, parameter)
    return restored


def weights_of(module: nn.Module, *, kept: bool = True) -> dict[str, Tensor]:
    """Every parameter once, whole, under the first of its names."""
    return gathered(
        {name: parameter.detach() for name, parameter in module.named_parameters()}, kept=kept
    )


def complete(weights: dict[str, Tensor], module: nn.Module) -> dict[str, Tensor]:
    """Shared parameters again under all their names, as `load_state_dict` wants them."""
    first_name = {id(parameter): name for name, parameter in module.named_parameters()}
    return {
        name: weights[first_name[id(parameter)]]
        for name, parameter in module.named_parameters(remove_duplicate=False)
    }


def optimizer_state_of(
    module: nn.Module, optimizer: torch.optim.Optimizer, *, kept: bool = True
) -> dict[str, Tensor]:
    return gathered(
        {
            f"{name}.{slot}": optimizer.state[parameter][slot]
            for name, parameter in module.named_parameters()
            if parameter in optimizer.state
            for slot in STATE_KEYS
        },
        kept=kept,
    )


def gathered(tensors: dict[str, Tensor], *, kept: bool) -> dict[str, Tensor]:
    """All of each, off the device where they lay in parts: together they need not fit there.
    Nothing where they are not kept.
    """
    if not any(is_dtensor(tensor) for tensor in tensors.values()):
        return tensors
    wholes = ((name, full_tensor(tensor)) for name, tensor in tensors.items())  # one at a time
    return on_host((name, full) for name, full in wholes if kept)


def on_host(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Copies in this machine's memory; from a GPU into pinned memory, which is several times as
    fast to fill.
    """
    copies = {name: tensor.to("cpu", non_blocking=True, copy=True) for name, tensor in tensors}
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return copies


class PinnedStaging:
    """Where a GPU's weights and slots are copied to: pinned memory, held, since to take it lasts as
    long as many steps, and so does finding out anew what lies where. Tensors that share a stretch
    of memory are copied as one.
    """

    def __init__(self, places: list[int], *contents: dict[str, Tensor]) -> None:
        self.places = places  # of what it was made for
        self.stretches: dict[int, tuple[Tensor, Tensor]] = {}  # by its place: there and here
        weights, slots = (
            {name: self.view(tensor) for name, tensor in tensors.items()} for tensors in contents
        )
        self.contents: TrainingState = weights, slots

    def view(self, tensor: Tensor) -> Tensor:
        """What will be this tensor's copy."""
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in self.stretches:
            there = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(memory)
            self.stretches[memory.data_ptr()] = (
                there,
                torch.empty(there.shape, dtype=there.dtype, pin_memory=there.is_cuda),
            )
        _, here = self.stretches[memory.data_ptr()]
        return here.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def fill(self) -> None:
        for there, here in self.stretches.values():
            here.copy_(there, non_blocking=True)


def places_of(optimizer: torch.optim.Optimizer) -> list[int]:
    """Where in memory everything lies that training changes. It changes no shapes, and nothing that
    does not learn.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    slots = [
        optimizer.state[parameter][slot]
        for parameter in parameters
        if parameter in optimizer.state
        for slot in STATE_KEYS
    ]
    return [tensor.data_ptr() for tensor in (*parameters, *slots)]
