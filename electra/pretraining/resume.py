"""Decide from a run folder whether a run starts or continues, and write what identifies it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from electra import atomic
from electra.config import UserError, build, convert
from electra.engine.optimizer import learning_rate_factor
from electra.files import read_toml
from electra.model.family import Role
from electra.pretraining.options import ResumeSchedule
from electra.pretraining.origin import Origin
from electra.pretraining.recipe import MAY_CHANGE, Recipe, TrainingConfig
from electra.provenance import environment
from electra.runs import checkpoint
from electra.runs.checkpoint import Checkpoint
from electra.runs.run_dir import (
    CONFIG,
    ENVIRONMENT,
    METRICS,
    REPLACING,
    STATUS,
    TENSORBOARD,
    TRACKERS,
    check_output_dir,
)
from electra.settings import as_dict, as_toml, describe_differences

# What may lie in a run folder before config.toml does: what an interrupted start, the quickstart or
# a sweep leaves there, and models, of which `find_resume_point` says more.
OUR_FILES = {
    "data",
    "corpus",
    "swapped-words",
    "finetuned",
    "quickstart.svg",
    "error.txt",
    "concurrency.json",
    ENVIRONMENT,
    METRICS,
    REPLACING,
    STATUS,
    TENSORBOARD,
    TRACKERS,
    *get_args(Role),
}


def find_resume_point(
    recipe: Recipe,
    run: Path,
    *,
    resume: str,
    overwrite: bool,
    resume_schedule: ResumeSchedule = "same",
) -> tuple[Recipe, Checkpoint | None]:
    """Return the recipe with the choices of an earlier start, and the checkpoint to resume from.

    `auto` continues the same run and starts a new one in an empty folder; the folder of another
    run is refused.
    """
    check_folder(run)
    if overwrite and resume != "never":
        raise UserError(
            f"--overwrite starts a run over and so needs --resume never; found --resume {resume}"
        )
    if resume == "never":
        if not overwrite:
            check_holds_no_run(run)
        return recipe, None
    checkpoint.check_formats(run)
    if (run / CONFIG).exists():
        earlier = build(Recipe, read_toml(run / CONFIG), source=str(run / CONFIG))
        recipe = adopt_earlier_choices(recipe, earlier, run)
    elif folders := model_folders(run):
        raise UserError(
            f"{folders[0]} holds a model, but {run} no run that made it; choose another "
            "--output-dir, or add --resume never --overwrite to replace it"
        )
    last = newest_checkpoint(run)
    resumed = last
    if resume != "auto":
        resumed = open_named_checkpoint(Path(resume))
    if resumed is not None:
        recipe = check_resumable(recipe, resumed, run, last)
        check_schedule(recipe, resumed, resume_schedule)
    return recipe, resumed


def check_folder(run: Path) -> None:
    """Raise UserError where a folder cannot be that of a run."""
    check_output_dir(run)
    check_model_folders(run)
    check_holds_nothing_else(run)


def check_model_folders(run: Path) -> None:
    """Raise UserError where a folder that an export would replace holds no model."""
    for role in get_args(Role):
        if (run / role).exists() and run / role not in model_folders(run):
            raise UserError(
                f"{run / role} holds something else than a model; choose another --output-dir"
            )


def check_holds_nothing_else(run: Path) -> None:
    """Raise UserError where a folder without a run holds what no start of a run leaves."""
    if not run.is_dir() or (run / CONFIG).exists() or checkpoint.list_checkpoints(run):
        return
    strangers = sorted(path.name for path in run.iterdir() if not is_ours(path))
    if strangers:
        raise UserError(
            f"{run} holds something else than a run: {', '.join(strangers[:3])}; choose another "
            "--output-dir"
        )


def is_ours(path: Path) -> bool:
    """Return whether a run, or what started it, writes a file of this name."""
    return path.name in OUR_FILES or path.name.startswith(".")


def check_holds_no_run(run: Path) -> None:
    if (run / CONFIG).exists() or checkpoint.list_checkpoints(run):
        raise UserError(
            f"{run} already holds a run; choose another --output-dir, continue it with "
            "--resume auto, or add --overwrite to start over"
        )


def check_resumable(
    recipe: Recipe, resumed: Checkpoint, run: Path, last: Checkpoint | None
) -> Recipe:
    """Return the recipe with the choices of the checkpoint's; raise UserError where the run cannot
    continue from it.
    """
    earlier = convert(resumed.state.get("recipe"), Recipe, source=str(resumed.folder), key="recipe")
    recipe = adopt_earlier_choices(recipe, earlier, resumed.folder)
    if last is not None and last.step > resumed.step:
        raise UserError(
            f"{run} has already trained to step {last.step}, past {resumed.folder}; resume "
            "that checkpoint in another --output-dir"
        )
    max_steps = recipe.training.max_steps
    if resumed.step > max_steps:
        raise UserError(
            f"{resumed.folder} is already past training.max_steps={max_steps}; ask for "
            f"{resumed.step} or more"
        )
    return recipe


def rates_around(recipe: Recipe, resumed: Checkpoint) -> tuple[float, float]:
    """Return the learning rate of the next step: by the checkpoint's schedule, and by this one.

    A schedule that has ended has the rate zero.
    """
    step, before = resumed.step + 1, resumed.state["recipe"]["training"]["max_steps"]
    rates = []
    for max_steps in (before, recipe.training.max_steps):
        factor = learning_rate_factor(
            recipe.optimizer, step=min(step, max_steps + 1), max_steps=max_steps
        )
        rates.append(recipe.optimizer.learning_rate * factor)
    return rates[0], rates[1]


def check_schedule(recipe: Recipe, resumed: Checkpoint, resume_schedule: ResumeSchedule) -> None:
    """Raise UserError where other steps would lift the learning rate in the middle of a run."""
    before, now = rates_around(recipe, resumed)
    if (
        resume_schedule == "stretch"
        or resumed.step >= recipe.training.max_steps
        or now <= before * (1 + 1e-9)
    ):
        return
    raise UserError(
        f"{resumed.folder}: with --max-steps {recipe.training.max_steps} the learning rate would "
        f"rise from {before:.3g} to {now:.3g} at step {resumed.step + 1:,}, since the "
        f"{recipe.optimizer.schedule} schedule depends on the number of steps; pass "
        "--resume-schedule stretch to accept that, start a new run from the models with "
        "--init-from, or train with --schedule constant or wsd, which can be extended (wsd before "
        "its decay)"
    )


def schedule_messages(recipe: Recipe, resumed: Checkpoint) -> list[str]:
    """Return what jumps because the number of steps changed: the learning rate, the mask rate."""
    if resumed.step >= recipe.training.max_steps:
        return []
    messages = []
    for name, (before, now) in {
        "learning rate": rates_around(recipe, resumed),
        "mask rate": mask_rates_around(recipe, resumed),
    }.items():
        if not math.isclose(before, now):
            messages.append(
                f"the {name} goes from {before:.3g} to {now:.3g} at step {resumed.step + 1:,}: its "
                f"schedule now has {recipe.training.max_steps:,} steps"
            )
    return messages


def mask_rates_around(recipe: Recipe, resumed: Checkpoint) -> tuple[float, float]:
    """Return the mask rate of the next step: by the checkpoint's schedule, and by this one."""
    masking = recipe.masking
    if masking is None:
        return 0.0, 0.0
    before = resumed.state["recipe"]["training"]["max_steps"]
    step = min(resumed.step + 1, before)
    return (
        masking.rate_at(step, max_steps=before),
        masking.rate_at(resumed.step + 1, max_steps=recipe.training.max_steps),
    )


