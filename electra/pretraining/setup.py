"""Set a pre-training run up: its data, networks, optimizer and train step, as new or restored."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import SafetensorError

from electra.config import UserError, flatten
from electra.console import progress_bars
from electra.data.manifest import MANIFEST
from electra.data.options import OtherSettingsError, PrepareOptions
from electra.data.prepare import prepare_data
from electra.data.shards import Shards
from electra.engine.distributed import World
from electra.engine.ema import EMA, WeightAverage
from electra.engine.flat_shard import WHOLE, FlatShard
from electra.engine.fsdp import is_sharded, shard
from electra.engine.hardware import use_deterministic_algorithms
from electra.engine.optimizer import build_optimizer
from electra.engine.rendezvous import assert_same_on_all_ranks
from electra.engine.train_step import (
    Execution,
    OptimizerSetup,
    SkipBudget,
    TrainStep,
    build_train_step,
)
from electra.engine.training_state import restore, weights_of, with_tied_weights
from electra.files import read_json_object_or_empty
from electra.model.encoder import ZerosForRandomValues, set_activation_checkpointing
from electra.objectives.objective import Objective
from electra.pretraining.export import (
    check_fits_recipe,
    find_tokenizer_folder,
    initialise_from,
)
from electra.pretraining.objective_checks import check_networks, named_losses
from electra.pretraining.options import PretrainOptions
from electra.pretraining.origin import card_content, find_origin
from electra.pretraining.recipe import Recipe
from electra.pretraining.resolve import (
    check_micro_batches,
    resolve_recipe,
    resolve_recipe_speed,
)
from electra.pretraining.resume import find_resume_point, schedule_messages, write_run_files
from electra.pretraining.run import Run
from electra.pretraining.verdict import still_left
from electra.provenance import environment, environment_differences
from electra.runs import checkpoint, run_dir
from electra.runs.checkpoint import Checkpoint
from electra.runs.run_dir import REPLACING
from electra.settings import as_dict


def prepare_run(recipe: Recipe, options: PretrainOptions, output_dir: Path, world: World) -> Run:
    """Return a run that is ready for its next step, with warnings and messages about its start."""
    assert_same_on_all_ranks(dict(flatten(as_dict(recipe))))
    options = options_after_restart(options, output_dir)
    recipe, resumed, start_warnings = find_start(recipe, options, output_dir, world)
    if world.is_main and options.overwrite and checkpoint.list_checkpoints(output_dir):
        (output_dir / REPLACING).touch()
    shards = open_shards(recipe, options, output_dir, world)
    resumed_step = resumed and resumed.step
    assert_same_on_all_ranks({"data": shards.fingerprint, "checkpoint": resumed_step})
    recipe = resolve_recipe(recipe, shards, world)
    if recipe.training.deterministic:
        use_deterministic_algorithms()
    objective, messages = build_first_objective(recipe, shards, options, resumed)
    run = place_on_device(recipe, shards, world, output_dir, objective)
    run.warnings, run.messages = start_warnings, messages
    run.origin = find_origin(options, output_dir, resumed)
    run.card = card_content(options, run.origin)
    if options.resume == "never":
        run.start_flags = "--resume never" + " --overwrite" * options.overwrite
    if resumed is not None:
        restore_run(run, resumed)
        run.messages += resume_messages(resumed, options)
        run.messages += schedule_messages(recipe, resumed)
    run.train_step = build_run_train_step(run, resumed)
    world.barrier()  # no process writes before all have read
    if world.is_main:
        record_start(run, resumed)
    return run


def options_after_restart(options: PretrainOptions, output_dir: Path) -> PretrainOptions:
    """Return the options to continue with where torchrun has restarted a run.

    However it was begun, it then continues from its own checkpoints. A mark says that those in the
    folder are still of the run that is to be replaced.
    """
    must_replace = options.overwrite and (output_dir / REPLACING).exists()
    if is_torchrun_restart() and not must_replace and checkpoint.list_checkpoints(output_dir):
        return replace(options, resume="auto", overwrite=False)
    return options


def is_torchrun_restart() -> bool:
    """Return whether torchrun has started these processes again after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0


def find_start(
    recipe: Recipe, options: PretrainOptions, output_dir: Path | None, world: World
) -> tuple[Recipe, Checkpoint | None, list[str]]:
    """Return the recipe with the choices of an earlier start, the checkpoint to resume from, and
    warnings; raise UserError for what cannot work, before any text is read.

    A dry run may name no `output_dir`; it is then a new one.
    """
    is_size_open = recipe.training.micro_batch_size is None
    resumed = None
    with warnings.catch_warnings(record=True) as damaged:
        warnings.simplefilter("always")
        if output_dir is not None:
            recipe, resumed = find_resume_point(
                recipe,
                output_dir,
                resume=options.resume,
                overwrite=options.overwrite,
                resume_schedule=options.resume_schedule,
            )
            find_origin(options, output_dir, resumed)  # refuses another --init-from
    start_warnings = [str(warning.message) for warning in damaged]
    resolve_recipe_speed(recipe, world)
    recipe, size_warnings = check_micro_batches(recipe, world, may_change=is_size_open)
    if resumed is None and options.init_from is not None:
        check_fits_recipe(options.init_from, recipe)
    is_generator_trained = recipe.workload(recipe.data.vocab_size).generator_is_trained
    if resumed is None and options.init_from is None and not is_generator_trained:
        raise UserError(
            "objective.generator_training='frozen' keeps the generator as it is, so it must be "
            "trained already; name the run of the first stage (recipe two-stage-generator-base) "
            "with --init-from"
        )
    return recipe, resumed, [*start_warnings, *size_warnings]


