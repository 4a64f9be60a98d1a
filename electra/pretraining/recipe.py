"""The settings of one pre-training run as a dataclass, and the loading of recipe files.

Built-in recipes are TOML files in `electra/recipes/`; a user's own file has the same keys.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from electra.config import RECIPES, Layer, SettingError, UserError, in_section
from electra.data.batch_schedule import BatchSchedule
from electra.data.prepare import DataConfig
from electra.engine.settings import TIMEOUT_MINUTES, OptimizerConfig, Parallel, Precision, Switch
from electra.files import read_toml
from electra.model.memory import StateLayout
from electra.model.shape import EncoderShape
from electra.model.workload import Workload
from electra.objectives.masking import Masking
from electra.objectives.settings import (
    ObjectiveConfig,
    ReplacedTokenDetectionConfig,
)
from electra.runs.trackers import parse_names
from electra.settings import build_layers, find_recipe, parse_environment, parse_flags


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    """How long and in which batches a run trains, how steps are computed, and how often it logs,
    evaluates and saves.
    """

    max_steps: int = 1_000_000  # steps to train for
    batch_size: int = 128  # sequences in a step, over all processes
    # sequences in the first step, a divisor of `batch_size`, which is reached in stages after
    # `batch_ramp_steps`; by default all steps have `batch_size`; not with FSDP
    initial_batch_size: int | None = None
    batch_ramp_steps: int | None = None  # steps with fewer sequences than `batch_size`
    # sequences in one forward pass; by default as many as fit in memory, kept when a run resumes
    micro_batch_size: int | None = None
    seed: int = 0  # of everything that is random
    precision: Precision = "auto"  # auto: bf16 on a GPU that has it
    kernels: Switch = "auto"  # hand-written GPU kernels; auto: on a GPU that has bf16
    # replay a forward and backward pass as one CUDA graph; auto: with the kernels
    cuda_graph: Switch = "auto"
    compile: Switch = "auto"  # torch.compile; auto: on a GPU where the kernels are off
    # every process holds all weights and optimizer state (ddp), all weights and a shard of the
    # optimizer state (zero1, with the kernels), or a shard of everything (fsdp)
    parallel: Parallel = "ddp"
    # blocks are computed again in backward: less memory, a third more work
    activation_checkpointing: bool = False
    # compiled GPU runs resume bit for bit only with it; with the kernels all do
    deterministic: bool = False
    # of an exponential moving average of the weights, which evaluation and export then use, as
    # 0.999; 0: none
    ema_decay: float = 0.0
    logging_steps: int = 100  # steps between two entries of metrics.jsonl
    eval_steps: int = 5_000  # steps between two evaluations on held-out rows
    eval_rows: int = 2_048  # held-out rows of an evaluation, at most
    save_steps: int = 5_000  # steps between two checkpoints
    save_total_limit: int = 2  # checkpoints to keep
    # tensorboard, wandb, trackio, or several with commas between, beside metrics.jsonl; or none
    report_to: str = "none"
    # without progress, until a run of several processes gives up
    timeout_minutes: float = TIMEOUT_MINUTES
    # updates, in the whole run, that may be skipped because their gradient was not finite
    skip_not_finite: int = 0
    # stop a run of which two evaluations in a row find that a network has collapsed, that is, gives
    # all tokens one answer
    stop_on_collapse: bool = True

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
        if not 0 <= self.ema_decay < 1:
            raise SettingError("ema_decay", "must be in [0, 1)", self)
        if not 0 <= self.seed < 2**63:
            raise SettingError("seed", "must be a number from 0 to 2^63 − 1", self)
        self.check_batch_ramp()
        self.check_report_to()
        self.check_micro_batch_size()
        if self.precision == "fp16" and self.parallel == "fsdp":
            raise SettingError(
                "precision",
                "does not go with {parallel}, where no process sees an overflow in the others' "
                "part of a gradient; choose bf16, or ddp",
                self,
            )

    def check_report_to(self) -> None:
        """Raise SettingError for a tracker that is not known."""
        try:
            parse_names(self.report_to)
        except UserError as error:
            raise SettingError("report_to", str(error), self) from None

    def check_batch_ramp(self) -> None:
        """Raise SettingError where the batch cannot grow as these settings say."""
        initial, steps = self.initial_batch_size, self.batch_ramp_steps
        if initial is None and steps is None:
            return
        if initial is None or not 1 <= initial < self.batch_size or self.batch_size % initial:
            raise SettingError(
                "initial_batch_size",
                "must be a divisor of {batch_size} and smaller, where the batch grows for "
                "{batch_ramp_steps}",
                self,
            )
        if steps is None or steps < self.batch_size // initial - 1:
            raise SettingError(
                "batch_ramp_steps",
                f"must be at least {self.batch_size // initial - 1}: every batch size from "
                "{initial_batch_size} up to {batch_size} takes a step or more",
                self,
            )
        if self.parallel == "fsdp":
            raise SettingError(
                "initial_batch_size",
                "does not go with {parallel}, where all steps have equally many micro-batches; "
                "choose ddp",
                self,
            )

    def check_micro_batch_size(self) -> None:
        """Raise SettingError where micro-batches of this size do not make up every batch."""
        if self.micro_batch_size is None:
            return
        smallest_batch = "batch_size"
        if self.initial_batch_size is not None:
            smallest_batch = "initial_batch_size"
        rows, size = getattr(self, smallest_batch), self.micro_batch_size
        if size >= 1 and rows % size == 0:
            return
        if not 1 <= size <= rows:
            size = rows
        # The size may be the recipe's, and a user who passed the batch size alone not know of it.
        divisor = next(number for number in range(size, 0, -1) if rows % number == 0)
        raise SettingError(
            smallest_batch,
            "is not made of whole micro-batches of {micro_batch_size}; choose a divisor with "
            f"--micro-batch-size {divisor}, or none for as many rows as fit in memory",
            self,
        )

    @property
    def batch_schedule(self) -> BatchSchedule:
        """The batch size of each step."""
        return BatchSchedule(
            self.batch_size, self.initial_batch_size or self.batch_size, self.batch_ramp_steps or 0
        )

    @property
    def rows(self) -> int:
        """The sequences that all steps read together."""
        return self.batch_schedule.rows_after(self.max_steps)


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """The settings of one pre-training run.

    `electra settings` explains each of them.

    Attributes
    ----------
    data
        Length of rows, size and kind of the vocabulary.
    encoder
        Shape of the encoder.
    objective
        What is learned, and the shape of the generator.
    optimizer
        Optimizer, learning rate and schedule.
    training
        Steps, batch size, seed, precision, evaluation and checkpoints.
    """

    data: DataConfig = field(default_factory=DataConfig)
    encoder: EncoderShape = field(default_factory=EncoderShape)
    objective: ObjectiveConfig = field(default_factory=ReplacedTokenDetectionConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def __post_init__(self) -> None:
        if self.data.length > self.encoder.positions:
            raise SettingError("data.length", "is more than {encoder.positions}", self)
        needed = self.objective.needs_causal_encoder
        if self.encoder.causal != needed:
            remedy = f"set {{encoder.causal:name}} to {str(needed).lower()}"
            if needed and self.encoder.family != "electra":  # which alone has it
                remedy += ", and {encoder.family:name} to 'electra'"
            raise SettingError(
                "encoder.causal", f"does not go with {{objective.name}}; {remedy}", self
            )
        fewest = self.objective.min_micro_batch_size
        smallest_batch = self.training.batch_schedule.initial_size
        if fewest > min(smallest_batch, self.training.micro_batch_size or fewest):
            raise SettingError(
                "objective.name",
                "needs other rows in a micro-batch with these settings; set "
                f"{{training.micro_batch_size:name}} to {fewest} or more",
                self,
            )
        if self.optimizer.name == "muon" and self.training.parallel == "fsdp":
            raise SettingError(
                "optimizer.name",
                "orthogonalises whole matrices, and with {training.parallel} a process holds only "
                "a part of them; choose adamw, or zero1 or ddp",
                self,
            )
        with in_section("objective"):
            self.workload(self.data.vocab_size)

    @property
    def masking(self) -> Masking | None:
        """The settings of masking, where the objective masks tokens."""
        return getattr(self.objective, "masking", None)

    @property
    def mask_schedule(self) -> str | None:
        """How the mask rate changes, in words; None where it does not."""
        if self.masking is None:
            return None
        return self.masking.schedule

    def workload(self, vocabulary: int) -> Workload:
        """Return the networks of this run and the passes of a token through them."""
        return self.objective.workload(self.encoder, vocabulary=vocabulary, length=self.data.length)

    def state_layout(self, processes: int) -> StateLayout:
        """Return what a run in so many processes keeps from step to step."""
        weight_shards, optimizer_shards = None, 1
        if self.training.parallel == "fsdp":
            weight_shards = processes
        if self.training.parallel != "ddp":
            optimizer_shards = processes
        return StateLayout(
            weight_shards=weight_shards,
            optimizer_shards=optimizer_shards,
            averaged=self.training.ema_decay > 0,
            muon=self.optimizer.name == "muon",
        )


# Settings that may change when a run resumes: its length, how often it logs, evaluates and saves,
# the micro-batch size and how a step is computed. Another machine may need other values of the last
# two. Dropout is then drawn in another order, so the weights differ in their last bits.
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
    "training.stop_on_collapse",
}


def load_recipe(name: str, *, files: Sequence[Path] = (), flags: Sequence[str] = ()) -> Recipe:
    """Load a recipe by name or file; further files, the environment, then flags override it.

        load_recipe("small", flags=["--max-steps", "5000"])

    Parameters
    ----------
    name
        The name of a built-in recipe, or a TOML file.
    files
        TOML files that change settings of the recipe; later ones win.
    flags
        Settings as on the command line.
    """
    path = find_recipe(name)
    source = str(path)
    if path.parent == RECIPES:
        source = f"recipe {name}"
    return build_layers(Recipe, {source: read_toml(path)} | override_layers(files, flags))


def override_layers(
    files: Sequence[Path], flags: Sequence[str], *, variables: Mapping[str, str] = os.environ
) -> dict[str, Layer]:
    """Return what overrides a recipe, by its source: files, the environment, then flags."""
    layers = {str(file): read_toml(Path(file)) for file in files}
    layers["environment"] = parse_environment(variables, Recipe)
    layers["command line"] = parse_flags(flags, Recipe)
    return layers
