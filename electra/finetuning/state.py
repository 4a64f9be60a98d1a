"""The state of one seed's run: network, optimizer and progress, built or restored, and saved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError

from electra.config import RunFailed, UserError
from electra.data.shuffle import random_key
from electra.engine.distributed import World
from electra.engine.hardware import (
    KernelDemands,
    Speed,
    free_bytes,
    resolve_precision,
    resolve_speed,
)
from electra.engine.optimizer import build_optimizer, layer_lr_scale
from electra.engine.settings import OptimizerConfig, Precision
from electra.engine.train_step import Execution, OptimizerSetup, TrainStep, build_train_step
from electra.engine.training_state import capture, restore
from electra.finetuning.early_stopping import EarlyStopping
from electra.finetuning.setup import FinetuneSetup
from electra.model.memory import encoder_bytes
from electra.runs import checkpoint
from electra.runs.checkpoint import Checkpoint
from electra.runs.progress import OverallProgress
from electra.runs.trackers import NO_TRACKING, Tracking
from electra.tasks.features import Array, epoch_batches
from electra.tasks.metrics import direction
from electra.tasks.models import build_network, load_pretrained
from electra.tasks.task import Network


@dataclass(frozen=True)
class SeedProgress:
    """How a seed's run tells of its progress."""

    report_step: Callable[[int], None] = lambda step: None  # keeps the status current
    overall: OverallProgress | None = None  # of all trainings of the command
    quiet: bool = False
    tracking: Tracking = NO_TRACKING


NOTHING_REPORTED = SeedProgress()


@dataclass
class FinetuneState:
    """Everything that one process needs to take a step of one seed's run."""

    setup: FinetuneSetup
    seed: int
    output_dir: Path
    world: World
    network: Network
    optimizer: torch.optim.Optimizer
    optimizer_config: OptimizerConfig
    scaler: torch.amp.GradScaler
    precision: Precision
    max_steps: int  # of the schedule
    micro_batch_size: int
    unit_weights: Array  # how much of each unit is scored
    step: int = 0
    seconds: float = 0.0
    diverged: bool = False
    evaluation_due: bool = False  # the one of this step was interrupted
    early_stopping: EarlyStopping | None = None
    epoch: int = -1
    epoch_batches: list[Array] = field(default_factory=list)
    progress: SeedProgress = NOTHING_REPORTED
    train_step: TrainStep = field(init=False)  # built last: it may copy weights and optimizer state

    @property
    def pad_to_multiple_of(self) -> int:
        """The widths of batches: code is compiled, and a graph captured, once for each width."""
        if self.setup.config.compile == "on":
            return 32
        if self.world.device.type == "cuda":
            return 16
        return 1

    @property
    def last_step(self) -> int:
        """The step after which training ends; the schedule may be longer."""
        return max(1, round(self.setup.stop_ratio * self.max_steps))

    @property
    def is_over(self) -> bool:
        """Whether early stopping has ended training before its last step."""
        return bool(self.early_stopping and self.early_stopping.is_over)

    @property
    def selected_step(self) -> int | None:
        """The step whose weights early stopping keeps."""
        if self.early_stopping is None:
            return None
        return self.early_stopping.best_step

    def evaluates_at(self, step: int) -> bool:
        """Return whether the network is scored during training; the last step's is at its end."""
        if step == self.last_step:
            return self.early_stopping is not None
        interval = self.setup.config.eval_interval(len(self.setup.train))
        return bool(self.setup.dev and interval and step % interval == 0)

    def units(self, step: int) -> Array:
        """Return the examples of a step. Steps count from 1."""
        config, lengths = self.setup.config, self.setup.train.lengths
        epoch, index = divmod(step - 1, config.steps_per_epoch(len(lengths)))
        if self.epoch != epoch:
            self.epoch_batches = epoch_batches(
                lengths,
                batch_size=config.batch_size,
                seed=self.seed,
                epoch=epoch,
                by_length=config.batches == "by-length",
            )
            self.epoch = epoch
        return self.epoch_batches[index]


def build_state(setup: FinetuneSetup, seed: int, output_dir: Path, world: World) -> FinetuneState:
    """Build the network of a seed on the device, and its optimizer."""
    config = setup.config
    torch.manual_seed(random_key(seed, "head"))
    source = load_pretrained(
        setup.model, dropout=config.dropout, random_weights=setup.loaded is None
    )
    network = build_network(
        source, setup.task, dropout=config.dropout, head_init=config.head_init
    ).to(world.device)
    max_steps = config.steps(len(setup.train))
    optimizer_config = config.optimizer(steps=max_steps)
    precision = resolve_precision(config.precision, world.device)

    def lr_scale(name: str) -> float:
        return layer_lr_scale(
            name,
            layers=setup.shape.layers,
            decay=config.layer_decay,
            official=config.layer_counting == "official",
        )

    kernel_dtype = resolve_finetune_speed(setup, world).kernel_dtype(precision)
    return FinetuneState(
        setup,
        seed,
        output_dir,
        world,
        network,
        optimizer=build_optimizer(
            network, optimizer_config, lr_scale=lr_scale, low_precision=kernel_dtype
        ),
        optimizer_config=optimizer_config,
        scaler=torch.amp.GradScaler(world.device.type, enabled=precision == "fp16"),
        precision=precision,
        max_steps=max_steps,
        micro_batch_size=config.micro_batch_size or fit_micro_batch_size(setup, world),
        unit_weights=setup.task.weight(setup.train),
        early_stopping=build_early_stopping(setup),
    )


