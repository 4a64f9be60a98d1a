"""Weights and optimizer state as named tensors: gathered, copied to the host, and put back."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import TypeGuard

import torch
from torch import Tensor, nn

from electra.engine.ema import EMA
from electra.engine.flat_optimizer import FlatOptimizer
from electra.engine.fsdp import full_tensor, is_dtensor, shard_like
from electra.engine.muon import is_muon

ADAMW_KEYS = ("exp_avg", "exp_avg_sq")
MUON_KEYS = ("momentum_buffer",)
TrainingState = tuple[dict[str, Tensor], dict[str, Tensor]]  # weights, optimizer state; by name


def capture(module: nn.Module, optimizer: torch.optim.Optimizer) -> TrainingState:
    """Return the weights and the optimizer state, gathered in the main process."""
    gather_weights(optimizer)
    return weights_of(module), optimizer_state_of(module, optimizer)


def contribute_shards(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Take part in the gathering while the main process captures the state."""
    gather_weights(optimizer)
    weights_of(module, keep=False)
    optimizer_state_of(module, optimizer, keep=False)


def restore(
    state: TrainingState, *, module: nn.Module, optimizer: torch.optim.Optimizer, updates: int
) -> None:
    """Load weights and optimizer state as they were after so many updates."""
    weights, optimizer_state = state
    parameters = dict(module.named_parameters())
    sharded = {}
    for name, tensor in weights.items():
        if name in parameters:
            tensor = shard_like(tensor, parameters[name])
        sharded[name] = tensor
    module.load_state_dict(with_tied_weights(sharded, module), strict=True)
    if not updates and not optimizer_state:  # torch's AdamW has none before its first update
        return
    names = {parameter: name for name, parameter in parameters.items()}
    is_averaged = any(name.endswith(f".{EMA}") for name in optimizer_state)
    states: dict[int, dict[str, Tensor]] = {}
    for number, (parameter, keys) in enumerate(state_keys(optimizer)):
        name = names[parameter]
        if is_averaged:
            keys += (EMA,)
        # A parameter that no loss uses has no gradient, and so no state.
        if not optimizer_state or any(f"{name}.{key}" in optimizer_state for key in keys):
            tensors = {key: optimizer_state[f"{name}.{key}"] for key in keys}
            states[number] = parameter_state(name, parameter, tensors, updates)
    optimizer.load_state_dict(optimizer.state_dict() | {"state": states})


def state_keys(
    optimizer: torch.optim.Optimizer,
) -> Iterator[tuple[nn.Parameter, tuple[str, ...]]]:
    """Yield the parameters of an optimizer, each with the names of the tensors of its state."""
    for group in optimizer.param_groups:
        keys = MUON_KEYS if is_muon(group) else ADAMW_KEYS
        for parameter in group["params"]:
            if EMA in optimizer.state.get(parameter, ()):
                yield parameter, (*keys, EMA)
            else:
                yield parameter, keys


def parameter_state(
    name: str, parameter: nn.Parameter, state: dict[str, Tensor], updates: int
) -> dict[str, Tensor]:
    """Return one parameter's part of an optimizer's state dict; raise for one of another shape."""
    restored = {"step": torch.tensor(float(updates), device=parameter.device)}
    for key, tensor in state.items():
        if tensor.shape != parameter.shape:
            raise ValueError(f"{name}.{key} is of another shape than its weight")
        restored[key] = shard_like(tensor, parameter)
    return restored


def weights_of(module: nn.Module, *, keep: bool = True) -> dict[str, Tensor]:
    """Return every parameter once, gathered, under the first of its names."""
    weights = {name: parameter.detach() for name, parameter in module.named_parameters()}
    return gather(weights, keep=keep)


def with_tied_weights(weights: dict[str, Tensor], module: nn.Module) -> dict[str, Tensor]:
    """Return tied parameters under all their names again, as `load_state_dict` expects them."""
    first_name = {id(parameter): name for name, parameter in module.named_parameters()}
    return {
        name: weights[first_name[id(parameter)]]
        for name, parameter in module.named_parameters(remove_duplicate=False)
    }


