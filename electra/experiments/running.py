"""Jobs become run folders: one after the other in this process, which starts up once, or several at
once in others.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import multiprocessing.connection
import os
import shutil
import signal
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

from electra import atomic
from electra.config import RunFailed, UserError
from electra.experiments.claims import PATIENCE_SECONDS, Interrupted, Say, claimed
from electra.experiments.findings import CONCURRENCY, is_finished, scored
from electra.experiments.sweep import Job, Scoring, Step

ERROR = "error.txt"  # in a run folder: where an unexpected error came from


@dataclass
class Tally:
    """How the jobs fared."""

    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # label → what went wrong
    stopped: bool = False


def is_done(job: Job) -> bool:
    return all(map(is_trained, job.steps)) and all(map(is_scored, job.scorings))


def is_trained(step: Step) -> bool:
    """Finished, and its network still there: a later stage and the scoring need it."""
    return is_finished(step.folder, step.recipe.training.max_steps) and any(
        (step.folder / role / "config.json").is_file() for role in ("discriminator", "encoder")
    )


def is_scored(scoring: Scoring) -> bool:
    score = scored(scoring.task, scoring.folder)
    return score is not None and len(score.values) >= scoring.seeds


# ---- one job -------------------------------------------------------------------------------------


def perform(job: Job, *, at_once: int, interrupted: Interrupted, say: Say, quiet: bool) -> bool:
    """Whatever of it is missing; False when it was stopped early."""
    from electra.pretraining.pretrain import pretrain

    before: Path | None = None
    for step in job.steps:
        with claimed(step.folder, interrupted=interrupted, say=say) as ours:
            if not ours:
                return False
            if not is_trained(step):
                with contextlib.suppress(OSError):
                    (step.folder / ERROR).unlink()
                outcome = pretrain(
                    step.recipe,
                    data=step.data,
                    output_dir=step.folder,
                    init_from=before,
                    quiet=quiet,
                )
                atomic.write_json(step.folder / CONCURRENCY, {"concurrency": at_once})
                if outcome.status != "finished":
                    return False
            for path in step.folder.glob("checkpoint-*"):  # nobody continues what is finished
                shutil.rmtree(path)
        before = step.folder
    assert before is not None
    with claimed(before, interrupted=interrupted, say=say) as ours:
        return ours and all(
            score(before, each, interrupted=interrupted, quiet=quiet) for each in job.scorings
        )


def score(run: Path, scoring: Scoring, *, interrupted: Interrupted, quiet: bool) -> bool:
    """Fine-tune and keep the result; the model has served its purpose."""
    from electra.finetuning.finetune import finetune

    if interrupted():
        return False
    if (
        not is_scored(scoring)
        and finetune(
            run,
            scoring.task,
            output_dir=scoring.folder,
            data=scoring.data,
            seeds=scoring.seeds,
            recipe=scoring.recipe,
            flags=scoring.flags,
            quiet=quiet,
        )
        is None
    ):
        return False
    for path in scoring.folder.glob("seed-*/model"):
        shutil.rmtree(path)
    return True


def attempted(
    job: Job, *, at_once: int = 1, interrupted: Interrupted, say: Say, quiet: bool
) -> str:
    """ "done", "stopped", or what went wrong: one arm that fails does not stop the others."""
    try:
        is_whole = perform(job, at_once=at_once, interrupted=interrupted, say=say, quiet=quiet)
        return "done" if is_whole else "stopped"
    except (UserError, RunFailed, OSError) as error:
        return f"failed: {error}"
    except Exception as error:
        place = job.steps[-1].folder
        place.mkdir(parents=True, exist_ok=True)
        atomic.write(place / ERROR, traceback.format_exc())
        return f"failed: {type(error).__name__}: {error} ({place / ERROR} shows where)"
    finally:
        gc.collect()  # the graphs and buffers of a run go before the next takes memory
        let_go()


def let_go() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()


# ---- many jobs -----------------------------------------------------------------------------------


def run(jobs: Sequence[Job], *, at_once: int, say: Say, quiet: bool) -> Tally:
    """All of them, as far as nobody asks to stop."""
    from electra.runs.signals import stop_signals

    tally = Tally()
    missing = [job for job in jobs if not is_done(job)]
    if there := len(jobs) - len(missing):
        say(f"{there} of {len(jobs)} runs are done already")
    with stop_signals() as interrupted:
        if at_once > 1 and len(missing) > 1:
            WorkerPool(missing, size=min(at_once, len(missing)), say=say, tally=tally).work(
                interrupted
            )
        else:
            for number, job in enumerate(missing, start=1):
                if interrupted():
                    break
                say(f"[{number}/{len(missing)}] {job.label}: {job.steps[-1].folder}")
                note(tally, job, attempted(job, interrupted=interrupted, say=say, quiet=quiet), say)
        tally.stopped |= interrupted()
    return tally


def note(tally: Tally, job: Job, answer: str, say: Say) -> None:
    if answer == "done":
        tally.done.append(job.label)
        say(f"done: {job.label}{scores_in_words(job)}")
    elif answer == "stopped":
        tally.stopped = True
    else:
        tally.failed[job.label] = answer.removeprefix("failed: ")
        say(f"failed: {job.label}: {tally.failed[job.label]}")


def scores_in_words(job: Job) -> str:
    found = (scored(each.task, each.folder) for each in job.scorings)
    return "".join(f"; {score.task} {score.metric} {score.value:.4f}" for score in found if score)


class WorkerPool:
    """Workers that take the next job as they become free. One that dies costs its job, and is
    replaced.
    """

    def __init__(self, jobs: Sequence[Job], *, size: int, say: Say, tally: Tally) -> None:
        self.waiting, self.total, self.say, self.tally = list(jobs), len(jobs), say, tally
        self.size, self.gpus = size, visible_gpus()
        self.crew: dict[int, tuple[SpawnProcess, Connection]] = {}
        self.busy: dict[int, Job] = {}  # by the worker's number, as above

    def work(self, interrupted: Interrupted) -> None:
        redirect_warnings = False
        try:
            while self.busy or (self.waiting and not interrupted()):
                while (
                    self.waiting
                    and not interrupted()
                    and (free := set(range(self.size)) - self.busy.keys())
                ):
                    self.prepare_finetuning(min(free))
                if (
                    interrupted() and not redirect_warnings
                ):  # the signal may have been for us alone; of Ctrl-C they have heard
                    redirect_warnings = True
                    for number in self.busy:
                        self.crew[number][0].terminate()
                multiprocessing.connection.wait(
                    [self.crew[number][1] for number in self.busy], timeout=PATIENCE_SECONDS
                )
                for number in [number for number in self.busy if self.crew[number][1].poll()]:
                    self.receive(number)
            self.dismiss()
        finally:
            for process, _ in self.crew.values():  # after an error or a second Ctrl-C
                process.terminate()

    def prepare_finetuning(self, number: int) -> None:
        if number not in self.crew:
            self.crew[number] = self.spawn(number)
        job = self.waiting.pop(0)
        self.say(
            f"[{self.total - len(self.waiting)}/{self.total}] {job.label}: {job.steps[-1].folder}"
        )
        self.crew[number][1].send(job)
        self.busy[number] = job

    def spawn(self, number: int) -> tuple[SpawnProcess, Connection]:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=worker,
            args=(theirs,),
            kwargs={
                "at_once": self.size,
                "gpu": self.gpus[number % len(self.gpus)] if self.gpus else None,
                "threads": max(1, (os.cpu_count() or 1) // self.size),
            },
        )
        process.start()
        theirs.close()  # so that its end is heard of here
        return process, ours

    def receive(self, number: int) -> None:
        job, (process, connection) = self.busy.pop(number), self.crew[number]
        try:
            answer = connection.recv()
        except (EOFError, ConnectionResetError):
            process.join()
            del self.crew[number]
            answer = f"failed: its process ended with exit code {process.exitcode}; was there enough memory?"
        note(self.tally, job, answer, self.say)

    def dismiss(self) -> None:
        for process, connection in self.crew.values():
            with contextlib.suppress(OSError):
                connection.send(None)
            process.join()


def visible_gpus() -> list[str]:
    """As CUDA_VISIBLE_DEVICES names them; none on a machine without."""
    import torch

    if given := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return given.split(",")
    return [str(number) for number in range(torch.cuda.device_count())]


def worker(connection: Connection, *, at_once: int, gpu: str | None, threads: int) -> None:
    """Job after job. Sets what torch reads when it is first used, so before that."""
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    else:
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    threading.Thread(target=outlived, daemon=True).start()
    from electra.runs.signals import stop_signals

    # However a parent that dies is first noticed, there is nobody left to tell.
    with (
        stop_signals() as interrupted,
        contextlib.suppress(EOFError, ConnectionResetError, BrokenPipeError),
    ):
        while (job := connection.recv()) is not None:
            connection.send(
                attempted(job, at_once=at_once, interrupted=interrupted, say=ignore, quiet=True)
            )


def ignore(text: str) -> None:
    """A worker's place is not the terminal."""


def outlived() -> None:
    """A worker whose parent was killed saves and stops: the same command may be starting again."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
