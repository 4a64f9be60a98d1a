"""The pre-training loop: six things happen in a step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from safetensors import SafetensorError

from electra import __version__
from electra.config import RunFailed
from electra.data.batches import Batch
from electra.data.dataloader import DataLoader, eval_batches
from electra.data.shuffle import random_key
from electra.engine.async_checkpoint import AsyncCheckpointer
from electra.engine.fsdp import is_sharded, reshard
from electra.engine.hardware import autocast, peak_flops
from electra.engine.training_state import contribute
from electra.model.flops import standard
from electra.pretraining import diagnosis
from electra.pretraining.run import Run
from electra.runs import checkpoint, run_dir
from electra.runs.journal import Journal, Window
from electra.settings import as_dict


def train(
    run: Run, journal: Journal, interrupted: Callable[[], bool], writer: AsyncCheckpointer
) -> None:
    """Six things happen in a step: read, descend, update, say, measure, save."""
    settings, world = run.recipe.training, run.world
    batches = DataLoader(
        run.shards.train,
        batch_size=settings.batch_size,
        micro_batch_size=run.micro_batch_size,
        seed=settings.seed,
    )
    steps, share = (
        range(run.step + 1, settings.max_steps + 1),
        world.my_micro_batches(batches.micro_batches_per_step),
    )
    if settings.compile == "on" and steps:
        rehearse(run, batches.load_step(steps[0], share[:1])[0])
    stream = batches.iterate(steps, share, pin_memory=world.device.type == "cuda")
    peak, flops = (
        peak_flops(world),
        standard(run.recipe.workload(run.shards.tokenizer.size)).training,
    )
    window, stopping = Window(), False
    for step in steps:
        last = step == settings.max_steps
        world.at(step, 0, "reading its rows")
        portion = window.waiting(stream)
        world.at(step, 1, "computing")
        losses = run.steps.forward_backward(
            [
                (random_key(settings.seed, step, micro_batch), batch)
                for micro_batch, batch in zip(share, portion, strict=True)
            ]
        )
        borne = run.steps.skip_budget.used
        writer.wait_for_copy()
        rate = run.steps.optimizer_step(step)
        if (
            step == steps[0]
            and world.is_main
            and world.device.type == "cuda"
            and not is_sharded(run.objective)
        ):
            writer.copied(
                run.objective, run.optimizer
            )  # takes the memory for copies to come: now there are slots
        if run.steps.skip_budget.used > borne:
            journal.warn(
                f"step {step}: the gradient is not finite; the update is left out, "
                f"{run.steps.skip_budget.used} of at most {settings.skip_not_finite}",
                even_if_quiet=True,
            )
        run.step, tokens = step, int(portion[0].step_lengths.sum())
        run.tokens_seen += tokens
        window.add(losses, tokens)
        stopping = world.any_rank(interrupted())
        if step % settings.logging_steps == 0 or stopping or last:
            norm, numbers = run.steps.synchronize(), window.close(world.all_reduce_sum)
            if settings.skip_not_finite:
                numbers["not_finite"] = run.steps.skip_budget.used
            if peak is not None:
                numbers["mfu"] = numbers["tokens_per_second"] * flops / peak
            journal.record(
                step,
                {
                    **numbers,
                    "learning_rate": rate,
                    "grad_norm": norm,
                    "tokens_seen": run.tokens_seen,
                    "epoch": step * settings.batch_size / len(run.shards.train),
                },
            )
        if step % settings.eval_steps == 0 or last:
            with window.paused():
                run.scores = evaluate(run)
            journal.record(step, run.scores, prefix="eval_")
            for alarm in diagnosis.alarms(run.scores, run.recipe, step=step):
                journal.warn(alarm)
        if step % settings.save_steps == 0 or stopping or last:
            world.at(step, 2, "saving" if world.is_main else "waiting for the next step")
            with window.paused():
                save(run, writer)
        writer.poll()
        journal.advance(step)
        if stopping:
            break


def rehearse(run: Run, batch: Batch) -> None:
    """Compile on a pass that counts for nothing. Compilation draws random numbers, and the first
    step after a resume must not differ for it from the same step of a run that never stopped.
    """
    run.steps.forward_backward([(0, batch)])
    run.optimizer.zero_grad(set_to_none=True)


def evaluate(run: Run) -> dict[str, float]:
    """Scores on the held-out rows: the same rows, masks and samples every time."""
    settings, world = run.recipe.training, run.world
    batches = list(
        eval_batches(
            run.shards.held_out, micro_batch_size=run.micro_batch_size, max_rows=settings.eval_rows
        )
    )
    mine, tallies = range(len(batches))[world.rank :: world.size], []
    run.objective.eval()
    for number in range(world.max_micro_batches_per_rank(len(batches))):
        index = (
            mine[number] if number < len(mine) else 0
        )  # whoever has no rows left still takes part, for nothing
        torch.manual_seed(random_key(settings.seed, "held-out", index))
        with autocast(settings.precision, world.device):
            tallies.append(run.objective.measure(batches[index].to(world.device)))
        for tensor in tallies[-1].tensors():
            tensor *= number < len(mine)
    reshard(run.objective)
    run.objective.train()
    total = sum(tallies[1:], start=tallies[0])
    world.all_reduce_sum(total.tensors())
    return total.scores()


def save(run: Run, writer: AsyncCheckpointer) -> None:
    """A checkpoint, by the leading process, while the run goes on. The last good one stays when
    this one cannot be written.
    """
    run.steps.synchronize()
    if not run.world.is_main:
        contribute(run.objective, run.optimizer)
        return
    step, keep = run.step, run.recipe.training.save_total_limit
    state = {
        "recipe": as_dict(run.recipe),
        "data": run.shards.fingerprint,
        "tokens_seen": run.tokens_seen,
        "skipped": run.steps.skipped,
        "not_finite": run.steps.skip_budget.used,
        "scaler": run.scaler.state_dict(),
        "scores": run.scores,
        "electra": __version__,
    }
    contents = writer.copied(run.objective, run.optimizer)

    def write() -> None:
        try:
            path = checkpoint.write(run.output_dir, contents, step=step, state=state)
            checkpoint.rotate(run.output_dir, keep=keep)
            run_dir.set_status(run.output_dir, "running", step=step, checkpoint=path.name)
        except (OSError, SafetensorError) as error:
            raise RunFailed(
                f"the checkpoint of step {step} could not be written: {error}"
            ) from error

    writer.begin(write)
