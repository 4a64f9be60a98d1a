"""Pre-training from beginning to end: set a run up, train it, export its models."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from electra.config import RunFailed, UserError
from electra.console import without_readers
from electra.engine.async_checkpoint import AsyncCheckpointer
from electra.engine.distributed import process_group
from electra.engine.train_step import NonFiniteGradient
from electra.pretraining import diagnosis
from electra.pretraining.export import export
from electra.pretraining.loop import Collapse, train
from electra.pretraining.options import PretrainOptions
from electra.pretraining.recipe import Recipe
from electra.pretraining.run import Run
from electra.pretraining.setup import full_objective, prepare_run
from electra.pretraining.verdict import NO_REVIVAL, Verdict, judge, remedies_for_collapse
from electra.runs import run_dir
from electra.runs.journal import STOPPED_EARLY, Journal
from electra.runs.lock import run_lock
from electra.runs.signals import hold_early_signals, stop_signals
from electra.runs.trackers import Tracking, check_trackers
from electra.settings import as_dict

ANOTHER_RUN = "that is another run, so add --resume never --overwrite or name another --output-dir"
NOT_FINITE_REMEDY = (
    f"The usual remedies are a lower --learning-rate or more --warmup-steps; {ANOTHER_RUN}. With "
    "--skip-not-finite N, which leaves out up to N such updates"
)


@dataclass(frozen=True)
class Outcome:
    """How a run ended: finished, or stopped early with a checkpoint to continue from."""

    status: run_dir.Status
    step: int
    output_dir: Path
    scores: dict[str, float]
    verdict: Verdict


def pretrain(recipe: Recipe, *, output_dir: str | Path, **options: Any) -> Outcome:
    """Pre-train the networks of a recipe, on text (`corpus`) or on shards (`data`).

    A run that `output_dir` already holds is continued. The models are exported to it.
    """
    run_options, output_dir = PretrainOptions(**options), Path(output_dir)
    run_options.check(output_dir)
    check_trackers(recipe.training.report_to)
    with (
        without_readers(),
        process_group(minutes=recipe.training.timeout_minutes) as world,
        run_lock(output_dir, world),
        hold_early_signals() as early,
    ):
        run = prepare_run(recipe, run_options, output_dir, world)
        with (
            open_journal(run, quiet=run_options.quiet) as journal,
            stop_signals(early) as interrupted,
            explain_failures(run),
        ):
            print_start(run, journal)
            with AsyncCheckpointer() as checkpointer:
                train(run, journal, interrupted, checkpointer)
            return finish(run, journal)


def open_journal(run: Run, *, quiet: bool) -> Journal:
    """Open the journal of a run; the processes that are not main get a silent one."""
    settings = run.recipe.training
    path = None
    if run.world.is_main:
        path = run.output_dir / run_dir.METRICS
    journal = Journal(
        path,
        max_steps=settings.max_steps,
        after=run.step,
        tracking=Tracking(settings.report_to, as_dict(run.recipe)),
        quiet=quiet,
    )
    journal.work_after = settings.batch_schedule.rows_after
    return journal


def print_start(run: Run, journal: Journal) -> None:
    """Print the warnings and messages about the start of a run."""
    for text in run.warnings:
        journal.warn(text, even_if_quiet=True)
    for text in [*run.messages, *schedule_notes(run.recipe)]:
        journal.info(text)
    made_its_shards = run.shards.folder.is_relative_to(run.output_dir)
    for text in diagnosis.recipe_warnings(run.recipe, run.shards, step=run.step):
        if not (made_its_shards and text in run.shards.manifest.warnings):  # printed by then
            journal.warn(text)


def schedule_notes(recipe: Recipe) -> list[str]:
    """Return how evaluation and export differ from training."""
    notes = []
    if recipe.mask_schedule:
        notes.append(f"the mask rate goes {recipe.mask_schedule}")
    if decay := recipe.training.ema_decay:
        notes.append(
            f"the weights are averaged (decay {decay:g}); evaluation and models have the average"
        )
    return notes


@contextmanager
def explain_failures(run: Run) -> Iterator[None]:
    """Write that a run failed, and name its last good checkpoint: in a RunFailed, or in a note.

    An error that may be one of the code, such as that of a user's own objective, stays as it is.
    """
    try:
        yield
    except NonFiniteGradient as error:
        tensor = diagnosis.first_non_finite_tensor(run, error.step)
        run.step = error.step - 1
        message = f"{tensor} is not finite in step {error.step}"
        raise RunFailed(run.failure_message(message, NOT_FINITE_REMEDY)) from error
    except Collapse as error:
        remedies = remedies_for_collapse(run.recipe)
        message = f"{error}; {NO_REVIVAL}"
        remedy = f"Begin again with {remedies}; {ANOTHER_RUN}. With --stop-on-collapse false"
        raise RunFailed(run.failure_message(message, remedy)) from error
    except (RunFailed, OSError, SafetensorError) as error:
        raise RunFailed(run.failure_message(error)) from error
    except Exception as error:
        hang = None
        if isinstance(error, RuntimeError):
            hang = run.world.hang_report_for(error)
        if hang is not None:
            raise RunFailed(run.failure_message(hang)) from error
        text = str(error)
        if not isinstance(error, UserError):
            text = f"{type(error).__name__}: {text}"
        with contextlib.suppress(UserError, OSError):  # a checkpoint that cannot be read
            error.add_note(f"after step {run.step}: {run.record_failure(text)}")
        raise


def finish(run: Run, journal: Journal) -> Outcome:
    """Export the models of a run and write its last status."""
    status: run_dir.Status = "stopped"
    if run.step >= run.recipe.training.max_steps and not run.evaluation_due:
        status = "finished"
    else:
        journal.exit_code = STOPPED_EARLY
    verdict = judge(run.scores, run.recipe)
    with run.train_step.averaged_weights():
        objective = full_objective(run)
        with run.world.without_timeout("models", main_only=True):
            if run.world.is_main:
                folders = export(run, objective, verified=status == "finished")
                run.checkpoint = f"checkpoint-{run.step}"
                run.set_status(status, verdict=verdict.facts())
                models = ", ".join(map(str, folders))
                journal.info(f"{status} at step {run.step:,}; models in {models}")
                for line in verdict.lines:
                    journal.info(line)
                if status == "stopped":
                    journal.info(f"{run.same_command} continues the run")
    return Outcome(status, run.step, run.output_dir, run.scores, verdict)
