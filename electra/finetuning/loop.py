"""The fine-tuning loop: train a pre-trained encoder with a fresh head, for one seed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor

from electra import atomic
from electra.config import RunFailed
from electra.console import redirect_warnings
from electra.data.shuffle import random_key
from electra.engine.distributed import World
from electra.engine.train_step import NonFiniteGradient
from electra.finetuning.results import SeedResult
from electra.finetuning.scoring import evaluate, score_and_save
from electra.finetuning.setup import FinetuneSetup
from electra.finetuning.state import (
    NOTHING_REPORTED,
    FinetuneState,
    SeedProgress,
    attach_train_step,
    build_state,
    restore_checkpoint,
    save_checkpoint,
)
from electra.runs import checkpoint, run_dir
from electra.runs.journal import STOPPED_EARLY, Journal, MetricsWindow
from electra.tasks.features import Array


def finetune_seed(
    setup: FinetuneSetup,
    seed: int,
    output_dir: Path,
    world: World,
    *,
    interrupted: Callable[[], bool],
    progress: SeedProgress = NOTHING_REPORTED,
) -> SeedResult | None:
    """Train, score and save one seed, from its newest checkpoint if it has one.

    Return None when the run was stopped early. Progress is reported from time to time.
    """
    state = build_state(setup, seed, output_dir, world)
    state.progress = progress
    notes = resume(state)
    world.barrier()
    try:
        with open_journal(state) as journal:
            for note in notes:
                journal.info(note)
            result = None
            if train_or_diverge(state, journal, interrupted):
                result = score_and_save(state, journal, interrupted)
            if result is None:
                journal.exit_code = STOPPED_EARLY
            return result
    except (RunFailed, OSError, SafetensorError) as error:
        raise RunFailed(failure_message(state, error)) from error


def open_journal(state: FinetuneState) -> Journal:
    """Open the journal of a seed, and remove what a killed run left later than its step.

    The processes that are not main get a silent one.
    """
    metrics = None
    if state.world.is_main:
        metrics = state.output_dir / run_dir.METRICS
        atomic.make_folder(state.output_dir)
        checkpoint.remove_partial(state.output_dir)
        checkpoint.remove_after(state.output_dir, state.step)
    return Journal(
        metrics,
        max_steps=state.last_step,
        after=state.step,
        tracking=state.progress.tracking,
        overall=state.progress.overall,
        quiet=state.progress.quiet,
    )


def failure_message(state: FinetuneState, failure: Exception) -> str:
    """Return what happened, what is safe and what to do."""
    last, safe = checkpoint.latest(state.output_dir), "no checkpoint had been written yet"
    if last is not None:
        safe = f"the last good checkpoint is {last.folder}"
    return (
        f"seed {state.seed}, after step {state.step}: {failure}; {safe}. The same command "
        "continues from there once that is fixed."
    )


def resume(state: FinetuneState) -> list[str]:
    """Continue from the newest checkpoint that is whole, if any; return what the user is told."""
    notes: list[str] = []
    with redirect_warnings(notes.append):
        saved = checkpoint.latest(state.output_dir)
    if saved is None:
        attach_train_step(state)
        return notes
    restore_checkpoint(state, saved)
    attach_train_step(state, skipped=saved.state["skipped"])
    return [*notes, f"seed {state.seed}: continuing from {saved.folder} at step {saved.step:,}"]


def train_or_diverge(
    state: FinetuneState, journal: Journal, interrupted: Callable[[], bool]
) -> bool:
    """Train to the end, or until a gradient is not finite. Return False when stopped early.

    A run that diverged is kept, marked and scored with the weights it has.
    """
    try:
        return train(state, journal, interrupted)
    except NonFiniteGradient as error:
        journal.warn(f"seed {state.seed}: {error}; training ends here")
        state.step, state.diverged = error.step - 1, True
        return True


def train(state: FinetuneState, journal: Journal, interrupted: Callable[[], bool]) -> bool:
    """Train to the last step. Return False when stopped early, with a checkpoint."""
    state.network.train()
    if state.evaluation_due and not evaluate(state, journal, interrupted):
        return False
    if state.is_over:
        return True
    config, window, examples = state.setup.config, MetricsWindow(), 0
    seconds_before, started = state.seconds, time.monotonic()
    for step in range(state.step + 1, state.last_step + 1):
        units = state.units(step)
        loss = forward_backward(state, units, step=step)
        learning_rate = state.train_step.optimizer_step(step)
        state.step, state.seconds = step, seconds_before + time.monotonic() - started
        window.add({"loss": loss}, int(state.setup.train.token_counts[units].sum()))
        examples += len(units)
        is_last = step == state.last_step
        stopping = state.train_step.agree_to_stop(interrupted())
        if step % config.logging_steps == 0 or stopping or is_last:
            log_step(state, journal, window, learning_rate, examples=examples)
            examples = 0
        if state.evaluates_at(step):
            with window.pause(state.train_step.synchronize):
                stopping = not evaluate(state, journal, interrupted) or stopping
        if (step % config.save_steps == 0 and not is_last) or stopping:
            with window.pause(state.train_step.synchronize):
                save_checkpoint(state)
        journal.advance(step)
        if stopping:
            return False
        if state.is_over:
            break
    return True


def forward_backward(state: FinetuneState, units: Array, *, step: int) -> Tensor:
    """Compute the gradients of this rank's micro-batches of a step; return their loss."""
    setup, world, size = state.setup, state.world, state.micro_batch_size
    pieces = [units[start : start + size] for start in range(0, len(units), size)]
    mine = range(len(pieces))[world.rank :: world.size]
    count = 1.0
    if setup.config.loss == "mean":
        count = float(state.unit_weights[units].sum())
    micro_batches = []
    for number in mine or [0]:  # a rank without one takes part with weight 0: the others wait
        batch = setup.train.collate(
            pieces[number],
            pad_to_multiple_of=state.pad_to_multiple_of,
            max_length=setup.shape.positions,
        )
        micro_batches.append((random_key(state.seed, step, number), batch))
    losses = state.train_step.forward_backward(micro_batches, weight=bool(mine) / count)
    return losses["loss"]


def log_step(
    state: FinetuneState,
    journal: Journal,
    window: MetricsWindow,
    learning_rate: float,
    *,
    examples: int,
) -> None:
    """Record the losses and the speed since the last time, in which so many examples were read."""
    grad_norm = state.train_step.synchronize()
    steps_per_epoch = state.setup.config.steps_per_epoch(len(state.setup.train))
    examples_per_token = examples / max(1, window.tokens)
    numbers = window.close(state.world.all_reduce_sum)
    del numbers["data_wait"]  # the rows are in memory: no wait is measured
    numbers |= {
        "examples_per_second": numbers["tokens_per_second"] * examples_per_token,
        "learning_rate": learning_rate,
        "grad_norm": grad_norm,
        "epoch": state.step / steps_per_epoch,
    }
    journal.record(state.step, numbers)
    state.progress.report_step(state.step)