def optimizer_state_of(
    module: nn.Module, optimizer: torch.optim.Optimizer, *, keep: bool = True
) -> dict[str, Tensor]:
    """Return the optimizer state, gathered, as `PARAMETER.exp_avg` and so on."""
    if has_sharded_state(optimizer):
        return gather_flat_state(module, optimizer, keep=keep)
    tensors: dict[str, Tensor] = {}
    keys_of = dict(state_keys(optimizer))
    for name, parameter in module.named_parameters():
        if parameter in optimizer.state:
            for key in keys_of[parameter]:
                tensors[f"{name}.{key}"] = optimizer.state[parameter][key]
    return gather(tensors, keep=keep)


def has_sharded_state(optimizer: torch.optim.Optimizer) -> TypeGuard[FlatOptimizer]:
    """Return whether every process has a shard of the optimizer state (ZeRO-1)."""
    return isinstance(optimizer, FlatOptimizer) and optimizer.shard.size > 1


def gather_weights(optimizer: torch.optim.Optimizer) -> None:
    """Let every process have the float32 weights that others have updated; all call this."""
    if has_sharded_state(optimizer):
        optimizer.gather_weights()


def gather_flat_state(
    module: nn.Module, optimizer: FlatOptimizer, *, keep: bool
) -> dict[str, Tensor]:
    """Gather the buffers of a sharded state into host memory, one by one."""
    state: dict[str, Tensor] = {}
    for key in optimizer.own_state:
        whole = optimizer.gather_state(key)
        if keep:
            state |= copy_to_host(
                (f"{name}.{key}", optimizer.view(whole, parameter))
                for name, parameter in module.named_parameters()
                if key in optimizer.state.get(parameter, ())
            )
    return state


def gather(tensors: dict[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """Gather sharded tensors into host memory, one by one; together they may not fit the device.

    Without `keep` this process only contributes its shards and gets nothing.
    """
    if not any(is_dtensor(tensor) for tensor in tensors.values()):
        return tensors
    gathered = ((name, full_tensor(tensor)) for name, tensor in tensors.items())
    return copy_to_host((name, tensor) for name, tensor in gathered if keep)


def copy_to_host(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Copy tensors to host memory; from a GPU to pinned memory, which is several times as fast."""
    copies = {name: tensor.to("cpu", non_blocking=True, copy=True) for name, tensor in tensors}
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return copies


class PinnedStaging:
    """Pinned host memory to which a GPU's weights and optimizer state are copied.

    It is kept, since allocating it takes as long as many steps. Tensors that share a storage are
    copied as one. Where memory cannot be pinned (a container's limit, a full machine), ordinary
    memory takes its place: the copy is slower, and the host waits for it.
    """

    def __init__(self, pointers: list[int], state: TrainingState) -> None:
        self.pointers = pointers  # of the tensors that it was made for
        self.can_pin = True
        # By the storage's address: the buffer on the device, and its copy on the host.
        self.buffers: dict[int, tuple[Tensor, Tensor]] = {}
        weights, optimizer_state = state
        self.state: TrainingState = self.host_views(weights), self.host_views(optimizer_state)

    def host_views(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: self.host_view(tensor) for name, tensor in tensors.items()}

    def host_view(self, tensor: Tensor) -> Tensor:
        """Return the view of host memory that will be this tensor's copy."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.buffers:
            source = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage)
            self.buffers[storage.data_ptr()] = (source, self.allocate_copy(source))
        _, copy = self.buffers[storage.data_ptr()]
        return copy.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def allocate_copy(self, source: Tensor) -> Tensor:
        """Return host memory for the copy of a buffer, pinned if the machine allows it."""
        if source.is_cuda and self.can_pin:
            try:
                return torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
            except RuntimeError as error:
                self.can_pin = False
                warnings.warn(
                    f"no pinned memory for checkpoints ({str(error).splitlines()[0]}); they are "
                    "copied to ordinary memory, and training waits for each copy",
                    stacklevel=2,
                )
        return torch.empty(source.shape, dtype=source.dtype)

    def fill(self) -> None:
        """Start copying all tensors as they are now."""
        for source, copy in self.buffers.values():
            copy.copy_(source, non_blocking=True)


def data_pointers(optimizer: torch.optim.Optimizer) -> list[int]:
    """Return the addresses of everything that training changes; it changes no shapes."""
    parameters, state = [], []
    for parameter, keys in state_keys(optimizer):
        parameters.append(parameter.data_ptr())
        if parameter in optimizer.state:
            state += [optimizer.state[parameter][key].data_ptr() for key in keys]
    return parameters + state
