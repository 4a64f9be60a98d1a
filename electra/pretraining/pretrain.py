"""The loop: losses become weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError

from electra.config import RunFailed
from electra.engine.async_checkpoint import AsyncCheckpointer
from electra.engine.distributed import process_group
from electra.engine.train_step import NonFiniteGradient
from electra.pretraining import diagnosis
from electra.pretraining.export import export
from electra.pretraining.loop import train
from electra.pretraining.options import PretrainOptions
from electra.pretraining.recipe import Recipe
from electra.pretraining.run import Run
from electra.pretraining.setup import full_objective, prepare
from electra.runs import run_dir
from electra.runs.journal import Journal
from electra.runs.lock import run_lock
from electra.runs.signals import hold_early_signals, stop_signals


@dataclass(frozen=True)
class Outcome:
    """How a run ended: finished, or stopped early with a checkpoint to continue from."""

    status: run_dir.Status
    step: int
    output_dir: Path
    scores: dict[str, float]


def pretrain(
    recipe: Recipe,
    *,
    output_dir: str | Path,
    corpus: Sequence[str | Path] | None = None,
    data: str | Path | None = None,
    tokenizer: str | Path | None = None,
    text_field: str = "text",
    resume: str = "auto",
    overwrite: bool = False,
    init_from: str | Path | None = None,
    quiet: bool = False,
) -> Outcome:
    """Pre-train as the recipe says, on text (`corpus`) or on shards (`data`), from where
    `output_dir` was left.
    """
    start = PretrainOptions(
        output_dir=Path(output_dir),
        corpus=corpus,
        data=Path(data) if data else None,
        tokenizer=Path(tokenizer) if tokenizer else None,
        text_field=text_field,
        resume=resume,
        overwrite=overwrite,
        init_from=Path(init_from) if init_from else None,
        quiet=quiet,
    )
    with (
        process_group(minutes=recipe.training.timeout_minutes) as world,
        run_lock(start.output_dir, world),
        hold_early_signals() as early,
    ):
        run, news = prepare(recipe, start, world)
        settings = run.recipe.training
        with Journal(
            run.output_dir / run_dir.METRICS if world.is_main else None,
            max_steps=settings.max_steps,
            after=run.step,
            tensorboard=settings.report_to == "tensorboard",
            quiet=quiet,
        ) as journal:
            for text in run.warnings:
                journal.warn(text, even_if_quiet=True)
            for text in news:
                journal.say(text)
            for text in diagnosis.advice(run.recipe, run.shards):
                journal.warn(text)
            with stop_signals(early) as interrupted:
                try:
                    with AsyncCheckpointer() as writer:
                        train(run, journal, interrupted, writer)
                    return finish(run, journal)
                except NonFiniteGradient as found:
                    culprit = diagnosis.first_bad_tensor(run, found.step)
                    run.step = found.step - 1
                    raise RunFailed(
                        run.failure_message(f"{culprit} is not finite in step {found.step}")
                    ) from found
                except (RunFailed, OSError, SafetensorError) as failure:
                    raise RunFailed(run.failure_message(failure)) from failure
                except RuntimeError as failure:
                    if (said := world.hang_report_for(failure)) is None:
                        raise
                    raise RunFailed(run.failure_message(said)) from failure


def finish(run: Run, journal: Journal) -> Outcome:
    """Models out, status down."""
    status: run_dir.Status = "finished" if run.step >= run.recipe.training.max_steps else "stopped"
    objective = full_objective(run)
    with run.world.without_timeout("models", leader_alone=True):
        if run.world.is_main:
            paths = export(run, objective, verified=status == "finished")
            run_dir.set_status(
                run.output_dir, status, step=run.step, checkpoint=f"checkpoint-{run.step}"
            )
            journal.say(f"{status} at step {run.step:,}; models in {', '.join(map(str, paths))}")
    return Outcome(status, run.step, run.output_dir, run.scores)
