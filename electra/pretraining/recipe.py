"""A recipe: one run as data. Built-in ones are TOML files in `electra/recipes/`; a user's own file
looks the same.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from electra.config import RECIPES, SettingError, in_section
from electra.data.prepare import DataConfig
from electra.engine.settings import TIMEOUT_MINUTES, OptimizerConfig, Parallel, Precision, Switch
from electra.files import read_toml
from electra.model.flops import Workload
from electra.model.shape import EncoderShape
from electra.objectives.settings import (
    LeftToRightConfig,
    MaskedLMConfig,
    ObjectiveConfig,
    ReplacedTokenDetectionConfig,
)
from electra.settings import build_layers, find_recipe, parse_environment, parse_flags


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    """How long, in what portions, with what precision, and how often something is said, measured or
    saved.
    """

    max_steps: int = 1_000_000
    batch_size: int = 128  # sequences in a step, over all processes
    micro_batch_size: int | None = (
        None  # sequences in one pass; from memory when not said, then kept
    )
    seed: int = 0
    precision: Precision = "auto"  # auto: bf16 on a GPU that has it
    kernels: Switch = "auto"  # hand-written GPU kernels; auto: on a GPU that has bf16
    cuda_graph: Switch = (
        "auto"  # replay a pass instead of launching its parts one by one; auto: with the kernels
    )
    compile: Switch = "auto"  # torch.compile; auto: on a GPU where the kernels are off
    # processes hold all weights each (ddp), or share them, gradients and slots out (fsdp)
    parallel: Parallel = "ddp"
    activation_checkpointing: bool = (
        False  # blocks are computed again in backward: less memory, a third more work
    )
    deterministic: bool = (
        False  # compiled GPU runs resume bit for bit only with it; with the kernels all do
    )
    logging_steps: int = 100
    eval_steps: int = 5_000
    eval_rows: int = 2_048
    save_steps: int = 5_000
    save_total_limit: int = 2
    report_to: Literal["none", "tensorboard"] = "none"
    timeout_minutes: float = (
        TIMEOUT_MINUTES  # of standing still, until a run of several processes gives up
    )
    skip_not_finite: int = (
        0  # steps, in the whole run, that may be left out because their gradient was not finite
    )

    def __post_init__(self) -> None:
        for name in (
            "max_steps",
            "batch_size",
            "logging_steps",
            "eval_steps",
            "eval_rows",
            "save_steps",
            "save_total_limit",
        ):
            if getattr(self, name) < 1:
                raise SettingError(name, "must be at least 1", self)
        if not 0.05 <= self.timeout_minutes <= 1e6:
            raise SettingError("timeout_minutes", "must be from 0.05 to 1,000,000", self)
        if self.skip_not_finite < 0:
            raise SettingError("skip_not_finite", "must not be negative", self)
        if not 0 <= self.seed < 2**63:
            raise SettingError("seed", "must be a number from 0 to 2^63 − 1", self)
        if self.micro_batch_size is not None and (
            self.micro_batch_size < 1 or self.batch_size % self.micro_batch_size
        ):
            raise SettingError(
                "batch_size",
                "is not made of whole micro-batches of {micro_batch_size}; choose a divisor",
                self,
            )
        if self.precision == "fp16" and self.parallel == "fsdp":
            raise SettingError(
                "precision",
                "does not go with {parallel}, where no process sees an overflow in the others' "
                "part of a gradient; choose bf16, or ddp",
                self,
            )

    def spread_over(self, processes: int) -> int | None:
        """Over how many processes the weights lie spread, if they do."""
        return processes if self.parallel == "fsdp" else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """One pre-training run."""

    data: DataConfig = field(default_factory=DataConfig)
    encoder: EncoderShape = field(default_factory=EncoderShape)
    objective: ObjectiveConfig = field(default_factory=ReplacedTokenDetectionConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def __post_init__(self) -> None:
        if self.data.length > self.encoder.positions:
            raise SettingError("data.length", "is more than {encoder.positions}", self)
        if self.encoder.causal != isinstance(self.objective, LeftToRightConfig):
            must, remedy = ("must", "false") if self.encoder.causal else ("must not", "true")
            raise SettingError(
                "encoder.causal",
                f"does not go with {{objective.name}}, whose tokens {must} see those after them; "
                f"set {{encoder.causal:name}} to {remedy}",
                self,
            )
        if (
            isinstance(self.objective, MaskedLMConfig)
            and self.objective.next_sentence
            and 1 in (self.training.batch_size, self.training.micro_batch_size)
        ):
            raise SettingError(
                "objective.next_sentence",
                "takes second segments from other rows of a micro-batch, and in one of a single "
                "row there is no other; set {training.micro_batch_size:name} to 2 or more",
                self,
            )
        with in_section(
            "objective"
        ):  # a generator that cannot stand beside this encoder is refused
            self.workload(self.data.vocab_size)

    def workload(self, vocabulary: int) -> Workload:
        """What a token goes through in this run."""
        return self.objective.workload(self.encoder, vocabulary=vocabulary, length=self.data.length)


# What a run may change when it continues: how long it lasts, how often it speaks, measures and
# saves, how a batch is cut and how a step is taken. Another machine may need the last two; what
# drops out is then drawn otherwise, so not the same bits.
MAY_CHANGE = {
    "training.max_steps",
    "training.micro_batch_size",
    "training.kernels",
    "training.cuda_graph",
    "training.compile",
    "training.parallel",
    "training.activation_checkpointing",
    "training.logging_steps",
    "training.eval_steps",
    "training.eval_rows",
    "training.save_steps",
    "training.save_total_limit",
    "training.report_to",
    "training.timeout_minutes",
    "training.skip_not_finite",
}


def load_recipe(name: str, *, files: Sequence[Path] = (), flags: Sequence[str] = ()) -> Recipe:
    """A recipe by name or file; further files, the environment, then flags win over it."""
    path = find_recipe(name)
    layers = {str(path) if path.parent != RECIPES else f"recipe {name}": read_toml(path)}
    layers |= {str(file): read_toml(Path(file)) for file in files}
    layers |= {
        "environment": parse_environment(os.environ, Recipe),
        "command line": parse_flags(flags, Recipe),
    }
    return build_layers(Recipe, layers)
