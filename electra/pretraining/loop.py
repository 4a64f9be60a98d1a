"""The pre-training loop, its evaluation and its checkpoints."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from safetensors import SafetensorError

from electra import __version__
from electra.config import RunFailed
from electra.data.batches import largest_batches
from electra.data.dataloader import DataLoader, eval_batches
from electra.data.shuffle import random_key
from electra.engine.async_checkpoint import AsyncCheckpointer
from electra.engine.fsdp import reshard
from electra.engine.hardware import autocast, peak_flops
from electra.engine.train_step import FusedTrainStep
from electra.engine.training_state import contribute_shards
from electra.model.flops import standard
from electra.pretraining.objective_checks import missing_scores
from electra.pretraining.run import Run
from electra.pretraining.verdict import (
    diagnosis_step,
    format_scores,
    lasting_collapse,
    plateau_warnings,
    update_left_plateau,
)
from electra.runs import checkpoint
from electra.runs.journal import Journal, MetricsWindow
from electra.settings import as_dict


class Collapse(Exception):
    """A network has given all tokens one answer in two evaluations in a row."""


def train(
    run: Run, journal: Journal, interrupted: Callable[[], bool], checkpointer: AsyncCheckpointer
) -> None:
    """Take the steps that a run has left: read, compute, update, log, evaluate, save."""
    if run.evaluation_due and not evaluate(run, journal, interrupted):
        return
    settings, world, window = run.recipe.training, run.world, MetricsWindow()
    steps, loader = range(run.step + 1, settings.max_steps + 1), run.train_loader()
    if steps:
        warm_up(run, loader, steps[0])
    is_cuda = world.device.type == "cuda"
    stream = loader.iterate(steps, run.my_micro_batches, pin_memory=is_cuda)
    for step in steps:
        is_last = step == settings.max_steps
        world.report_progress(step, 0, "reading its rows")
        micro_batches = window.next_batch(stream)
        world.report_progress(step, 1, "computing")
        run.objective.begin_step(step, max_steps=settings.max_steps)
        keys = [random_key(settings.seed, step, number) for number in run.my_micro_batches(step)]
        losses = run.train_step.forward_backward(list(zip(keys, micro_batches, strict=True)))
        checkpointer.wait_for_copy()
        learning_rate = optimizer_step(run, step, journal)
        if step == steps[0]:
            allocate_staging(run, journal, checkpointer)
        run.step, tokens = step, int(micro_batches[0].step_lengths.sum())
        run.tokens_seen += tokens
        window.add(losses, tokens)
        is_stopping = run.train_step.agree_to_stop(interrupted())
        if step % settings.logging_steps == 0 or is_stopping or is_last:
            log(run, journal, window, learning_rate)
        if is_evaluated(run, step):
            with window.pause(run.train_step.synchronize):
                is_stopping = not evaluate(run, journal, interrupted) or is_stopping
        if step % settings.save_steps == 0 or is_stopping or is_last:
            with window.pause(run.train_step.synchronize):
                save(run, checkpointer)
        checkpointer.poll()
        journal.advance(step)
        if is_stopping:
            break


def is_evaluated(run: Run, step: int) -> bool:
    """Return whether the held-out rows are scored after a step."""
    settings = run.recipe.training
    is_regular = step % settings.eval_steps == 0 or step == settings.max_steps
    return is_regular or step == diagnosis_step(run.recipe)


def warm_up(run: Run, loader: DataLoader, step: int) -> None:
    """Compile networks, or capture graphs, before the first step that is left."""
    if run.recipe.training.compile == "on":
        warm_up_compile(run, loader)
    if run.recipe.training.cuda_graph == "on":
        capture_largest(run, loader, step)


def warm_up_compile(run: Run, loader: DataLoader) -> None:
    """Compile the networks on a micro-batch of each batch size; the gradients are thrown away.

    Compilation draws random numbers. In here it cannot make the first step after a resume differ
    from the same step of a run that never stopped.
    """
    for stage in range(loader.batches.stages):
        step = loader.batches.first_step(stage)
        (batch,) = loader.load_step(step, run.my_micro_batches(step)[:1])
        run.train_step.forward_backward([(0, batch)])
    run.optimizer.zero_grad(set_to_none=True)


def capture_largest(run: Run, loader: DataLoader, step: int) -> None:
    """Capture CUDA graphs of the largest micro-batches, whose memory later graphs share."""
    assert isinstance(run.train_step, FusedTrainStep)
    (batch,) = loader.load_step(step, run.my_micro_batches(step)[:1])
    run.train_step.capture_first(largest_batches(batch))


def optimizer_step(run: Run, step: int, journal: Journal) -> float:
    """Update the weights, warn of a skipped update, and return the learning rate."""
    budget = run.train_step.skip_budget
    used_before = budget.used
    learning_rate = run.train_step.optimizer_step(step)
    if budget.used > used_before:
        journal.warn(
            f"step {step}: the gradient is not finite; the update is left out, "
            f"{budget.used} of at most {run.recipe.training.skip_not_finite}",
            even_if_quiet=True,
        )
    return learning_rate


def allocate_staging(run: Run, journal: Journal, checkpointer: AsyncCheckpointer) -> None:
    """Allocate the host memory for checkpoint copies in the main process, which writes them."""
    if not run.world.is_main:
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        checkpointer.allocate_staging(run.objective, run.optimizer)
    for warning in caught:
        journal.warn(str(warning.message), even_if_quiet=True)


def log(run: Run, journal: Journal, window: MetricsWindow, learning_rate: float) -> None:
    """Write the metrics of the steps since the last line to the journal."""
    settings, world = run.recipe.training, run.world
    grad_norm = run.train_step.synchronize()
    metrics = window.close(world.all_reduce_sum)
    if settings.skip_not_finite:
        metrics["not_finite"] = run.train_step.skip_budget.used
    peak = peak_flops(world)
    if peak is not None:
        flops_per_token = standard(run.recipe.workload(run.shards.tokenizer.size)).training
        metrics["mfu"] = metrics["tokens_per_second"] * flops_per_token / peak
    metrics["learning_rate"] = learning_rate
    metrics["grad_norm"] = grad_norm
    metrics["grad_norm_max"] = run.train_step.take_largest_norm()
    metrics["tokens_seen"] = run.tokens_seen
    metrics["epoch"] = settings.batch_schedule.rows_after(run.step) / len(run.shards.train)
    journal.record(run.step, metrics)
    run.update_status()


def evaluate(run: Run, journal: Journal, interrupted: Callable[[], bool]) -> bool:
    """Measure the scores on the held-out rows and record them. Return False when stopped early.

    The evaluation is then still due, and a run that is resumed begins with it. Raise Collapse where
    the run is not worth its further steps.
    """
    run.evaluation_due = True
    with run.train_step.averaged_weights():
        scores = held_out_scores(run, journal, interrupted)
    if scores is None:
        journal.info(
            f"asked to stop during the evaluation of step {run.step}; it begins again when the run "
            "continues"
        )
        return False
    before = run.scores
    run.scores, run.evaluation_due = scores, False
    metrics = run.recipe.objective.metrics()
    shown = format_scores(metrics, scores)
    journal.record(run.step, scores, prefix="eval_", shown=shown)
    if not before and (missing := missing_scores(metrics, scores)):
        journal.warn(
            f"objective {run.recipe.objective.name}: measure() returns no {', '.join(missing)}, "
            "which metrics() declares; nothing is said of that",
            even_if_quiet=True,
        )
    if failure := lasting_collapse(scores, run.recipe, step=run.step, before=before):
        raise Collapse(failure)
    explain_scores(run, journal, before)
    return True


def held_out_scores(
    run: Run, journal: Journal, interrupted: Callable[[], bool]
) -> dict[str, float] | None:
    """Return the scores on the held-out rows, with the same masks and samples every time.

    Return None in every process when one of them was asked to stop.
    """
    settings, world = run.recipe.training, run.world
    rows = run.shards.held_out
    batches = list(
        eval_batches(rows, micro_batch_size=run.micro_batch_size, max_rows=settings.eval_rows)
    )
    mine = range(len(batches))[world.rank :: world.size]
    # FSDP gathers weights in every forward pass, so all processes take equally many. One that has
    # no micro-batch left takes the first again, and its counts are set to zero.
    idle = [0] * (world.max_micro_batches_per_rank(len(batches)) - len(mine))
    counts, is_stopping = [], False
    run.objective.eval()
    for number, index in enumerate(journal.track([*mine, *idle], "evaluation")):
        is_stopping = world.any_rank(interrupted())
        if is_stopping:
            break
        torch.manual_seed(random_key(settings.seed, "held-out", index))
        with autocast(settings.precision, world.device):
            counts.append(run.objective.measure(batches[index].to(world.device)))
        for tensor in counts[-1].tensors():
            tensor *= number < len(mine)
    reshard(run.objective)
    run.objective.train()
    if is_stopping:
        return None
    total = sum(counts[1:], start=counts[0])
    world.all_reduce_sum(total.tensors())
    return total.scores()


def explain_scores(run: Run, journal: Journal, before: Mapping[str, float]) -> None:
    """Say which networks have left the plateau, or have collapsed since the scores `before`."""
    for message in update_left_plateau(
        run.left_plateau, run.scores, run.recipe, step=run.step, tokens=run.tokens_seen
    ):
        journal.info(message)
    for warning in plateau_warnings(run.scores, run.recipe, step=run.step, before=before):
        journal.warn(warning)


def save(run: Run, checkpointer: AsyncCheckpointer) -> None:
    """Copy the training state and begin to write a checkpoint of it beside the next steps.

    The main process writes. Where that fails, the checkpoint before it stays.
    """
    world, step, keep = run.world, run.step, run.recipe.training.save_total_limit
    if not world.is_main:
        world.report_progress(step, 2, "waiting for the next step")
        run.train_step.synchronize()
        contribute_shards(run.objective, run.optimizer)
        return
    world.report_progress(step, 2, "saving")
    run.train_step.synchronize()
    state = checkpoint_state(run)
    tensors = checkpointer.copy_state(run.objective, run.optimizer)

    def write() -> None:
        try:
            path = checkpoint.write(run.output_dir, tensors, step=step, state=state)
            checkpoint.rotate(run.output_dir, keep=keep)
            run.checkpoint = path.name
            run.set_status("running")
        except (OSError, SafetensorError) as error:
            message = f"the checkpoint of step {step} could not be written: {error}"
            raise RunFailed(message) from error

    checkpointer.submit(write)


def checkpoint_state(run: Run) -> dict[str, Any]:
    """Return what a checkpoint holds besides tensors, as JSON values."""
    return {
        "recipe": as_dict(run.recipe),
        "data": run.shards.fingerprint,
        "tokens_seen": run.tokens_seen,
        "skipped": run.train_step.skipped,
        "not_finite": run.train_step.skip_budget.used,
        "scaler": run.scaler.state_dict(),
        "scores": run.scores,
        "evaluation_due": run.evaluation_due,
        "left_plateau": dict(run.left_plateau),  # it changes while this is written
        "electra": __version__,
    }
