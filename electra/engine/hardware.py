"""What this machine can do: precision, kernels, compilation, memory, peak FLOPs."""

from __future__ import annotations

import os
from typing import NamedTuple, Protocol

import torch

from electra.config import UserError
from electra.engine.distributed import World
from electra.engine.settings import Parallel, Precision, Switch
from electra.kernels import usable

# Dense bf16 operations a second, as the vendor states them; the name of a card contains one of
# these.
PEAKS = {
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10G": 70e12,
    "A10": 125e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
}


def resolve_precision(wanted: Precision, device: torch.device) -> Precision:
    if device.type == "cpu" and wanted == "fp16":
        raise UserError("--precision fp16 needs a GPU; use bf16 or fp32 on a CPU")
    if wanted != "auto":
        return wanted
    return (
        "bf16"
        if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        else "fp32"
    )


def peak_flops(world: World) -> float | None:
    """What all processes' cards could do together; None where that is not known."""
    if world.device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(world.device)
    return next((world.size * peak for card, peak in PEAKS.items() if card in name), None)


class Switches(Protocol):
    """What a recipe says of its speed, for pre-training or fine-tuning."""

    @property
    def kernels(self) -> Switch: ...
    @property
    def cuda_graph(self) -> Switch: ...
    @property
    def compile(self) -> Switch: ...


class Speed(NamedTuple):
    """How a step is taken: all off is plain torch."""

    kernels: bool
    cuda_graph: bool
    compiled: bool


def resolve_speed(
    asked: Switches,
    precision: Precision,
    device: torch.device,
    *,
    head_width: int,
    causal: bool = False,
    parallel: Parallel = "ddp",
    recomputed: bool = False,
    flag: str = "--training.",
    compile_on_gpu: bool = True,
) -> Speed:
    """What "auto" means here; what cannot be is refused. `head_width` is the widest of all
    networks, `causal` whether any looks at earlier tokens alone, `recomputed` whether backward
    computes blocks again.
    """
    obstacles = [
        reason
        for reason, there in (
            (
                "the kernels know no causal attention, and this encoder is causal (its tokens see "
                "none after them)",
                causal,
            ),
            (
                "the kernels need whole weights, and --parallel fsdp leaves a process its part of "
                "them",
                parallel == "fsdp",
            ),
            (
                "the kernels keep what backward needs, and --activation-checkpointing true "
                "computes it again",
                recomputed,
            ),
        )
        if there
    ]
    able = precision == "bf16" and not obstacles and usable(device, head_width=head_width)
    if asked.kernels == "on" and obstacles:
        raise UserError(
            f"{flag}kernels on: {obstacles[0]}; leave {flag}kernels at auto, or pass off"
        )
    if asked.kernels == "on" and not able:
        raise UserError(
            f"{flag}kernels on needs Triton, an NVIDIA GPU of the Ampere generation or later, "
            "bf16 and "
            f"heads no wider than 128 (64 on cards with little shared memory); pass {flag}kernels "
            "off to "
            "go without them, also in a run that was begun with them"
        )
    if asked.kernels == "on" and asked.compile == "on":
        raise UserError(
            f"{flag}kernels on and {flag}compile on do the same work; choose one of them"
        )
    kernels = asked.kernels == "on" or (asked.kernels == "auto" and able and asked.compile != "on")
    if asked.cuda_graph == "on" and not kernels:
        raise UserError(f"{flag}cuda-graph on needs the kernels, which are off here")
    by_default = compile_on_gpu and device.type == "cuda" and not kernels
    return Speed(
        kernels,
        kernels and asked.cuda_graph != "off",
        asked.compile == "on" or (asked.compile == "auto" and by_default),
    )


def be_deterministic() -> None:
    """The same bits from the same state, at some cost in speed. Only compiled code on a GPU needs
    it: it adds gradients of shared rows in whatever order they arrive, and chooses kernels by
    timing them anew in each process.
    """
    import torch._inductor.config as inductor

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    inductor.deterministic = True  # type: ignore[attr-defined, unused-ignore]


def free_bytes(device: torch.device) -> int:
    """Memory for this process: what a GPU has left, or half of this machine's."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def autocast(precision: str, device: torch.device) -> torch.autocast:
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    return torch.autocast(device.type, dtype=dtype, enabled=precision != "fp32")
