"""Decide what a recipe leaves open, for the shards and the machine of one run."""

from __future__ import annotations

from dataclasses import replace

from electra.config import UserError
from electra.data.shards import Shards
from electra.engine.distributed import World
from electra.engine.hardware import (
    KernelDemands,
    Speed,
    free_bytes,
    resolve_precision,
    resolve_speed,
)
from electra.engine.settings import Switch
from electra.model.memory import LOW, reserved_bytes, training_bytes
from electra.model.workload import FLOAT
from electra.pretraining.recipe import Recipe

MEMORY_SHARE = 0.8  # of the free memory; the estimate knows no fragmentation and no libraries


def resolve_recipe(recipe: Recipe, shards: Shards, world: World) -> Recipe:
    """Return the recipe with no "auto" and no open micro-batch size left.

    Raise UserError where it does not fit the shards or this machine.
    """
    check_shards(recipe, shards)
    training = recipe.training
    micro_batch_size = training.micro_batch_size
    if micro_batch_size is None:
        # GPUs may differ in free memory, but every process must cut the batch alike.
        micro_batch_size = world.all_min(fit_micro_batch(recipe, shards.tokenizer.size, world))
    world.my_micro_batches(training.batch_schedule.initial_size // micro_batch_size)
    speed = resolve_recipe_speed(recipe, world)
    try:
        return replace(
            recipe,
            training=replace(
                training,
                micro_batch_size=micro_batch_size,
                precision=resolve_precision(training.precision, world.device),
                kernels=as_switch(speed.kernels),
                cuda_graph=as_switch(speed.cuda_graph),
                compile=as_switch(speed.compiled),
            ),
        )
    except ValueError as error:  # the micro-batch that fits here may not suit the objective
        raise UserError(str(error)) from None


def as_switch(is_on: bool) -> Switch:
    if is_on:
        return "on"
    return "off"


def check_shards(recipe: Recipe, shards: Shards) -> None:
    """Raise UserError where the recipe cannot be trained on these shards."""
    length, batch_size, rows = recipe.data.length, recipe.training.batch_size, len(shards.train)
    if shards.length != length:
        raise UserError(
            f"{shards.folder} holds rows of {shards.length} tokens, but the recipe's data.length "
            f"is {length}; cut shards of that length with `electra shard --length {length}`, or "
            f"pass --data.length {shards.length}"
        )
    if rows < batch_size:
        raise UserError(
            f"{shards.folder} holds {rows} rows for training, fewer than one batch of "
            f"{batch_size}; add text, or pass a smaller --batch-size"
        )
    if not len(shards.held_out):
        remedy = "cut it again with a larger `--held-out` share"
        if shards.manifest.documents < 2:
            remedy = "it is all one document: separate documents by blank lines"
            if shards.manifest.settings.document == "file":
                remedy = "it is all one document: give more files, or leave out --document file"
        raise UserError(f"{shards.folder} has no held-out rows to measure progress on; {remedy}")


def resolve_recipe_speed(recipe: Recipe, world: World) -> Speed:
    """Return whether steps use kernels, CUDA graphs and torch.compile on this machine."""
    encoders = [recipe.encoder]
    generator = recipe.workload(recipe.data.vocab_size).generator
    if generator is not None:
        encoders.append(generator)
    speed = resolve_speed(
        recipe.training,
        resolve_precision(recipe.training.precision, world.device),
        world.device,
        KernelDemands(
            head_width=max(encoder.head_width for encoder in encoders),
            causal=recipe.encoder.causal,
            parallel=recipe.training.parallel,
            activation_checkpointing=recipe.training.activation_checkpointing,
        ),
    )
    if recipe.training.parallel == "zero1" and world.size > 1 and not speed.kernels:
        raise UserError(
            "--parallel zero1 shards the optimizer state that the kernels update, and they are off "
            "here; choose ddp or fsdp, or a GPU and --precision bf16 with which they are on"
        )
    return speed


def check_micro_batches(
    recipe: Recipe, world: World, *, may_change: bool
) -> tuple[Recipe, list[str]]:
    """Return a recipe in which every process has a micro-batch, and a warning where that changed.

    `may_change` says that the user left the micro-batch size open: where an earlier start chose
    one too large for this many processes, it is left open again.
    """
    training = recipe.training
    size = training.micro_batch_size
    if size is None:
        return recipe, []
    fewest = training.batch_schedule.initial_size // size
    if fewest >= world.size or not may_change:
        world.my_micro_batches(fewest)
        return recipe, []
    warning = (
        f"this run has micro-batches of {size} rows, too large to give each of {world.size} "
        "processes one; it continues with smaller ones. The data and their order stay the same; "
        "masks and dropout, which are drawn for each micro-batch, change"
    )
    return replace(recipe, training=replace(training, micro_batch_size=None)), [warning]


def fit_micro_batch(recipe: Recipe, vocabulary: int, world: World) -> int:
    """Return the largest micro-batch size that divides every batch, gives every process one
    micro-batch and should fit in memory.
    """
    free, fewest = free_bytes(world.device), recipe.objective.min_micro_batch_size
    sizes = recipe.training.batch_schedule.micro_batch_sizes(world.size, fewest=fewest)
    for size in sizes:
        if micro_batch_bytes(recipe, vocabulary, world, size) < MEMORY_SHARE * free:
            return size
    raise UserError(
        f"the smallest micro-batch ({sizes[-1]}) does not fit in {free / 1e9:.1f} GB of memory; "
        "choose a smaller encoder or data.length"
    )


def micro_batch_bytes(recipe: Recipe, vocabulary: int, world: World, size: int) -> float:
    """Return the estimated memory of one process for steps with micro-batches of this size."""
    training = recipe.training
    activation_bytes = LOW
    if resolve_precision(training.precision, world.device) == "fp32":
        activation_bytes = FLOAT
    speed = resolve_recipe_speed(recipe, world)
    workload = recipe.workload(vocabulary)
    terms = training_bytes(
        workload,
        rows=size,
        activation_bytes=activation_bytes,
        kernels=speed.kernels,
        activation_checkpointing=training.activation_checkpointing,
        layout=recipe.state_layout(world.size),
        on_cpu=world.device.type == "cpu" and activation_bytes == FLOAT,
    )
    if speed.cuda_graph:
        terms |= reserved_bytes(workload, terms, scored_rows=min(size, training.eval_rows))
    return sum(terms.values())
