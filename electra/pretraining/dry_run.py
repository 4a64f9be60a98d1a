"""Look at everything that a run would need, and write nothing."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from electra.config import UserError, flatten
from electra.console import ignore
from electra.data.corpus_check import check_beginnings
from electra.data.manifest import MANIFEST
from electra.data.prepare import check_prepared
from electra.data.shards import Shards
from electra.data.sources import Source, resolve
from electra.data.wordpiece import WordPiece
from electra.engine.distributed import World, process_group
from electra.engine.hardware import free_bytes
from electra.engine.rendezvous import assert_same_on_all_ranks
from electra.model.flops import parameters
from electra.model.memory import state_bytes
from electra.model.workload import FLOAT
from electra.objectives.objective import Objective
from electra.pretraining import diagnosis
from electra.pretraining.export import find_tokenizer_folder
from electra.pretraining.options import PretrainOptions
from electra.pretraining.recipe import Recipe
from electra.pretraining.resolve import fit_micro_batch, micro_batch_bytes, resolve_recipe
from electra.pretraining.resume import model_folders
from electra.pretraining.setup import (
    build_first_objective,
    build_run_train_step,
    check_trained_on,
    explain_how_to_continue,
    find_start,
    place_on_device,
    prepare_options,
)
from electra.runs.checkpoint import Checkpoint, list_checkpoints
from electra.runs.progress import format_duration
from electra.runs.trackers import check_trackers
from electra.settings import as_dict

CPU_ROWS = 4  # of a measured micro-batch: enough for an estimate on a CPU
MEASURED_PASSES = 3
CHECKPOINTED = ("weights", "optimizer", "averaged weights")  # of the terms of memory


class Inspection(NamedTuple):
    """What a dry run has found."""

    vocabulary: int  # entries of the tokenizer
    processes: int
    facts: dict[str, str]


def inspect_run(recipe: Recipe, options: PretrainOptions, output_dir: Path | None) -> Inspection:
    """Return what a run would find: its tokenizer, processes, folder, data, disk, memory and time.

    Raise UserError for what would stop it. Without data, only what is known without them.
    """
    if options.corpus is not None or options.data is not None:
        options.check(output_dir or Path("run"))
    check_trackers(recipe.training.report_to)
    with process_group() as world:
        assert_same_on_all_ranks(dict(flatten(as_dict(recipe))))
        recipe, resumed, warnings = find_start(recipe, options, output_dir, world)
        facts = describe_start(resumed, output_dir)
        sources = None
        if options.corpus is not None:
            sources = resolve(options.corpus, report=ignore)
        if sources is not None and output_dir is not None:
            check_sources(sources, options, output_dir, recipe)
        shards = find_shards(options, output_dir)
        start = {"data": shards and shards.fingerprint, "checkpoint": resumed and resumed.step}
        assert_same_on_all_ranks(start)
        if shards is not None:
            recipe = resolve_recipe(recipe, shards, world)
            if resumed is not None:
                check_trained_on(resumed, shards)
            facts |= describe_shards(shards, recipe)
            step = 0 if resumed is None else resumed.step
            warnings += diagnosis.recipe_warnings(recipe, shards, step=step)
        if sources is not None:
            facts |= describe_sources(sources, options, is_cut=shards is not None)
        vocabulary = known_vocabulary(recipe, shards, options)
        facts["disk"] = describe_disk(recipe, vocabulary, output_dir or Path())
        facts["memory"] = describe_memory(recipe, vocabulary, world)
        if shards is not None:
            facts["time"] = describe_time(recipe, shards, world, options, resumed)
    if warnings:
        facts["warning"] = "; ".join(warnings)
    return Inspection(vocabulary, world.size, facts)


def known_vocabulary(recipe: Recipe, shards: Shards | None, options: PretrainOptions) -> int:
    """Return the entries of the tokenizer that the run has, or will train."""
    if shards is not None:
        return shards.tokenizer.size
    if tokenizer := options.tokenizer or find_tokenizer_folder(options.init_from):
        return WordPiece.load(tokenizer).size
    return recipe.data.vocab_size


def describe_start(resumed: Checkpoint | None, output_dir: Path | None) -> dict[str, str]:
    """Return where a run begins."""
    if resumed is not None:
        return {"run": f"continues from {resumed.folder} at step {resumed.step:,}"}
    if output_dir is not None:
        return {"run": f"a new one in {output_dir}"}
    return {}


def find_shards(options: PretrainOptions, output_dir: Path | None) -> Shards | None:
    """Open the shards of a run, if they are there already."""
    if options.data is not None:
        return Shards.open(options.data)
    if options.corpus is not None and output_dir is not None:
        folder = output_dir / "data" / "shards"
        if (folder / MANIFEST).is_file():
            return Shards.open(folder)
    return None


def check_sources(
    sources: Sequence[Source], options: PretrainOptions, output_dir: Path, recipe: Recipe
) -> None:
    """Raise UserError where the folder of a run has a vocabulary or shards of another text."""
    with explain_how_to_continue(options, output_dir):
        check_prepared(sources, output_dir / "data", recipe.data, options=prepare_options(options))


def describe_shards(shards: Shards, recipe: Recipe) -> dict[str, str]:
    rows, held_out = len(shards.train), len(shards.held_out)
    epochs = recipe.training.rows / rows
    return {
        "shards": (
            f"{shards.folder}: {rows:,} rows of {shards.length} and {held_out:,} held out, "
            f"{shards.manifest.tokens:,} tokens; their checksums are verified at the start"
        ),
        "tokenizer": f"{shards.tokenizer.size:,} entries",
        "epochs": f"{epochs:,.2f}",
    }


def describe_sources(
    sources: Sequence[Source], options: PretrainOptions, *, is_cut: bool
) -> dict[str, str]:
    """Return what is known of a corpus before it is read, apart from the beginnings of its files.

    Raise UserError where those cannot be read.
    """
    if not is_cut:
        check_beginnings(sources, text_field=options.text_field, document=options.document)
    size = sum(source.size for source in sources)
    facts = {"corpus": f"{len(sources):,} files, {size / 1e6:,.1f} MB"}
    tokenizer = options.tokenizer or find_tokenizer_folder(options.init_from)
    if tokenizer is not None:
        facts["tokenizer"] = f"{tokenizer}: {WordPiece.load(tokenizer).size:,} entries"
    if not is_cut:
        facts["time"] = "not measured: the text is not cut into shards yet (`electra shard`)"
    return facts


def describe_disk(recipe: Recipe, vocabulary: int, output_dir: Path) -> str:
    """Return the space for checkpoints and models; raise UserError where there is too little.

    What the folder of a run holds of them now is removed as new ones are written, also where it is
    another run that is replaced.
    """
    training, held = recipe.training, held_bytes(output_dir)
    saves = -(-training.max_steps // training.save_steps)
    # One checkpoint is written before the oldest is removed.
    checkpoints = min(saves, training.save_total_limit + 1)
    whole = checkpoints * checkpoint_bytes(recipe, vocabulary) + model_bytes(recipe, vocabulary)
    needed = max(0, whole - held)
    existing = next(path for path in (output_dir, *output_dir.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    text = f"{needed / 1e9:.2f} GB for checkpoints and models"
    if held:
        text += f" beside the {held / 1e9:.2f} GB of those that are there"
    text += f", {free / 1e9:.1f} GB free"
    if needed > free:
        raise UserError(
            f"--output-dir {output_dir}: {text}; name a folder on another disk, or lower "
            "--save-total-limit"
        )
    return text


def checkpoint_bytes(recipe: Recipe, vocabulary: int) -> float:
    """Return the bytes of a checkpoint, which has the state of all processes."""
    terms = state_bytes(recipe.workload(vocabulary), recipe.state_layout(1))
    return sum(terms.get(name, 0) for name in CHECKPOINTED)


def model_bytes(recipe: Recipe, vocabulary: int) -> float:
    """Return the bytes of the models, each of which has the weights that the networks share."""
    counted = parameters(recipe.workload(vocabulary))
    return FLOAT * (counted.total + counted.shared)


def held_bytes(run: Path) -> int:
    """Return the bytes of the checkpoints and models in a run folder, without those of links."""
    folders = [folder for _, folder in list_checkpoints(run)] + model_folders(run)
    files = (file for folder in folders if not folder.is_symlink() for file in folder.iterdir())
    return sum(file.stat().st_size for file in files if file.is_file())


def describe_memory(recipe: Recipe, vocabulary: int, world: World) -> str:
    """Return the rows of a forward pass that fit in memory; raise UserError where none does."""
    rows = recipe.training.micro_batch_size
    if rows is None:
        rows = fit_micro_batch(recipe, vocabulary, world)
    needed, free = micro_batch_bytes(recipe, vocabulary, world, rows), free_bytes(world.device)
    return (
        f"{needed / 1e9:.2f} GB for {rows} rows at a time, of {free / 1e9:.1f} GB on "
        f"{world.device.type}"
    )


def describe_time(
    recipe: Recipe,
    shards: Shards,
    world: World,
    options: PretrainOptions,
    resumed: Checkpoint | None,
) -> str:
    """Measure a few forward and backward passes and return the time of the steps that are left."""
    trained_steps = 0
    if resumed is not None:
        trained_steps = resumed.step
    if trained_steps >= recipe.training.max_steps:
        return f"none: all {recipe.training.max_steps:,} steps are trained"
    objective, _ = build_first_objective(recipe, shards, options, resumed)
    row_seconds = measure_row(recipe, shards, world, objective)
    training = recipe.training
    steps, rows = training.max_steps - trained_steps, training.rows
    rows -= training.batch_schedule.rows_after(trained_steps)
    left = f"{steps:,} steps"
    if trained_steps:
        left = f"the {steps:,} steps that are left,"
    total, step = format_duration(row_seconds * rows), row_seconds * training.batch_size
    return f"about {total} for {left} of {step:.3g} s, measured here"


def measure_row(recipe: Recipe, shards: Shards, world: World, objective: Objective) -> float:
    """Return the seconds in which all processes together take one row forward and backward."""
    if world.device.type == "cpu":
        recipe = with_few_rows(recipe)
    recipe = with_one_micro_batch(recipe, world.size)
    run = place_on_device(recipe, shards, world, Path(), objective)
    run.train_step = build_run_train_step(run, None)
    loader = run.train_loader()
    (batch,) = loader.load_step(1, [0])
    seconds = []
    for number in range(MEASURED_PASSES):
        before = time.monotonic()
        run.train_step.forward_backward([(number, batch)])
        if world.device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.monotonic() - before)
    # The first pass compiles or allocates. An update of the weights is little beside the passes.
    return min(seconds[1:]) / loader.micro_batch_size / world.size


def with_few_rows(recipe: Recipe) -> Recipe:
    """Return the recipe with micro-batches that a CPU computes quickly."""
    training, fewest = recipe.training, recipe.objective.min_micro_batch_size
    smallest_batch = training.batch_schedule.initial_size
    sizes = range(fewest, smallest_batch + 1)
    divisors = [rows for rows in sizes if smallest_batch % rows == 0]
    few = [rows for rows in divisors if rows <= CPU_ROWS] or divisors[:1]
    return replace(recipe, training=replace(training, micro_batch_size=few[-1]))


def with_one_micro_batch(recipe: Recipe, processes: int) -> Recipe:
    """Return the recipe with steps in which every process has one micro-batch.

    With FSDP a process makes as many passes as the one that has most of a step's micro-batches.
    """
    training = recipe.training
    assert training.micro_batch_size is not None
    batch_size = processes * training.micro_batch_size
    steps = replace(training, batch_size=batch_size, initial_batch_size=None, batch_ramp_steps=None)
    return replace(recipe, training=steps)