def newest_checkpoint(run: Path) -> Checkpoint | None:
    """Return the newest whole checkpoint of a run folder, or None where there is none at all.

    Raise UserError where all are damaged: a new start would remove them, so the user must ask for
    it.
    """
    newest, folders = checkpoint.latest(run), checkpoint.list_checkpoints(run)
    if newest is None and folders:
        try:
            checkpoint.open_checkpoint(max(folders)[1])
        except ValueError as error:
            raise UserError(
                f"{run}: none of its {len(folders)} checkpoints is whole ({error}); put one back "
                "from a copy, or start over with --resume never --overwrite"
            ) from None
    return newest


def open_named_checkpoint(path: Path) -> Checkpoint:
    """Return the checkpoint that `--resume PATH` names: itself, or the newest of a run folder."""
    if not path.is_dir():
        raise UserError(
            f"--resume {path}: no such folder; use auto, never, or a checkpoint-STEP folder"
        )
    if checkpoint.list_checkpoints(path):
        newest = checkpoint.latest(path)
        if newest is None:
            raise UserError(f"--resume {path}: no whole checkpoint in this folder")
        return newest
    try:
        return checkpoint.open_checkpoint(path)
    except ValueError as error:
        raise UserError(f"--resume {path}: {error}") from None


def adopt_earlier_choices(recipe: Recipe, earlier: Recipe, folder: Path) -> Recipe:
    """Return the recipe with what it leaves open set as at the earlier start of the same run.

    Raise UserError where it is another run: where more differs than a resume may change.
    """
    ours, theirs = recipe.training, earlier.training
    changes: dict[str, Any] = {
        name: getattr(theirs, name)
        for name in switches_to_adopt(ours, theirs)
        if getattr(ours, name) == "auto"
    }
    changes["micro_batch_size"] = ours.micro_batch_size or theirs.micro_batch_size
    recipe = replace(recipe, training=replace(ours, **changes))
    check_same_run(recipe, earlier, folder)
    return recipe


