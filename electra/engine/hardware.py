"""Precision, kernels, compilation, memory and peak FLOPs of this machine."""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

from electra.config import SettingError, UserError
from electra.engine.distributed import World
from electra.engine.settings import Parallel, Precision, Switch
from electra.kernels import is_supported

# Dense bf16 operations a second, from the vendors' data sheets; the first key whose words a card's
# name contains counts.
PEAK_FLOPS = {
    "GB200": 2500e12,
    "B200": 2250e12,
    "GH200": 989e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "A10G": 70e12,
    "A10": 125e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
}
# Where Linux states how much memory a container may take: cgroups of version 2, and of version 1.
CONTAINER_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
# Names of parts of a card (MIG, vGPU) and of other cards than the one that they begin with.
OTHER_CARD = re.compile(r"\b(MIG|Laptop|Max-Q|Ti|D)\b|-\d+[ABCQ]\b")


def resolve_precision(precision: Precision, device: torch.device) -> Precision:
    """Decide what "auto" means on this device; raise SettingError for what it cannot compute in."""
    if device.type == "cpu" and precision == "fp16":
        raise SettingError("precision", "--precision fp16 needs a GPU; use bf16 or fp32 on a CPU")
    if device.type == "cpu" and precision == "bf16" and not can_multiply_in_bf16():
        raise SettingError(
            "precision", "--precision bf16: this CPU cannot multiply in bf16; use fp32, or a GPU"
        )
    if precision != "auto":
        return precision
    if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        return "bf16"
    return "fp32"


def can_multiply_in_bf16() -> bool:
    """Return whether a product in bf16 succeeds on this CPU.

    Where oneDNN cannot compute it, torch prints pages of C++ frames as a warning, takes another
    library and leaves oneDNN switched off, for float32 too.
    """
    was_enabled = torch.backends.mkldnn.enabled
    matrix = torch.ones(64, 64, dtype=torch.bfloat16)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            torch.mm(matrix, matrix)
        except RuntimeError:
            return False
        finally:
            torch.backends.mkldnn.enabled = was_enabled
    return not caught


def peak_flops(world: World) -> float | None:
    """Return the peak FLOPs of all processes' cards together; None where that is not known."""
    if world.device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(world.device)
    if OTHER_CARD.search(name):
        return None
    for card, peak in PEAK_FLOPS.items():
        if re.search(rf"\b{card}\b", name):  # "RTX A1000" is no "A100"
            return world.size * peak
    return None


class SpeedSwitches(Protocol):
    """The settings of kernels, CUDA graphs and compilation, of pre-training or fine-tuning."""

    @property
    def kernels(self) -> Switch: ...
    @property
    def cuda_graph(self) -> Switch: ...
    @property
    def compile(self) -> Switch: ...


@dataclass(frozen=True, kw_only=True)
class KernelDemands:
    """What a run asks of the kernels."""

    head_width: int  # the widest of all networks
    causal: bool = False
    parallel: Parallel = "ddp"
    activation_checkpointing: bool = False

    def obstacle(self) -> str | None:
        """Return why kernels cannot run this, on whatever hardware; None where they can."""
        if self.causal:
            return (
                "the kernels have no causal attention, and this encoder is causal (a token attends "
                "to none after it)"
            )
        if self.parallel == "fsdp":
            return (
                "the kernels need whole weights, and with --parallel fsdp a process holds only a "
                "part of them"
            )
        if self.activation_checkpointing:
            return (
                "the kernels keep what backward needs, and --activation-checkpointing true "
                "computes it again"
            )
        return None


class Speed(NamedTuple):
    """Which accelerations a step uses; with all off it is plain PyTorch."""

    kernels: bool
    cuda_graph: bool
    compiled: bool

    def kernel_dtype(self, precision: Precision) -> torch.dtype | None:
        """Return the dtype that kernels compute in, or None where they are off."""
        if not self.kernels:
            return None
        return autocast_dtype(precision)


def resolve_speed(
    switches: SpeedSwitches,
    precision: Precision,
    device: torch.device,
    demands: KernelDemands,
    *,
    flag: str = "--training.",
    compile_on_gpu: bool = True,
) -> Speed:
    """Decide what "auto" means here. Raise UserError for a switch that cannot be on."""
    obstacle = demands.obstacle()
    possible = obstacle is None and precision == "bf16"
    possible = possible and is_supported(device, head_width=demands.head_width)
    if switches.kernels == "on":
        check_kernels(switches, obstacle, possible, flag=flag)
    by_default = switches.kernels == "auto" and switches.compile != "on"
    kernels = switches.kernels == "on" or (by_default and possible)
    if switches.cuda_graph == "on" and not kernels:
        raise UserError(
            f"{flag}cuda-graph on needs the kernels, which are off here; leave it at auto, or see "
            f"with {flag}kernels on what they lack"
        )
    by_default = compile_on_gpu and device.type == "cuda" and not kernels
    compiled = switches.compile == "on" or (switches.compile == "auto" and by_default)
    return Speed(kernels, kernels and switches.cuda_graph != "off", compiled)


def check_kernels(
    switches: SpeedSwitches, obstacle: str | None, possible: bool, *, flag: str
) -> None:
    """Raise UserError where kernels are switched on and cannot run."""
    if obstacle is not None:
        raise UserError(f"{flag}kernels on: {obstacle}; leave {flag}kernels at auto, or pass off")
    if not possible:
        raise UserError(
            f"{flag}kernels on needs Triton, an NVIDIA GPU of the Ampere generation or later, "
            "bf16 and heads no wider than 128 (64 on cards with little shared memory); pass "
            f"{flag}kernels off to go without them, also in a run that was begun with them"
        )
    if switches.compile == "on":
        raise UserError(
            f"{flag}kernels on and {flag}compile on do the same work; choose one of them"
        )


def use_deterministic_algorithms() -> None:
    """Make compiled code on a GPU deterministic, at some cost in speed.

    Nothing else needs it. Compiled code adds gradients of shared rows in whatever order they
    arrive, and chooses kernels by timing them anew in each process.
    """
    import torch._inductor.config as inductor

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    inductor.deterministic = True  # type: ignore[attr-defined, unused-ignore]


def free_bytes(device: torch.device) -> int:
    """Return the memory for this process: what a GPU has free, or a share of half of the machine's.

    The processes that torchrun started on a machine have equal shares.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    return machine_bytes() // 2 // int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def machine_bytes() -> int:
    """Return the memory of this machine, or of the container where that is limited to less."""
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in CONTAINER_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # not this version of cgroups, or "max"
            sizes.append(int(file.read_text(encoding="ascii")))
    return min(sizes)


def autocast(precision: Precision, device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, dtype=autocast_dtype(precision), enabled=precision != "fp32")


def autocast_dtype(precision: Precision) -> torch.dtype:
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
