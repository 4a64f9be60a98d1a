"""Commands that run the paper's experiments at any budget."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from electra import atomic
from electra.cli import DONE, FAILED, STOPPED_EARLY, app
from electra.config import UserError
from electra.console import Terminal, to_stderr, to_stdout, wide_terminal
from electra.experiments.options import SweepOptions

if TYPE_CHECKING:
    from rich.table import Table

    from electra.experiments.sweep import Sweep
    from electra.experiments.worker_pool import SweepResult

trials = App(
    name="trials",
    help="Run the paper's tables and figures at any budget, and set ours beside theirs.",
)
app.command(trials)


@trials.command(name="list")
def list_trials() -> int:
    """Name every table and figure that can be run."""
    from rich.table import Column, Table

    from electra.experiments.plan import load_trial, trial_names

    columns = ("title", "source", "arms to run", "published only")
    table = Table(Column("name", no_wrap=True), *columns, box=None, pad_edge=False)
    for name in trial_names():
        trial = load_trial(name)
        count = len(trial.runnable_arms())
        table.add_row(name, trial.title, trial.source, str(count), str(len(trial.arms) - count))
    wide_terminal().print(table)
    return DONE


@trials.command
def run(
    *names: str,
    options: Annotated[SweepOptions, Parameter(name="*", consume_multiple=True)],
    dry_run: bool = False,
) -> int:
    """Run what is missing of trials, and never what is done; stopped or killed, the same command
    continues.

    Arms of several trials that are the same run are run once. A part-trained run is a fresh, fully
    decayed schedule.

    Parameters
    ----------
    names
        Trials, as `electra trials list` names them, or all, or TOML files of your own.
    dry_run
        Print what would be run and what it costs, and do nothing.
    """
    from electra.data.sources import resolve
    from electra.experiments.jobs import check_jobs
    from electra.experiments.scoring import find_task_data
    from electra.experiments.sweep import resolve_sweep
    from electra.runs.run_dir import create_output_dir

    refuse_torchrun()
    sweep = resolve_sweep(names, options)
    # Mistakes are refused before a table is printed that looks like success.
    task_data = find_task_data(sweep)
    if sweep.corpus is not None:
        resolve(sweep.corpus, report=lambda text: None)
    check_jobs(sweep)
    table = cost_table(sweep)
    if not dry_run:
        if sweep.corpus is None and sweep.data is None:
            raise UserError("give text with --corpus, or shards from `electra shard` with --data")
        create_output_dir(sweep.output_dir)
    print_plan(sweep, table, task_data.missing)
    if dry_run:
        return DONE
    return run_sweep(sweep, task_data.folders, options)


def refuse_torchrun() -> None:
    """Raise where torchrun started several processes of this command."""
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise UserError(
            "`electra trials run` starts its own processes: leave torchrun out, and say --at-once N"
        )


def cost_table(sweep: Sweep) -> Table:
    """Return a table of the steps, tokens and FLOPs of every arm and seed."""
    from rich.table import Column, Table

    from electra.data.shards import Shards
    from electra.experiments.budget import plan_stages

    sizes = {}
    if sweep.data is not None:
        shards = Shards.open(sweep.data)
        sizes = {shards.length: shards.manifest.vocab_size}
    # Names and numbers stay whole in 80 columns; "377,869 + 377,869" may take two lines.
    names = [Column(name, no_wrap=True) for name in ("trial", "arm")]
    costs = [Column(name, no_wrap=True) for name in ("tokens", "FLOPs")]
    table = Table(*names, "steps", "warm-up", *costs, box=None, pad_edge=False)
    for trial, arm in sweep.arms_to_run():
        stages = plan_stages(
            trial, arm, sweep.scale, budget=sweep.budget, seed=sweep.seed, vocabularies=sizes
        )
        table.add_row(
            trial.name,
            arm.name,
            " + ".join(f"{stage.steps:,}" for stage in stages),
            " + ".join(f"{stage.recipe.optimizer.warmup_steps:,}" for stage in stages),
            f"{sum(stage.steps * stage.tokens_per_step for stage in stages):.3g}",
            f"{sum(stage.flops for stage in stages):.3g}",
        )
    return table


def print_plan(sweep: Sweep, table: Table, missing: Mapping[str, str]) -> None:
    """Print what will be run, at what cost, and how little of the paper it is."""
    from electra.experiments.plan_file import SCHEDULE

    lines = [
        f"scale {sweep.scale.name}: {sweep.scale.title}; budget {sweep.budget} of its steps; "
        f"seeds of every arm: {sweep.seeds}. The schedule is {SCHEDULE}."
    ]
    for trial, arm in sweep.arms_to_run():
        if arm.also:
            names = " and ".join((arm.name, *arm.also))
            lines.append(f"{trial.name}: {names} are the same run at this scale")
    lines += [f"not scored on {task}: {reason}" for task, reason in missing.items()]
    out = wide_terminal()
    out.print(table)
    for line in lines:
        out.print(line, highlight=False, soft_wrap=True)


def run_sweep(sweep: Sweep, task_data: Mapping[str, str], options: SweepOptions) -> int:
    """Run the jobs of a sweep and print how they ended."""
    from electra.experiments.jobs import build_jobs
    from electra.experiments.shards import open_shards
    from electra.experiments.worker_pool import run_jobs

    progress = Terminal(stderr=True, quiet=options.quiet, highlight=False)

    def say(text: str) -> None:
        progress.print(text, soft_wrap=True)

    jobs = build_jobs(sweep, open_shards(sweep, quiet=options.quiet), task_data)
    result = run_jobs(jobs, concurrency=options.at_once, say=say, quiet=options.quiet)
    return print_result(result, jobs, sweep.output_dir)


def print_result(result: SweepResult, jobs: Sequence[object], output_dir: Path) -> int:
    """Print how a sweep ended; return the exit code."""
    for label, error in result.failed.items():
        to_stderr(f"error: {label}: {error}")
    if result.stopped:
        to_stdout(
            f"stopped early with {len(result.done)} runs done now; the same command "
            "continues where this one stopped"
        )
        return STOPPED_EARLY
    if result.failed:
        to_stdout(
            f"{len(result.failed)} of {len(jobs)} runs failed; the same command tries them again"
        )
        return FAILED
    to_stdout(
        f"{output_dir}: all {len(jobs)} runs are done; `electra trials report {output_dir}` shows "
        "them"
    )
    return DONE


@trials.command
def report(source: Path, *, to: Path | None = None) -> int:
    """Write what trials found so far as a page: ours beside the published, with seeds and spread.

    Parameters
    ----------
    source
        The folder that `electra trials run` fills; or a findings.json that an earlier report wrote.
    to
        Folder for index.md, index.html, figures and findings.json. By default SOURCE/report; for a
        findings.json the folder that it stands in.
    """
    from electra.experiments import findings, findings_file
    from electra.reports import figures
    from electra.reports.report import INSTALL, write_report

    if source.is_file():
        several, folder = findings_file.load(source), to or source.parent
    elif source.exists():
        several, folder = findings.collect(source), to or source / "report"
        if to is None:
            atomic.check_links(folder, inside=source)
    else:
        raise UserError(f"{source}: no such folder or file; `electra trials run` fills a folder")
    written = write_report(several, folder)
    for each in several:
        done = sum(finding.done for finding in each.results)
        to_stdout(f"{each.trial.name}: {done} of {len(each.results)} runs done")
    if not figures.is_available():
        to_stdout(f"without figures: matplotlib is not installed ({INSTALL})")
    to_stdout(f"{folder / 'index.html'} and index.md, {len(written)} files in all")
    return DONE
