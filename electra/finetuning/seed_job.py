"""The trainings of one seed: of its folds, if there are folds, and of the model that is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from electra.console import ignore, redirect_warnings
from electra.finetuning.folds import Fold, combine_folds, write_out_of_fold
from electra.finetuning.loop import finetune_seed
from electra.finetuning.options import FinetuneOptions
from electra.finetuning.output_dir import step_reporter
from electra.finetuning.results import SeedResult
from electra.finetuning.scoring import remove_checkpoints
from electra.finetuning.session import Session
from electra.finetuning.setup import FinetuneSetup
from electra.finetuning.state import SeedProgress
from electra.runs.trackers import Tracking
from electra.settings import as_dict


@dataclass(frozen=True)
class SeedJob:
    """One seed of a command, and the results of those before it."""

    seed: int
    output_dir: Path
    options: FinetuneOptions
    session: Session
    runs: Sequence[SeedResult]

    def label(self, part: str = "") -> str:
        """Return which training this is, for the progress."""
        labels = [part]
        if self.options.seeds > 1:
            labels.insert(0, f"seed {len(self.runs) + 1}/{self.options.seeds}")
        return ", ".join(label for label in labels if label)


def finetune_with_folds(
    setup: FinetuneSetup, folds: Sequence[Fold], job: SeedJob, say: Callable[[str], None]
) -> SeedResult | None:
    """Fine-tune each fold of a seed, if there are folds, and then the model that is kept."""
    folder = f"seed-{job.seed}"
    if not folds:
        return finetune_or_load(setup, job.output_dir / folder, job, job.label())
    results = []
    for fold in folds:
        name = f"fold {fold.number}/{len(folds)}"
        path = job.output_dir / f"fold-{fold.number}" / folder
        result = finetune_or_load(fold.setup, path, job, job.label(name))
        if result is None:
            return None
        say(f"{name}, {result}")
        results.append(result)
    if job.session.world.is_main:
        with redirect_warnings(ignore):  # they were printed when the data was first read
            write_out_of_fold(setup, folds, job.output_dir, job.seed)
    setup = combine_folds(setup, folds, results)
    return finetune_or_load(setup, job.output_dir / folder, job, job.label("all data"))


def finetune_or_load(
    setup: FinetuneSetup, folder: Path, job: SeedJob, label: str
) -> SeedResult | None:
    """Return the result of a training that is finished, or train; None when stopped early."""
    session, overall = job.session, job.session.overall
    planned = setup.config.steps(len(setup.train))
    session.begin(setup, label)
    result = SeedResult.load(folder)
    if result is not None:
        if session.world.is_main:  # it may have been killed after it had written its result
            remove_checkpoints(folder)
        overall.end(planned=planned, steps=result.steps, was_done=True)
        return result
    report_step = step_reporter(job.output_dir, job.runs, session.world)
    result = finetune_seed(
        setup,
        job.seed,
        folder,
        session.world,
        interrupted=session.interrupted,
        progress=SeedProgress(
            report_step,
            overall,
            job.options.quiet,
            describe_run(setup, job.output_dir, job.options, job.seed),
        ),
    )
    if result is not None:
        overall.end(planned=planned, steps=result.steps)
    return result


def describe_run(
    setup: FinetuneSetup, output_dir: Path, options: FinetuneOptions, seed: int
) -> Tracking:
    """Return what the trackers are told of a seed's run."""
    facts = {"task": setup.task.name, "model": setup.model.name, "seed": seed}
    return Tracking(options.report_to, as_dict(setup.config) | facts, output_dir.name)
