"""A run about to start: what was left open is decided, what cannot work is refused, what was saved
is put back.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import SafetensorError

from electra.config import UserError, flatten
from electra.console import progress_bars
from electra.data.options import PrepareOptions
from electra.data.prepare import prepare_data
from electra.data.shards import Shards
from electra.engine.distributed import World
from electra.engine.fsdp import is_sharded, shard
from electra.engine.hardware import (
    Speed,
    be_deterministic,
    free_bytes,
    resolve_precision,
    resolve_speed,
)
from electra.engine.optimizer import build_optimizer
from electra.engine.rendezvous import assert_same_on_all_ranks
from electra.engine.train_step import SkipBudget, build_train_step
from electra.engine.training_state import complete, restore, weights_of
from electra.model.encoder import recompute
from electra.model.memory import training_bytes
from electra.objectives import build_objective
from electra.objectives.objective import Objective
from electra.pretraining import resume
from electra.pretraining.export import initialise_from, tokenizer_beside
from electra.pretraining.options import PretrainOptions
from electra.pretraining.recipe import Recipe
from electra.pretraining.run import Run
from electra.runs import checkpoint, run_dir
from electra.runs.checkpoint import Checkpoint
from electra.settings import as_dict


def prepare(recipe: Recipe, start: PretrainOptions, world: World) -> tuple[Run, list[str]]:
    """The run, and what to tell the user about its start."""
    assert_same_on_all_ranks(dict(flatten(as_dict(recipe))))
    if restarted() and checkpoint.numbered(
        start.output_dir
    ):  # begun over, or elsewhere, as asked; now it goes on
        start = replace(start, resume="auto", overwrite=False)
    asked = recipe.training.micro_batch_size
    with warnings.catch_warnings(record=True) as damaged:
        warnings.simplefilter("always")
        recipe, found = resume.continued(
            recipe, start.output_dir, resume=start.resume, overwrite=start.overwrite
        )
    speed_of(recipe, world)  # what this machine cannot do is refused before it cuts a corpus
    recipe, notes = shared_out(recipe, world, may_recut=asked is None)
    if (
        found is None
        and start.init_from is None
        and not recipe.workload(recipe.data.vocab_size).generator_is_trained
    ):
        raise UserError(
            "objective.generator_training='frozen' keeps the generator as it is, so it must have "
            "learnt "
            "before; name the run of the first stage (as recipe two-stage-generator-base) with "
            "--init-from"
        )
    shards = opened(recipe, start, world)
    assert_same_on_all_ranks(
        {"data": shards.fingerprint, "checkpoint to go on from": found and found.step}
    )
    recipe = resolved(recipe, shards, world)
    if recipe.training.deterministic:
        be_deterministic()
    objective = built(recipe, shards)
    news: list[str] = []
    if found is None and start.init_from is not None:
        news += initialise_from(objective, start.init_from, shards)
    run = assembled(recipe, shards, world, start.output_dir, objective)
    run.warnings = [*(str(warning.message) for warning in damaged), *notes]
    if start.overwrite:
        run.advice = (
            "To go on from there once that is put right, leave out --resume never --overwrite."
        )
    if found is not None:
        restored(run, found)
        news.append(f"continuing from {found.folder} at step {found.step:,}")
        if start.init_from is not None:
            news.append(
                f"--init-from {start.init_from} was for the first start and is not read again"
            )
    settings, before = recipe.training, found.state if found else {"skipped": 0}
    run.steps = build_train_step(
        run.objective,
        lambda loss: {"loss": loss.total, **loss.parts},
        run.optimizer,
        recipe.optimizer,
        world=world,
        max_steps=settings.max_steps,
        scaler=run.scaler,
        skipped=before["skipped"],
        precision=settings.precision,
        speed=speed_of(recipe, world),
        skip_budget=SkipBudget(settings.skip_not_finite, used=before.get("not_finite", 0)),
        rounds=world.max_micro_batches_per_rank(settings.batch_size // run.micro_batch_size),
    )
    world.barrier()  # nobody writes before everybody has read
    if world.is_main:
        if found is not None:
            checkpoint.forget_after(start.output_dir, found.step)
        resume.begin(start.output_dir, recipe, fresh=found is None)
        run_dir.set_status(
            start.output_dir,
            "running",
            step=run.step,
            checkpoint=found.folder.name if found else None,
        )
    return run, news


def restarted() -> bool:
    """Whether torchrun has begun these processes again after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0


