"""Run the jobs of a sweep: one after the other in this process, or several at once in workers."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

from electra.console import ignore
from electra.experiments.findings import read_score
from electra.experiments.jobs import Job
from electra.experiments.run_job import JobContext, JobOutcome, is_done, try_job

POLL_SECONDS = 0.2  # between two checks whether the sweep is to stop


@dataclass
class SweepResult:
    """How the jobs of a sweep ended."""

    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # label → error
    stopped: bool = False

    def record(self, job: Job, outcome: JobOutcome, say: Callable[[str], None]) -> None:
        """Add the outcome of a job and print it."""
        if outcome.status == "done":
            self.done.append(job.label)
            say(f"done: {job.label}{describe_scores(job)}")
        elif outcome.status == "stopped":
            self.stopped = True
        else:
            self.failed[job.label] = outcome.error
            say(f"failed: {job.label}: {outcome.error}")


def describe_scores(job: Job) -> str:
    """Return the scores of a job as the end of a printed line."""
    scores = [read_score(scoring.task, scoring.folder) for scoring in job.scorings]
    return "".join(f"; {score.task} {score.metric} {score.value:.4f}" for score in scores if score)


def run_jobs(
    jobs: Sequence[Job], *, concurrency: int, say: Callable[[str], None], quiet: bool
) -> SweepResult:
    """Run every job that is not done, until a signal asks to stop."""
    from electra.runs.signals import stop_signals

    result = SweepResult()
    missing = [job for job in jobs if not is_done(job)]
    if len(missing) < len(jobs):
        say(f"{len(jobs) - len(missing)} of {len(jobs)} runs are done already")
    with stop_signals() as interrupted:
        context = JobContext(interrupted, say, quiet)
        if concurrency > 1 and len(missing) > 1:
            size = min(concurrency, len(missing))
            WorkerPool(missing, size=size, say=say, result=result).run(interrupted)
        else:
            run_in_turn(missing, context, result)
        result.stopped |= interrupted()
    return result


def run_in_turn(jobs: Sequence[Job], context: JobContext, result: SweepResult) -> None:
    """Run jobs one after the other in this process."""
    for number, job in enumerate(jobs, start=1):
        if context.interrupted():
            return
        context.say(f"[{number}/{len(jobs)}] {job.label}: {job.folder}")
        result.record(job, try_job(job, context), context.say)


@dataclass(frozen=True)
class Worker:
    """A process that runs jobs, and our end of the pipe to it."""

    process: SpawnProcess
    connection: Connection


class WorkerPool:
    """Processes that take the next job when they are free. One that dies costs its job, and is
    replaced.
    """

    def __init__(
        self, jobs: Sequence[Job], *, size: int, say: Callable[[str], None], result: SweepResult
    ) -> None:
        self.waiting, self.total, self.say, self.result = list(jobs), len(jobs), say, result
        self.size, self.gpus = size, visible_gpus()
        self.workers: dict[int, Worker] = {}
        self.busy: dict[int, Job] = {}  # by the worker's number

    def run(self, interrupted: Callable[[], bool]) -> None:
        """Run all jobs; once interrupted, wait for the busy workers to save and stop."""
        is_stopping = False
        try:
            while self.busy or (self.waiting and not interrupted()):
                while self.waiting and self.free_workers() and not interrupted():
                    self.assign(min(self.free_workers()))
                if interrupted() and not is_stopping:
                    is_stopping = True
                    self.stop_busy_workers()
                connections = [self.workers[number].connection for number in self.busy]
                multiprocessing.connection.wait(connections, timeout=POLL_SECONDS)
                for number in list(self.busy):
                    if self.workers[number].connection.poll():
                        self.receive(number)
            self.dismiss()
        finally:
            for worker in self.workers.values():  # after an error or a second Ctrl-C
                worker.process.terminate()

    def free_workers(self) -> set[int]:
        return set(range(self.size)) - self.busy.keys()

    def assign(self, number: int) -> None:
        """Send the next job to a worker, which is started if it is not running."""
        if number not in self.workers:
            self.workers[number] = self.spawn(number)
        job = self.waiting.pop(0)
        self.say(f"[{self.total - len(self.waiting)}/{self.total}] {job.label}: {job.folder}")
        self.workers[number].connection.send(job)
        self.busy[number] = job

    def spawn(self, number: int) -> Worker:
        """Start a worker process, on a GPU of its own as far as there are enough."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        gpu = None
        if self.gpus:
            gpu = self.gpus[number % len(self.gpus)]
        threads = max(1, (os.cpu_count() or 1) // self.size)
        settings = {"concurrency": self.size, "gpu": gpu, "threads": threads}
        process = context.Process(target=work, args=(theirs,), kwargs=settings)
        process.start()
        theirs.close()  # so that the end of the process closes the pipe
        return Worker(process, ours)

    def stop_busy_workers(self) -> None:
        """Send SIGTERM to busy workers: Ctrl-C reaches them too, but a signal may be ours alone."""
        for number in self.busy:
            self.workers[number].process.terminate()

    def receive(self, number: int) -> None:
        """Record the outcome that a worker sends, or that it died."""
        job, worker = self.busy.pop(number), self.workers[number]
        try:
            outcome = worker.connection.recv()
        except (EOFError, ConnectionResetError):
            worker.process.join()
            del self.workers[number]
            exit_code = worker.process.exitcode
            message = f"its process ended with exit code {exit_code}; was there enough memory?"
            outcome = JobOutcome("failed", message)
        self.result.record(job, outcome, self.say)

    def dismiss(self) -> None:
        """Tell all workers to end, and wait for them."""
        for worker in self.workers.values():
            with contextlib.suppress(OSError):
                worker.connection.send(None)
            worker.process.join()


def visible_gpus() -> list[str]:
    """Return the GPUs as CUDA_VISIBLE_DEVICES names them; none on a machine without."""
    import torch

    if names := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return names.split(",")
    return [str(number) for number in range(torch.cuda.device_count())]


def work(connection: Connection, *, concurrency: int, gpu: str | None, threads: int) -> None:
    """Run jobs from a pipe until None comes: the main function of a worker process.

    It sets the variables that torch reads when it is first used, so before that.
    """
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    else:
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    threading.Thread(target=stop_with_parent, daemon=True).start()
    from electra.runs.signals import stop_signals

    # A parent that died may first be noticed as any of these errors.
    ended = contextlib.suppress(EOFError, ConnectionResetError, BrokenPipeError)
    with stop_signals() as interrupted, ended:
        context = JobContext(interrupted, ignore, quiet=True, concurrency=concurrency)
        while (job := connection.recv()) is not None:
            connection.send(try_job(job, context))


def stop_with_parent() -> None:
    """Save and stop when the parent process was killed: the same command may be starting again."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
