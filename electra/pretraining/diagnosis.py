"""Warnings about recipes and numbers that are not finite."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from electra.data.batches import Batch
from electra.data.shards import Shards
from electra.data.shuffle import random_key
from electra.engine.fsdp import is_sharded, local_tensor, reshard
from electra.engine.hardware import autocast
from electra.engine.optimizer import FIRST_UPDATES, largest_first_update
from electra.engine.training_state import gather_weights
from electra.kernels import fuse, unfuse
from electra.pretraining.budget import MAX_WARMUP_SHARE
from electra.pretraining.recipe import Recipe
from electra.pretraining.verdict import MIN_DIAGNOSED_STEPS

if TYPE_CHECKING:
    from electra.pretraining.run import Run

MANY_EPOCHS = 40
# In units of the learning rate. At 1.7 and more discriminators collapsed (docs/log.md).
MAX_FIRST_UPDATE = 1.5


def recipe_warnings(recipe: Recipe, shards: Shards, *, step: int = 0) -> list[str]:
    """Return warnings about settings that are allowed but rarely wanted, and about the shards."""
    warnings = [str(warning) for warning in shards.manifest.warnings]
    epochs = recipe.training.rows / len(shards.train)
    if epochs > MANY_EPOCHS:
        warning = (
            f"{shards.folder} is small for this recipe: each row will be seen {epochs:,.0f} "
            "times; add text, or lower --max-steps"
        )
        if recipe.encoder.dropout == recipe.encoder.attention_dropout == 0:
            warning += ", or set --encoder.dropout 0.1 --encoder.attention-dropout 0.1"
        warnings.append(warning)
    warnings += optimizer_warnings(recipe, step)
    workload, width = recipe.workload(recipe.data.vocab_size), recipe.encoder.width
    generator = workload.generator
    if generator is None or not workload.generator_is_trained:
        return warnings  # a frozen generator is as large as the first stage was, and that is right
    # One encoder for both has one width; a generator of fewer layers may have all of it (COCO-LM).
    is_shallow = generator.layers <= recipe.encoder.layers / 2
    if generator.width > width / 2 and workload.tie != "all" and not is_shallow:
        warnings.append(
            f"the generator is {generator.width} wide beside a discriminator of {width}; the "
            "paper found a quarter to a half best, a stronger one makes the task too hard"
        )
    return warnings


def optimizer_warnings(recipe: Recipe, step: int) -> list[str]:
    """Return warnings about the warm-up and about rates that have no effect."""
    config, max_steps, warnings = recipe.optimizer, recipe.training.max_steps, []
    if config.warmup_steps >= max_steps > 1:
        warnings.append(
            f"optimizer.warmup_steps={config.warmup_steps} is not less than "
            f"training.max_steps={max_steps}: the learning rate rises to the end of the run; lower "
            "--warmup-steps, or give --budget instead of --max-steps, which shortens both"
        )
    largest = largest_first_update(config)
    is_judged = any(metric.spread for metric in recipe.objective.metrics())
    is_ahead = step < FIRST_UPDATES and max_steps >= MIN_DIAGNOSED_STEPS
    if largest > MAX_FIRST_UPDATE and is_judged and is_ahead:
        longer = "raise --warmup-steps, or "
        if config.warmup_steps >= int(MAX_WARMUP_SHARE * max_steps):
            longer = ""
        warnings.append(
            f"optimizer.warmup_steps={config.warmup_steps} is short for "
            f"optimizer.bias_correction=false: the first updates are up to {largest:.1f} times as "
            f"large as the learning rate says, and the discriminator may collapse; {longer}set "
            "--optimizer.bias-correction true"
        )
    if config.name != "muon" and config.muon_learning_rate is not None:
        warnings.append(
            f"optimizer.muon_learning_rate={config.muon_learning_rate:g} has no effect with "
            f"optimizer.name={config.name!r}; choose muon, or set learning_rate"
        )
    return warnings


def first_non_finite_tensor(run: Run, step: int) -> str:
    """Return the name of the first tensor of this step that is not finite.

    The forward passes of the step are computed again without kernels. All processes compute
    equally many, whatever they find, and return the same name.
    """
    gather_weights(run.optimizer)
    uses_kernels = run.recipe.training.kernels == "on"
    if uses_kernels:
        unfuse(run.objective)
    micro_batches = step_micro_batches(run, step)
    run.objective.begin_step(step, max_steps=run.recipe.training.max_steps)
    suspects = [(0, f"the weight {name}") for name in non_finite_weights(run)]
    suspects += [(1, output) for output in non_finite_outputs(run, step, micro_batches)]
    reshard(run.objective)
    if run.world.size == 1 and not suspects:
        # Later steps may have overwritten the gradient; one process alone can compute it again.
        if uses_kernels:
            fuse(run.objective)
        seed = run.recipe.training.seed
        run.train_step.forward_backward(
            [(random_key(seed, step, number), batch) for number, batch in micro_batches]
        )
    suspects += [(2, f"the gradient of {name}") for name in non_finite_gradients(run)]
    of_all_ranks = itertools.chain.from_iterable(run.world.all_gather(suspects))
    _, first = min(of_all_ranks, key=lambda suspect: suspect[0], default=(3, "a gradient"))
    return first


def step_micro_batches(run: Run, step: int) -> list[tuple[int, Batch]]:
    """Return the numbers and batches of this process's micro-batches of a step."""
    loader = run.train_loader()
    mine = run.my_micro_batches(step)
    return list(zip(mine, loader.load_step(step, mine), strict=True))


def non_finite_weights(run: Run) -> list[str]:
    return [
        name
        for name, parameter in run.objective.named_parameters()
        if not torch.isfinite(local_tensor(parameter)).all()
    ]


def non_finite_gradients(run: Run) -> list[str]:
    return [
        name
        for name, parameter in run.objective.named_parameters()
        if parameter.grad is not None and not torch.isfinite(local_tensor(parameter.grad)).all()
    ]


def non_finite_outputs(run: Run, step: int, micro_batches: list[tuple[int, Batch]]) -> list[str]:
    """Return the first module output of each micro-batch that is not finite, if any is."""
    settings, world, outputs = run.recipe.training, run.world, []
    idle = []
    if is_sharded(run.objective):  # FSDP gathers weights, so all processes compute equally many
        most = world.max_micro_batches_per_rank(settings.batch_size // run.micro_batch_size)
        idle = [micro_batches[-1]] * (most - len(micro_batches))
    for number, batch in [*micro_batches, *idle]:
        torch.manual_seed(random_key(settings.seed, step, number))
        with autocast(settings.precision, world.device):
            output = first_non_finite_output(run.objective, batch.to(world.device))
        if output is not None:
            outputs.append(f"{output} (micro-batch {number})")
    return outputs


@torch.no_grad()
def first_non_finite_output(objective: nn.Module, batch: Batch) -> str | None:
    """Return the first module whose output for this batch is not finite, or the loss, or None."""
    names: list[str] = []

    def hook_for(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and not torch.isfinite(output).all():
                names.append(f"the output of {name}")

        return hook

    handles = [
        module.register_forward_hook(hook_for(name))
        for name, module in objective.named_modules()
        if name
    ]
    try:
        loss = objective(batch)
    finally:
        for handle in handles:
            handle.remove()
    if not torch.isfinite(loss.total):
        names.append("the loss")
    return next(iter(names), None)
