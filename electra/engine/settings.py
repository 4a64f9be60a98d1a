"""Settings of the optimizer, its learning-rate scheduler, precision and speed. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from electra.config import SettingError

Precision = Literal["auto", "fp32", "bf16", "fp16"]
Switch = Literal["auto", "on", "off"]
Parallel = Literal["ddp", "zero1", "fsdp"]
# Longer than a large checkpoint on a slow disk, for which the other processes wait.
TIMEOUT_MINUTES = 20.0


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig:
    """The optimizer and its learning-rate scheduler.

    Defaults are the official code's for Small (paper, table 6).
    """

    # muon: Muon (Jordan et al. 2024) for the matrices of encoder blocks, AdamW for all else; not
    # with FSDP
    name: Literal["adamw", "muon"] = "adamw"
    learning_rate: float = 5e-4  # at the end of warm-up
    warmup_steps: int = 10_000  # steps in which the rate rises from zero
    # how the rate falls after warm-up; wsd: constant, then linear decay
    schedule: Literal["linear", "cosine", "constant", "wsd"] = "linear"
    decay_ratio: float = 0.4  # share of the steps, at the end, in which "wsd" decays
    weight_decay: float = 0.01  # of weight matrices; biases and norms have none
    betas: tuple[float, float] = (0.9, 0.999)  # of Adam
    epsilon: float = 1e-6  # of Adam
    bias_correction: bool = False  # of Adam; official code: none, which needs a long warm-up
    max_grad_norm: float = 1.0  # larger gradients are clipped to this norm
    # together: by the norm of all gradients; each: generator, main network and the parameters that
    # both share, each by its own norm
    clip: Literal["together", "each"] = "together"
    # of Muon, by default `learning_rate`: its updates are as large as AdamW's (Liu et al. 2025)
    muon_learning_rate: float | None = None
    muon_momentum: float = 0.95  # of Muon (Jordan et al. 2024)
    # of Muon's matrices; it bounds their norms (Liu et al. 2025)
    muon_weight_decay: float = 0.1

    def __post_init__(self) -> None:
        if self.warmup_steps < 0:
            raise SettingError("warmup_steps", "must not be negative", self)
        for name in ("weight_decay", "muon_weight_decay"):
            if getattr(self, name) < 0:
                raise SettingError(name, "must not be negative", self)
        for name in ("learning_rate", "epsilon", "max_grad_norm", "muon_learning_rate"):
            if (value := getattr(self, name)) is not None and value <= 0:
                raise SettingError(name, "must be above 0", self)
        if not 0 <= self.muon_momentum < 1:
            raise SettingError("muon_momentum", "must be in [0, 1)", self)
        if not all(0 <= beta < 1 for beta in self.betas):
            raise SettingError("betas", "must be two numbers in [0, 1)", self)
        if not 0 < self.decay_ratio <= 1:
            raise SettingError("decay_ratio", "must be in (0, 1]", self)
