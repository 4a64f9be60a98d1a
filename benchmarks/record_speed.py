"""Measure how many rows a second the settings of a run train on, alone on the machine."""

from __future__ import annotations

import gc
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch

from electra.data.shards import Shards
from electra.data.shuffle import random_key
from electra.engine.distributed import process_group
from electra.pretraining.recipe import Recipe
from electra.pretraining.resolve import resolve_recipe
from electra.pretraining.run import Run
from electra.pretraining.setup import (
    build_objective_from_recipe,
    build_run_train_step,
    place_on_device,
)

WARM_UP_STEPS, WINDOWS, WINDOW_STEPS = 15, 6, 10


def measure_rows_per_second(recipe: Recipe, shards: Shards) -> float:
    """Return the rows that a second of training takes, without start, evaluation and saving.

    It is the median of windows: in some of them a GPU captures graphs of new shapes.
    """
    with process_group() as world:
        recipe = resolve_recipe(recipe, shards, world)
        is_cuda = world.device.type == "cuda"
        warm_up, windows, steps = (WARM_UP_STEPS, WINDOWS, WINDOW_STEPS) if is_cuda else (1, 1, 2)
        objective = build_objective_from_recipe(recipe, shards)
        run = place_on_device(recipe, shards, world, Path(), objective)
        run.train_step = build_run_train_step(run, None)
        times = []
        stream = run.train_loader().iterate(
            range(1, warm_up + windows * steps + 1), run.my_micro_batches, pin_memory=is_cuda
        )
        for step, batches in enumerate(stream, start=1):
            take_step(run, step, batches)
            if step >= warm_up and (step - warm_up) % steps == 0:
                run.train_step.synchronize()
                times.append(time.perf_counter())
    del run, objective, stream
    if is_cuda:
        gc.collect()  # a train step and its graphs refer to each other
        torch.cuda.empty_cache()
    seconds = median(end - start for start, end in pairwise(times))
    return steps * recipe.training.batch_size / seconds


def take_step(run: Run, step: int, batches: list) -> None:  # type: ignore[type-arg]
    training = run.recipe.training
    run.objective.begin_step(step, max_steps=training.max_steps)
    keys = [random_key(training.seed, step, number) for number in run.my_micro_batches(step)]
    run.train_step.forward_backward(list(zip(keys, batches, strict=True)))
    run.train_step.optimizer_step(step)
