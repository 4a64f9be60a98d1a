"""The output folder of a fine-tuning: which one it holds, whether it may be continued."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from electra import atomic
from electra.config import UserError, flatten
from electra.engine.distributed import World
from electra.engine.rendezvous import assert_same_on_all_ranks
from electra.file_lock import LOCK
from electra.files import read_json_object
from electra.finetuning.options import FinetuneOptions
from electra.finetuning.recipe import FinetuneConfig
from electra.finetuning.results import RESULT, SeedResult, Summary
from electra.finetuning.setup import FinetuneSetup
from electra.finetuning.state import resolve_finetune_speed
from electra.model.huggingface import check_holds_model
from electra.provenance import environment
from electra.runs import run_dir
from electra.runs.checkpoint import list_checkpoints
from electra.settings import as_toml, describe_differences
from electra.tasks.models import RESULTS, RUN

REPORT, CURVES_FILE = "report.html", "curves.svg"  # electra.reports writes them
SEARCH = "search"  # the folder of the trials of a search
MAY_CHANGE = {
    "config.logging_steps",
    "config.save_steps",
    "config.micro_batch_size",
    "config.eval_steps",
    "config.kernels",
    "config.cuda_graph",
    "config.compile",
}


def open_output_dir(
    setup: FinetuneSetup, output_dir: Path, options: FinetuneOptions, world: World
) -> None:
    """Create the folder of this fine-tuning, or check that it holds this one and no other."""
    resolve_finetune_speed(setup, world)  # refuses what this device does not have
    identity = json.loads(json.dumps(setup.identity()))
    assert_same_on_all_ranks(dict(flatten(identity)))
    check_output_dir(output_dir, identity, options)
    world.barrier()
    if world.is_main:
        atomic.make_folder(output_dir)
        if options.overwrite:
            remove_results(output_dir)
        # First of all files: without it, a folder with files in it is not a fine-tuning's.
        atomic.write_json(output_dir / RUN, identity)
        atomic.write_json(output_dir / run_dir.ENVIRONMENT, environment())
        atomic.write(output_dir / run_dir.CONFIG, as_toml(setup.config))
        set_status(output_dir, "running", [], world)
    world.barrier()


def check_output_dir(output_dir: Path, identity: dict[str, Any], options: FinetuneOptions) -> None:
    """Raise UserError where the folder holds something that must not be continued or replaced."""
    if not (output_dir / RUN).exists():
        if output_dir.is_dir() and not all(map(is_leftover, output_dir.iterdir())):
            raise UserError(
                f"{output_dir} holds something else than a fine-tuning; choose another --output-dir"
            )
        return
    for folder in output_dir.glob("seed-*/model"):  # or it would be refused after the training
        check_holds_model(folder)
    if options.overwrite:
        return
    if options.resume == "never":
        raise UserError(
            f"{output_dir} already holds a fine-tuning; choose another --output-dir, or add "
            "--overwrite"
        )
    existing = read_identity(output_dir)
    existing["config"] = defaults_of(identity["config"]) | existing["config"]
    may_change = set(MAY_CHANGE)
    if identity["config"].get("early_stopping") is not None:
        may_change.remove("config.eval_steps")  # it decides which steps are candidates
    if differences := describe_differences(identity, existing, may_change=may_change):
        raise UserError(
            f"{output_dir} holds another fine-tuning:{differences}\nUse another --output-dir, or "
            "--resume never --overwrite to start over in this one."
        )


def defaults_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return the defaults of settings, which an earlier version may not have known."""
    return {each.name: each.default for each in fields(FinetuneConfig) if each.name in config}


def is_leftover(path: Path) -> bool:
    """Return whether a start that was killed before run.json was complete left this file."""
    return path.name == LOCK or path.name.startswith(f".{RUN}.")


def read_identity(output_dir: Path) -> dict[str, Any]:
    """Read the identity of the fine-tuning in a folder."""
    path = output_dir / RUN
    identity = read_json_object(path, remedy="start over with --resume never --overwrite")
    if "tuning" in identity:
        raise UserError(
            f"{path}: written by an earlier version of electra: its key tuning is now called "
            "config; choose another --output-dir, or start over with --resume never --overwrite"
        )
    return identity


def remove_results(output_dir: Path) -> None:
    """Remove the seeds, the results and the status of a fine-tuning, and nothing else."""
    for name in (RESULTS, REPORT, CURVES_FILE, run_dir.STATUS):
        (output_dir / name).unlink(missing_ok=True)
    for path in output_dir.iterdir():
        if path.name == SEARCH:
            atomic.remove_folder(path)
        if re.fullmatch(r"(seed|fold)-\d+", path.name):
            if not path.is_symlink():
                # Without this file the seed is not finished, even if the rest cannot be removed.
                (path / RESULT).unlink(missing_ok=True)
            atomic.remove_folder(path)


def remove_other_models(summary: Summary, output_dir: Path) -> None:
    """Remove all models but that of the best seed; of folds, all."""
    for run in summary.runs:
        model = f"seed-{run.seed}/model"
        if model != summary.best_model:
            atomic.remove_folder(output_dir / model, ignore_errors=True)
    for folder in output_dir.glob("fold-*/seed-*/model"):
        atomic.remove_folder(folder, ignore_errors=True)


def set_status(
    output_dir: Path,
    status: run_dir.Status,
    runs: Sequence[SeedResult],
    world: World,
    step: int = 0,
    **facts: Any,
) -> None:
    """Write status.json from the main rank; `step` counts those of a seed that is not finished."""
    if world.is_main:
        steps = sum(run.steps for run in runs) + step
        run_dir.set_status(output_dir, status, step=steps, seeds_done=len(runs), **facts)


def set_stopped(output_dir: Path, runs: Sequence[SeedResult], world: World) -> None:
    """Write status.json of a training that was stopped, with the step of its checkpoint; those
    that are finished keep none.
    """
    steps = [step for run in output_dir.glob("**/seed-*") for step, _ in list_checkpoints(run)]
    set_status(output_dir, "stopped", runs, world, step=max(steps, default=0))


def step_reporter(
    output_dir: Path, runs: Sequence[SeedResult], world: World
) -> Callable[[int], None]:
    """Return a function that writes the step of the seed in training to status.json, if the last
    status is no longer current; `runs` are those that are finished when it is called.
    """
    written = time.monotonic()

    def report_step(step: int) -> None:
        nonlocal written
        if time.monotonic() - written >= run_dir.STATUS_SECONDS:
            written = time.monotonic()
            set_status(output_dir, "running", runs, world, step=step)

    return report_step