def switches_to_adopt(ours: TrainingConfig, theirs: TrainingConfig) -> list[str]:
    """Return the settings that may be "auto" and are kept from the earlier start."""
    is_same_parallel = ours.parallel == theirs.parallel
    is_same_memory = ours.activation_checkpointing == theirs.activation_checkpointing
    if is_same_parallel and is_same_memory:
        return ["precision", "kernels", "cuda_graph", "compile"]
    return ["precision"]  # kernels, graphs and compilation depend on the two that changed


def check_same_run(recipe: Recipe, earlier: Recipe, folder: Path) -> None:
    """Raise UserError with every setting that differs and may not change in a resume."""
    differences = describe_differences(as_dict(recipe), as_dict(earlier), may_change=MAY_CHANGE)
    if not differences:
        return
    remedy = "Use another --output-dir"
    for own in (folder / CONFIG, folder.parent / CONFIG):  # of a run, or of a checkpoint's run
        if own.is_file():
            remedy = (
                f"To continue it, name its own recipe, {own}, and leave out flags and files that "
                "change these settings. Else use another --output-dir"
            )
            break
    raise UserError(
        f"{folder} holds another run:{differences}\n{remedy}, or --resume never --overwrite to "
        "start over in this one."
    )


def write_run_files(
    run: Path, recipe: Recipe, origin: Origin | None = None, *, is_fresh: bool
) -> None:
    """Write config.toml and environment.json. A fresh start removes what an earlier run left."""
    run.mkdir(parents=True, exist_ok=True)
    checkpoint.remove_partial(run)
    if is_fresh:
        remove_earlier_run(run)
    facts = environment()
    if origin is not None:
        facts |= origin.as_json()
    atomic.write_json(run / ENVIRONMENT, facts)
    atomic.write(run / CONFIG, as_toml(recipe))


def remove_earlier_run(run: Path) -> None:
    for _, path in checkpoint.list_checkpoints(run):
        checkpoint.remove(path)
    for path in model_folders(run):
        atomic.remove_folder(path)
    for name in (METRICS, STATUS, CONFIG):
        (run / name).unlink(missing_ok=True)


def model_folders(run: Path) -> list[Path]:
    """Return the model folders in a run folder."""
    return [run / role for role in get_args(Role) if (run / role / "config.json").is_file()]