def open_shards(recipe: Recipe, options: PretrainOptions, output_dir: Path, world: World) -> Shards:
    """Return the shards of a run, made from its corpus where that is given, with every checksum
    verified.
    """
    folder = options.data
    if folder is None:
        folder = output_dir / "data" / "shards"
    with world.without_timeout("data", main_only=True):
        if world.is_main and options.corpus is not None:
            with (
                explain_how_to_continue(options, output_dir),
                progress_bars(quiet=options.quiet) as (stage, report),
            ):
                prepare_data(
                    options.corpus,
                    output_dir / "data",
                    recipe.data,
                    options=prepare_options(options),
                    stage=stage,
                    report=report,
                )
    shards = Shards.open(folder)
    # Each process verifies its part: half a terabyte would keep one busy at every start.
    with world.without_timeout("checksums"):
        shards.verify(first=world.rank, every=world.size)
    return shards


def prepare_options(options: PretrainOptions) -> PrepareOptions:
    """Return how the corpus of a run becomes shards."""
    return PrepareOptions(
        tokenizer=options.tokenizer or find_tokenizer_folder(options.init_from),
        text_field=options.text_field,
        document=options.document,
    )


@contextmanager
def explain_how_to_continue(options: PretrainOptions, output_dir: Path) -> Iterator[None]:
    """Refuse another text with the way to continue, where the run has checkpoints.

    They fit no other shards, so the shards must not be removed.
    """
    try:
        yield
    except OtherSettingsError as error:
        shards = output_dir / "data" / "shards"
        is_continued = checkpoint.list_checkpoints(output_dir) and not options.overwrite
        if not is_continued or not (shards / MANIFEST).is_file():
            raise
        raise UserError(
            f"{error.problem}; the checkpoints in {output_dir} fit only the shards that are there: "
            f"continue with --data {shards} in place of --corpus, or start over with another "
            "--output-dir"
        ) from None


def build_objective_from_recipe(recipe: Recipe, shards: Shards) -> Objective:
    """Build the objective and its networks, initialised from the recipe's seed."""
    torch.manual_seed(recipe.training.seed)
    counts = torch.from_numpy(shards.counts).double() + 1  # no token has probability 0
    objective = recipe.objective.build(
        encoder=recipe.encoder,
        vocabulary=shards.tokenizer,
        unigrams=(counts / counts.sum()).float(),
    )
    check_networks(objective, name=recipe.objective.name)
    set_activation_checkpointing(objective, recipe.training.activation_checkpointing)
    return objective


def build_first_objective(
    recipe: Recipe, shards: Shards, options: PretrainOptions, resumed: Checkpoint | None
) -> tuple[Objective, list[str]]:
    """Build the objective of a start, and return it with messages about its first weights.

    At the first start of a run they are those of `--init-from`, where that is given.
    """
    if resumed is not None:
        return build_to_fill(recipe, shards), []
    objective = build_objective_from_recipe(recipe, shards)
    if options.init_from is not None:
        return objective, initialise_from(objective, options.init_from, shards)
    return objective, []


def build_to_fill(recipe: Recipe, shards: Shards) -> Objective:
    """Build the objective for weights of a checkpoint or of other processes."""
    with ZerosForRandomValues():
        return build_objective_from_recipe(recipe, shards)


def place_on_device(
    recipe: Recipe, shards: Shards, world: World, output_dir: Path, objective: Objective
) -> Run:
    """Move the networks, or this process's FSDP shard of them, to the device; return the run."""
    # A process that was not started by torchrun has no process group to shard over.
    if recipe.training.parallel == "fsdp" and dist.is_initialized():
        shard(objective, world.device.type)
    else:
        objective.to(world.device)
    precision = recipe.training.precision
    kernel_dtype = resolve_recipe_speed(recipe, world).kernel_dtype(precision)
    return Run(
        recipe,
        shards,
        world,
        output_dir,
        objective,
        optimizer=build_optimizer(
            objective,
            recipe.optimizer,
            low_precision=kernel_dtype,
            shard=optimizer_shard(recipe, world),
        ),
        scaler=torch.amp.GradScaler(world.device.type, enabled=precision == "fp16"),
    )


def optimizer_shard(recipe: Recipe, world: World) -> FlatShard:
    """Return which part of the optimizer state this process has: all of it without ZeRO-1."""
    if recipe.training.parallel == "zero1":
        return FlatShard(world.rank, world.size)
    return WHOLE