def build_early_stopping(setup: FinetuneSetup) -> EarlyStopping | None:
    """Return the state of early stopping before training, where it is asked for."""
    patience = setup.config.early_stopping
    if patience is None or not setup.dev:
        return None
    return EarlyStopping(patience, direction(setup.task.metric))


def attach_train_step(state: FinetuneState, *, skipped: int = 0) -> None:
    """Build the train step, once weights and optimizer state are those to continue from."""
    state.train_step = build_train_step(
        state.network,
        lambda loss: {"loss": loss},
        OptimizerSetup(
            state.optimizer,
            state.optimizer_config,
            state.max_steps,
            state.scaler,
            skipped=skipped,
        ),
        Execution(state.world, state.precision, resolve_finetune_speed(state.setup, state.world)),
    )


def resolve_finetune_speed(setup: FinetuneSetup, world: World) -> Speed:
    """Decide on kernels, CUDA graph and compilation; refuse what the machine or task cannot do."""
    config, frozen = setup.config, bool(setup.task.frozen)
    speed = resolve_speed(
        config,
        resolve_precision(config.precision, world.device),
        world.device,
        KernelDemands(
            head_width=setup.shape.head_width,
            causal=setup.shape.causal,
        ),
        flag="--",
        compile_on_gpu=False,
    )
    if frozen and config.cuda_graph == "on":
        raise UserError(
            "--cuda-graph on: the head of a frozen encoder reads lengths back, which no graph can; "
            "leave it at auto"
        )
    return speed._replace(cuda_graph=speed.cuda_graph and not frozen)


def fit_micro_batch_size(setup: FinetuneSetup, world: World) -> int:
    """Return how many examples a pass takes: a rank's part of the batch, halved until it fits."""
    rows = setup.train
    bytes_per_number, longest, cpu_length = 2, int(rows.lengths.max()), None
    if resolve_precision(setup.config.precision, world.device) == "fp32":
        bytes_per_number = 4
        cpu_length = longest if world.device.type == "cpu" else None
    bytes_per_token = encoder_bytes(setup.shape, bytes_per_number, cpu_length=cpu_length)
    bytes_per_example = rows.num_choices * longest * bytes_per_token
    size = -(-setup.config.batch_size // world.size)
    while size > 1 and size * bytes_per_example > 0.7 * free_bytes(world.device):
        size = -(-size // 2)
    return world.all_min(size)


# ---- checkpoints ---------------------------------------------------------------------------------


def save_checkpoint(state: FinetuneState) -> None:
    """Write a checkpoint of the current step, and remove the one before."""
    state.train_step.synchronize()
    if not state.world.is_main:
        return
    facts = {
        "skipped": state.train_step.skipped,
        "scaler": state.scaler.state_dict(),
        "seconds": state.seconds,
        "evaluation_due": state.evaluation_due,
        "micro_batch_size": state.micro_batch_size,
    }
    weights, optimizer_state = capture(state.network, state.optimizer)
    if state.early_stopping:
        facts["early_stopping"] = state.early_stopping.facts()
        weights = weights | state.early_stopping.tensors()
    try:
        checkpoint.write(state.output_dir, (weights, optimizer_state), step=state.step, state=facts)
        checkpoint.rotate(state.output_dir, keep=1)
    except (OSError, SafetensorError) as error:
        folder = state.output_dir / f"checkpoint-{state.step}"
        raise RunFailed(f"{folder}: cannot be written: {error}") from error


def restore_checkpoint(state: FinetuneState, saved: Checkpoint) -> None:
    """Continue from a checkpoint: weights, optimizer state, gradient scaler and counters."""
    state.step = saved.step
    # Dropout is keyed by micro-batch, so keep their size, whatever memory is free today.
    state.micro_batch_size = state.setup.config.micro_batch_size or saved.state["micro_batch_size"]
    state.seconds = saved.state["seconds"]
    state.evaluation_due = saved.state.get("evaluation_due", False)
    weights, optimizer_state = saved.tensors()
    if state.early_stopping:
        state.early_stopping.restore(saved.state["early_stopping"], weights)
    restore(
        (weights, optimizer_state),
        module=state.network,
        optimizer=state.optimizer,
        updates=saved.step - saved.state["skipped"],
    )
    state.scaler.load_state_dict(saved.state["scaler"])
