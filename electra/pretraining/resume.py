"""What a run folder lets us do: start, continue, or nothing."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import get_args

from electra import atomic
from electra.config import UserError, build, convert, flatten
from electra.files import read_toml
from electra.model.huggingface import Role
from electra.pretraining.recipe import MAY_CHANGE, Recipe
from electra.provenance import environment
from electra.runs import checkpoint
from electra.runs.checkpoint import Checkpoint
from electra.runs.run_dir import CONFIG, ENVIRONMENT, METRICS, STATUS, check_place
from electra.settings import as_dict, as_toml, differing_keys


def continued(
    recipe: Recipe, run: Path, *, resume: str, overwrite: bool
) -> tuple[Recipe, Checkpoint | None]:
    """What this folder lets us do: the recipe with what an earlier start decided, and where to go
    on from (or nothing).

    `auto` continues the same run and starts fresh in an empty folder; another run's folder is
    refused.
    """
    check_place(run)
    for role in get_args(Role):
        if (run / role).exists() and run / role not in models(run):
            raise UserError(
                f"{run / role} holds something else than a model; choose another --output-dir"
            )
    if overwrite and resume != "never":
        raise UserError(
            f"--overwrite starts a run over and so needs --resume never; found --resume {resume}"
        )
    if resume == "never":
        if ((run / CONFIG).exists() or checkpoint.numbered(run)) and not overwrite:
            raise UserError(
                f"{run} already holds a run; choose another --output-dir, continue it with "
                "--resume auto, "
                f"or add --overwrite to start over"
            )
        return recipe, None
    if not (run / CONFIG).exists() and (there := models(run)):
        raise UserError(
            f"{there[0]} holds a model, but {run} no run that made it; choose another "
            "--output-dir, or add "
            f"--resume never --overwrite to replace it"
        )
    if (run / CONFIG).exists():
        earlier = build(Recipe, read_toml(run / CONFIG), source=str(run / CONFIG))
        recipe = same_run(recipe, earlier, run)
    last = newest(run)
    found = last if resume == "auto" else chosen(Path(resume))
    if found is not None:
        earlier = convert(found.state.get("recipe"), Recipe, source=str(found.folder), key="recipe")
        recipe = same_run(recipe, earlier, found.folder)
        if last is not None and last.step > found.step:
            raise UserError(
                f"{run} already went on to step {last.step}, past {found.folder}; go back to that "
                "one in "
                f"another --output-dir"
            )
        if found.step > recipe.training.max_steps:
            raise UserError(
                f"{found.folder} is already past training.max_steps={recipe.training.max_steps}; "
                "ask for "
                f"{found.step} or more"
            )
    return recipe, found


def newest(run: Path) -> Checkpoint | None:
    """The newest whole checkpoint. Starting over would remove damaged ones, so that is left to the
    user to ask for.
    """
    found, there = checkpoint.newest(run), checkpoint.numbered(run)
    if found is None and there:
        try:
            checkpoint.opened(max(there)[1])
        except ValueError as error:
            raise UserError(
                f"{run}: none of its {len(there)} checkpoints is whole ({error}); put one back "
                "from a "
                f"copy, or start over with --resume never --overwrite"
            ) from None
    return found


def chosen(path: Path) -> Checkpoint:
    """The checkpoint that `--resume PATH` names: itself, or the newest one of a run folder."""
    if not path.is_dir():
        raise UserError(
            f"--resume {path}: no such folder; use auto, never, or a checkpoint-STEP folder"
        )
    try:
        found = (
            checkpoint.opened(path) if not checkpoint.numbered(path) else checkpoint.newest(path)
        )
    except ValueError as error:
        raise UserError(f"--resume {path}: {error}") from None
    if found is None:
        raise UserError(f"--resume {path}: no whole checkpoint in this folder")
    return found


def same_run(recipe: Recipe, earlier: Recipe, where: Path) -> Recipe:
    """The recipe, with what was left open decided as before. A run that continues is the same run."""
    training, decided = recipe.training, earlier.training
    switches = ["precision", "kernels", "cuda_graph", "compile"]
    if (training.parallel, training.activation_checkpointing) != (
        decided.parallel,
        decided.activation_checkpointing,
    ):
        switches = ["precision"]  # how a step is best taken depends on these two
    recipe = replace(
        recipe,
        training=replace(
            training,
            micro_batch_size=training.micro_batch_size or decided.micro_batch_size,
            **{
                name: getattr(decided if getattr(training, name) == "auto" else training, name)
                for name in switches
            },
        ),
    )
    wanted, found = as_dict(recipe), as_dict(earlier)
    if changed := [key for key in differing_keys(wanted, found) if key not in MAY_CHANGE]:
        asked, here = dict(flatten(wanted)), dict(flatten(found))
        lines = "".join(
            f"\n  {key}: here {here.get(key)!r}, asked {asked.get(key)!r}" for key in changed
        )
        raise UserError(
            f"{where} holds another run:{lines}\nUse another --output-dir, or --resume never "
            "--overwrite "
            f"to start over in this one."
        )
    return recipe


def begin(run: Path, recipe: Recipe, *, fresh: bool) -> None:
    """Write down what the run is. A fresh start clears what an earlier one left."""
    run.mkdir(parents=True, exist_ok=True)
    checkpoint.sweep(run)
    if fresh:
        for _, path in checkpoint.numbered(run):
            checkpoint.remove(path)
        for path in models(run):
            shutil.rmtree(path)
        for name in (METRICS, STATUS, CONFIG):
            (run / name).unlink(missing_ok=True)
    atomic.write_json(run / ENVIRONMENT, environment())
    atomic.write(run / CONFIG, as_toml(recipe))


def models(run: Path) -> list[Path]:
    """The model folders that stand in a run folder."""
    return [run / name for name in get_args(Role) if (run / name / "config.json").is_file()]