def check_trained_on(resumed: Checkpoint, shards: Shards) -> None:
    """Raise UserError where a checkpoint was trained on other shards."""
    if resumed.state.get("data") != shards.fingerprint:
        raise UserError(
            f"{resumed.folder} was trained on other shards than {shards.folder}; point --data at "
            "those, or start a new run from its models with --init-from"
        )


def restore_run(run: Run, resumed: Checkpoint) -> None:
    """Load the training state of a checkpoint into a run."""
    check_trained_on(resumed, run.shards)
    try:
        load_checkpoint(run, resumed)
        run.was_finished = was_finished(run, resumed)
    except torch.OutOfMemoryError:
        raise
    except (SafetensorError, RuntimeError, LookupError, TypeError, ValueError) as error:
        # The checksums are right, but the tensors or values are not those of this run.
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"{resumed.folder} is whole, but does not hold what this run saves ({reason}); remove "
            "it to continue from the one before it, or start over with --resume never --overwrite"
        ) from error


def was_finished(run: Run, resumed: Checkpoint) -> bool:
    """Return whether a checkpoint is the last one of this very run, all steps scored."""
    max_steps = resumed.state["recipe"]["training"]["max_steps"]
    is_own = resumed.folder.parent == run.output_dir
    is_last = run.step == max_steps == run.recipe.training.max_steps
    return is_own and is_last and not run.evaluation_due


def load_checkpoint(run: Run, resumed: Checkpoint) -> None:
    state = resumed.state
    tensors = resumed.tensors()
    if run.recipe.training.ema_decay and not any(name.endswith(f".{EMA}") for name in tensors[1]):
        raise LookupError("there are no averaged weights in it")
    restore(
        tensors,
        module=run.objective,
        optimizer=run.optimizer,
        updates=resumed.step - state["skipped"],
    )
    run.scaler.load_state_dict(state["scaler"])
    run.step = resumed.step
    run.tokens_seen = int(state["tokens_seen"])
    run.scores = dict(state["scores"])
    run.evaluation_due = state.get("evaluation_due", False)
    run.left_plateau = still_left(state.get("left_plateau", {}), run.scores, run.recipe)


def resume_messages(resumed: Checkpoint, options: PretrainOptions) -> list[str]:
    messages = [f"continuing from {resumed.folder} at step {resumed.step:,}"]
    earlier = read_json_object_or_empty(resumed.folder.parent / run_dir.ENVIRONMENT)
    if differences := environment_differences(earlier, environment()):
        messages.append(
            "the last bits of losses and weights may differ from those of an uninterrupted run: "
            f"{', '.join(differences)}"
        )
    if options.init_from is not None:
        messages.append(
            f"--init-from {options.init_from} was for the first start and is not read again"
        )
    return messages


def build_run_train_step(run: Run, resumed: Checkpoint | None) -> TrainStep:
    """Build the train step of a run, with the counts of skipped updates of its checkpoint."""
    settings, skipped, not_finite = run.recipe.training, 0, 0
    if resumed is not None:
        skipped, not_finite = resumed.state["skipped"], resumed.state.get("not_finite", 0)
    micro_batches = settings.batch_size // run.micro_batch_size
    average = None
    if settings.ema_decay:
        average = WeightAverage(run.optimizer, settings.ema_decay)
    return build_train_step(
        run.objective,
        partial(named_losses, name=run.recipe.objective.name),
        OptimizerSetup(
            run.optimizer,
            run.recipe.optimizer,
            settings.max_steps,
            run.scaler,
            skipped=skipped,
            skip_budget=SkipBudget(settings.skip_not_finite, used=not_finite),
            average=average,
        ),
        Execution(
            run.world,
            settings.precision,
            resolve_recipe_speed(run.recipe, run.world),
            run.world.max_micro_batches_per_rank(micro_batches),
        ),
    )


def record_start(run: Run, resumed: Checkpoint | None) -> None:
    """Write the files of a run folder that say what runs in it, and since when."""
    if resumed is not None:
        run.checkpoint = resumed.folder.name
        checkpoint.remove_after(run.output_dir, resumed.step)
        # A process that was killed between its last checkpoint and this left one too many.
        checkpoint.rotate(run.output_dir, keep=run.recipe.training.save_total_limit)
    write_run_files(run.output_dir, run.recipe, run.origin, is_fresh=resumed is None)
    (run.output_dir / REPLACING).unlink(missing_ok=True)
    run.set_status("running")


def full_objective(run: Run) -> Objective:
    """Return the objective with all its weights, for the main process to export.

    Every process takes part, since FSDP gathers the weights from all of them.
    """
    if not is_sharded(run.objective):
        return run.objective
    weights = weights_of(run.objective, keep=run.world.is_main)
    if not run.world.is_main:
        return run.objective
    objective = build_to_fill(run.recipe, run.shards)
    objective.load_state_dict(with_tied_weights(weights, objective))
    return objective