def shared_out(recipe: Recipe, world: World, *, may_recut: bool) -> tuple[Recipe, list[str]]:
    """The recipe, once every process is sure to have a micro-batch; and what to say where that took
    a smaller one than an earlier start had decided on.
    """
    training = recipe.training
    if training.micro_batch_size is None:
        return recipe, []
    if training.batch_size // training.micro_batch_size >= world.size or not may_recut:
        world.my_micro_batches(training.batch_size // training.micro_batch_size)
        return recipe, []
    return replace(recipe, training=replace(training, micro_batch_size=None)), [
        f"this run took {training.micro_batch_size} rows in a pass, too many for {world.size} "
        "processes to have one "
        "each; it goes on with fewer. Data and their order stay; masks and dropout are drawn in "
        "other portions"
    ]


def opened(recipe: Recipe, start: PretrainOptions, world: World) -> Shards:
    """The shards, made first where there is only text; every byte as written, so damage is found
    now and not later.
    """
    data = start.data
    if start.corpus is not None:
        data = start.output_dir / "data" / "shards"
    assert data is not None
    with world.without_timeout("data", leader_alone=True):
        if world.is_main and start.corpus is not None:
            with progress_bars(quiet=start.quiet) as (stage, report):
                prepare_data(
                    start.corpus,
                    start.output_dir / "data",
                    recipe.data,
                    options=PrepareOptions(
                        tokenizer=start.tokenizer or tokenizer_beside(start.init_from),
                        text_field=start.text_field,
                    ),
                    stage=stage,
                    report=report,
                )
    shards = Shards.open(data)
    with world.without_timeout(
        "checksums"
    ):  # shared out: half a terabyte would keep one process busy at every start
        shards.verify(first=world.rank, every=world.size)
    return shards


def resolved(recipe: Recipe, shards: Shards, world: World) -> Recipe:
    """The recipe with what it left open decided, checked against the shards and this machine."""
    training, rows = recipe.training, len(shards.train)
    if shards.length != recipe.data.length:
        raise UserError(
            f"{shards.folder} holds rows of {shards.length} tokens, but the recipe's data.length "
            "is "
            f"{recipe.data.length}; cut shards of that length with `electra shard --length "
            f"{recipe.data.length}`, or pass --data.length {shards.length}"
        )
    if rows < training.batch_size:
        raise UserError(
            f"{shards.folder} holds {rows} rows for training, fewer than one batch of "
            f"{training.batch_size}; add text, or pass a smaller --batch-size"
        )
    if not len(shards.held_out):
        few = shards.manifest.documents < 2
        raise UserError(
            f"{shards.folder} has no held-out rows to measure progress on; "
            + (
                "it is all one document: separate documents by blank lines"
                if few
                else "cut it again with a larger `--held-out` share"
            )
        )
    micro_batch_size = training.micro_batch_size
    if (
        micro_batch_size is None
    ):  # cards may differ in free memory, but every process must cut the batch alike
        micro_batch_size = world.all_min(fitting_micro_batch(recipe, shards.tokenizer.size, world))
    world.my_micro_batches(training.batch_size // micro_batch_size)
    speed = speed_of(recipe, world)
    try:
        return replace(
            recipe,
            training=replace(
                training,
                micro_batch_size=micro_batch_size,
                precision=resolve_precision(training.precision, world.device),
                kernels="on" if speed.kernels else "off",
                cuda_graph="on" if speed.cuda_graph else "off",
                compile="on" if speed.compiled else "off",
            ),
        )
    except (
        ValueError
    ) as error:  # the micro-batch that fits this machine is one that the recipe cannot work with
        raise UserError(str(error)) from None


def speed_of(recipe: Recipe, world: World) -> Speed:
    generator = recipe.workload(recipe.data.vocab_size).generator
    return resolve_speed(
        recipe.training,
        resolve_precision(recipe.training.precision, world.device),
        world.device,
        causal=recipe.encoder.causal,
        parallel=recipe.training.parallel,
        recomputed=recipe.training.activation_checkpointing,
        head_width=max(
            shape.head_width for shape in (recipe.encoder, generator) if shape is not None
        ),
    )


def built(recipe: Recipe, shards: Shards) -> Objective:
    """Networks from the seed."""
    torch.manual_seed(recipe.training.seed)
    counts = torch.from_numpy(shards.counts).double() + 1  # no word is impossible
    objective = build_objective(
        recipe.objective,
        encoder=recipe.encoder,
        vocabulary=shards.tokenizer,
        unigrams=(counts / counts.sum()).float(),
    )
    recompute(objective, recipe.training.activation_checkpointing)
    return objective


def assembled(
    recipe: Recipe, shards: Shards, world: World, output_dir: Path, objective: Objective
) -> Run:
    """The networks on the device, or this process's part of them, ready to be called."""
    if (
        recipe.training.parallel == "fsdp" and dist.is_initialized()
    ):  # a process by itself has nobody to share with
        shard(objective, world.device.type)
    else:
        objective.to(world.device)
    return Run(
        recipe,
        shards,
        world,
        output_dir,
        objective,
        optimizer=build_optimizer(objective, recipe.optimizer),
        scaler=torch.amp.GradScaler(world.device.type, enabled=recipe.training.precision == "fp16"),
    )


def restored(run: Run, found: Checkpoint) -> None:
    """Everything as it was after the checkpoint's step."""
    if found.state.get("data") != run.shards.fingerprint:
        raise UserError(
            f"{found.folder} was trained on other shards than {run.shards.folder}; point --data "
            "at those, "
            f"or start a run of its own from the models with --init-from"
        )
    try:
        restore(
            found.tensors(),
            module=run.objective,
            optimizer=run.optimizer,
            updates=found.step - found.state["skipped"],
        )
        run.scaler.load_state_dict(found.state["scaler"])
        run.step, run.tokens_seen, run.scores = (
            found.step,
            int(found.state["tokens_seen"]),
            dict(found.state["scores"]),
        )
    except torch.OutOfMemoryError:
        raise
    except (
        SafetensorError,
        RuntimeError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:  # whole, and yet not ours
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"{found.folder} is whole, but does not hold what this run saves ({reason}); remove "
            "it to go "
            f"on from the one before it, or start over with --resume never --overwrite"
        ) from error


def full_objective(run: Run) -> Objective:
    """The networks with all their weights, for the leading process to export; every process takes
    part.
    """
    if not is_sharded(run.objective):
        return run.objective
    weights = weights_of(run.objective, kept=run.world.is_main)
    if not run.world.is_main:
        return run.objective
    objective = built(run.recipe, run.shards)
    objective.load_state_dict(complete(weights, objective))
    return objective


def fitting_micro_batch(recipe: Recipe, vocabulary: int, world: World) -> int:
    """The largest micro-batch that divides the batch, gives every process one, and should fit in
    memory.
    """
    free = free_bytes(world.device)
    work, batch_size = recipe.workload(vocabulary), recipe.training.batch_size
    low_precision = resolve_precision(recipe.training.precision, world.device) != "fp32"
    for size in range(batch_size // world.size, 0, -1):
        needed = sum(
            training_bytes(
                work,
                rows=size,
                activation_bytes=2 if low_precision else 4,
                recomputed=recipe.training.activation_checkpointing,
                spread_over=recipe.training.spread_over(world.size),
            ).values()
        )
        if batch_size % size == 0 and needed < 0.8 * free:
            return size
    if batch_size < world.size:
        raise UserError(
            f"training.batch_size={batch_size} is smaller than the number of processes, "
            f"{world.size}"
        )
    raise UserError(
        f"not even one row fits in {free / 1e9:.1f} GB of memory; choose a smaller encoder or "
        "data.length"
    )
