"""Run one job of a sweep: train the stages that are missing, then score their last network."""

from __future__ import annotations

import contextlib
import gc
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from electra import atomic
from electra.config import RunFailed, UserError
from electra.experiments.findings import CONCURRENCY, is_finished, read_score
from electra.experiments.jobs import Job, StageRun
from electra.experiments.scoring import Scoring
from electra.file_lock import wait_for_lock
from electra.runs.run_dir import create_output_dir, get_status

ERROR = "error.txt"  # in a run folder: the traceback of an unexpected error
# Of a scored network. A power cut may bring the checkpoint of a finished seed back.
NOT_KEPT = ("seed-*/model", "seed-*/checkpoint-*")


@dataclass(frozen=True)
class JobContext:
    """What running a job depends on, beside the job."""

    interrupted: Callable[[], bool]
    say: Callable[[str], None]
    quiet: bool
    concurrency: int = 1  # how many jobs run at the same time


@dataclass(frozen=True)
class JobOutcome:
    """How a job ended."""

    status: Literal["done", "stopped", "failed"]
    error: str = ""


def is_done(job: Job) -> bool:
    """Return whether nothing of a job is missing, and nothing is left to remove."""
    is_complete = all(map(is_trained, job.stages)) and all(map(is_scored, job.scorings))
    return is_complete and not any(temporary_folders(job))


def temporary_folders(job: Job) -> Iterator[Path]:
    """Yield the folders of a job that are removed once its runs and scores are there."""
    for stage in job.stages:
        yield from stage.folder.glob("checkpoint-*")
    for scoring in job.scorings:
        yield from folders_not_kept(scoring)


def folders_not_kept(scoring: Scoring) -> Iterator[Path]:
    """Yield the folders of a fine-tuning that only its training needs."""
    for pattern in NOT_KEPT:
        yield from scoring.folder.glob(pattern)


def is_trained(stage: StageRun) -> bool:
    """Return whether a run finished and its network is still there for later stages and scoring."""
    configs = [stage.folder / role / "config.json" for role in ("discriminator", "encoder")]
    is_whole = is_finished(stage.folder, stage.recipe.training.max_steps)
    return is_whole and any(config.is_file() for config in configs)


def is_scored(scoring: Scoring) -> bool:
    """Return whether a task was fine-tuned with every seed, to the last file."""
    score = read_score(scoring.task, scoring.folder)
    is_ended = get_status(scoring.folder).get("status", "finished") == "finished"
    return score is not None and len(score.values) >= scoring.seeds and is_ended


def try_job(job: Job, context: JobContext) -> JobOutcome:
    """Run a job and return how it ended: one arm that fails does not stop the others."""
    try:
        if run_job(job, context):
            return JobOutcome("done")
        return JobOutcome("stopped")
    except (UserError, RunFailed, OSError) as error:
        return JobOutcome("failed", str(error))
    except Exception as error:
        atomic.make_folder(job.folder)
        path = job.folder / ERROR
        atomic.write(path, traceback.format_exc())
        message = f"{type(error).__name__}: {error} ({path} shows where)"
        return JobOutcome("failed", message)
    finally:
        gc.collect()  # the graphs and buffers of a run go before the next one allocates
        empty_cuda_cache()


def empty_cuda_cache() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def run_job(job: Job, context: JobContext) -> bool:
    """Run what is missing of a job; return False if it was stopped early."""
    earlier: Path | None = None
    for stage in job.stages:
        with wait_for_lock(stage.folder, context.interrupted, say=context.say) as is_ours:
            if not is_ours or not train_stage(stage, earlier, context):
                return False
        earlier = stage.folder
    with wait_for_lock(job.folder, context.interrupted, say=context.say) as is_ours:
        return is_ours and all(score(job.folder, task, context) for task in job.scorings)


def train_stage(stage: StageRun, init_from: Path | None, context: JobContext) -> bool:
    """Pre-train a stage unless that is done; return False if it was stopped early."""
    from electra.pretraining.pretrain import pretrain

    if not is_trained(stage):
        with contextlib.suppress(OSError):
            (stage.folder / ERROR).unlink()
        # Before the run: killed right after it, the sweep takes it as done.
        create_output_dir(stage.folder)
        atomic.write_json(stage.folder / CONCURRENCY, {"concurrency": context.concurrency})
        outcome = pretrain(
            stage.recipe,
            data=stage.data,
            output_dir=stage.folder,
            init_from=init_from,
            quiet=context.quiet,
        )
        if outcome.status != "finished":
            return False
    for checkpoint in stage.folder.glob("checkpoint-*"):  # a finished run is not resumed
        atomic.remove_folder(checkpoint)
    return True


def score(run: Path, scoring: Scoring, context: JobContext) -> bool:
    """Fine-tune a network on one task and remove the models; return False if stopped early."""
    from electra.finetuning.finetune import finetune

    if context.interrupted():
        return False
    if not is_scored(scoring):
        result = finetune(
            run,
            scoring.task,
            output_dir=scoring.folder,
            data=scoring.data,
            seeds=scoring.seeds,
            recipe=scoring.recipe,
            flags=scoring.flags,
            quiet=context.quiet,
        )
        if result is None:
            return False
    for folder in folders_not_kept(scoring):
        atomic.check_links(folder.parent, inside=scoring.folder)
        atomic.remove_folder(folder)
    return True
