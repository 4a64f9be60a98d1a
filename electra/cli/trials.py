"""Commands that run the paper's experiments at any budget."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import App

from electra.cli import DONE, FAILED, STOPPED_EARLY, Integer, StringList, app, check_output_dir
from electra.config import UserError

if TYPE_CHECKING:
    from electra.experiments.sweep import SweepOptions

trials = App(
    name="trials",
    help="Run the paper's tables and figures at any budget, and set ours beside theirs.",
)
app.command(trials)


@trials.command(name="list")
def list_trials() -> int:
    """Name every table and figure that can be run."""
    from rich.console import Console
    from rich.table import Table

    from electra.experiments import plan

    table = Table(
        "name", "title", "source", "arms to run", "published only", box=None, pad_edge=False
    )
    for name in plan.trials():
        trial = plan.load_trial(name)
        ours = trial.to_run()
        table.add_row(
            name, trial.title, trial.source, str(len(ours)), str(len(trial.arms) - len(ours))
        )
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(table)
    return DONE


@trials.command
def run(
    *names: str,
    output_dir: Path,
    corpus: StringList = None,
    data: Path | None = None,
    glue: str | None = None,
    squad: str | None = None,
    scale: str | None = None,
    budget: str = "1",
    seeds: Integer = 1,
    seed: Integer = 0,
    tasks: StringList = None,
    arms: StringList = None,
    at_once: Integer = 1,
    dry_run: bool = False,
    quiet: bool = False,
) -> int:
    """Run what is missing of trials, and never what is done; stopped or killed, the same command
    goes on.

    Arms of several trials that are the same run are run once. A part-trained run is a fresh, fully
    decayed schedule.

    Parameters
    ----------
    names
        Trials, as `electra trials list` names them, or all.
    output_dir
        Where shards, runs and results go; `electra trials report` reads them there.
    corpus
        Text to train on: files, folders, globs or hub names.
    data
        Shards from `electra shard`, instead of a corpus.
    glue
        Folder with the GLUE tasks to score on. Without it, networks are only measured on held-out
        text.
    squad
        Folder with the official SQuAD files.
    scale
        What the paper's networks become: paper (the default), trial, smoke, or a TOML file.
    budget
        Share of the scale's steps: 1/256 or 0.01; smoke is short for --scale smoke --budget 1.
    seeds
        Pre-trainings of each arm.
    seed
        The first seed.
    tasks
        To score on, instead of the trial's and scale's: glue, glue/NAME, squad-1.1, squad-2.0.
    arms
        Only these.
    at_once
        Runs at a time on this machine, each in a process of its own; spread over the GPUs it has.
    dry_run
        Say what would be run and what it costs, and do nothing.
    quiet
        No progress.
    """
    from electra.experiments.sweep import checked

    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise UserError(
            "`electra trials run` starts its own processes: leave torchrun out, and say --at-once N"
        )
    if at_once < 1:
        raise UserError(f"--at-once {at_once}: at least one run at a time")
    if not names:
        raise UserError("name at least one trial, or all; `electra trials list` shows them")
    asked = checked(
        names,
        scale=scale,
        budget=budget,
        tasks=tasks or (),
        arms=arms or (),
        seeds=seeds,
        seed=seed,
        folders={"glue": glue, "squad": squad},
        output_dir=check_output_dir(output_dir),
        corpus=corpus,
        data=data,
    )
    introduce(asked, dry_run=dry_run)
    return DONE if dry_run else carry_out(asked, at_once=at_once, quiet=quiet)


def check_place(asked: SweepOptions) -> None:
    try:
        asked.output_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"--output-dir {asked.output_dir}: cannot be written: {error.strerror}; name another "
            "folder"
        ) from None


def introduce(asked: SweepOptions, *, dry_run: bool) -> None:
    """What will be run, at what cost, and how little of the paper it is."""
    from rich.console import Console
    from rich.table import Table

    from electra.data.shards import Shards
    from electra.data.sources import resolve
    from electra.experiments.budget import planned
    from electra.experiments.sweep import SCHEDULE, scorable

    unscored = scorable(asked)[
        1
    ]  # what is refused is refused before a table that looks like success
    if asked.corpus is not None:
        resolve(asked.corpus, report=lambda text: None)
    console = Console()
    console = console if console.is_terminal else Console(width=160)
    shards = Shards.open(asked.data) if asked.data else None
    sizes = {shards.length: shards.manifest.vocab_size} if shards else {}
    table = Table(
        "trial", "arm", "seeds", "steps", "warm-up", "tokens", "FLOPs", box=None, pad_edge=False
    )
    for seed, trial, arm in asked.chosen():
        if seed == asked.seed:
            stages = planned(
                trial, arm, asked.scale, budget=asked.budget, seed=seed, vocabularies=sizes
            )
            tokens, operations = (
                sum(stage.steps * of for stage, of in zip(stages, each, strict=True))
                for each in (
                    [stage.tokens_of_step for stage in stages],
                    [stage.operations_of_step for stage in stages],
                )
            )
            table.add_row(
                trial.name,
                arm.name,
                str(asked.seeds),
                " + ".join(f"{stage.steps:,}" for stage in stages),
                " + ".join(f"{stage.recipe.optimizer.warmup_steps:,}" for stage in stages),
                f"{tokens:.3g}",
                f"{operations:.3g}",
            )
    if not dry_run:
        if asked.corpus is None and asked.data is None:
            raise UserError("give text with --corpus, or shards from `electra shard` with --data")
        check_place(asked)
    console.print(table)
    console.print(
        f"scale {asked.scale.name}: {asked.scale.title}; budget {asked.budget} of its steps. The "
        "schedule is "
        f"{SCHEDULE}.",
        highlight=False,
        soft_wrap=True,
    )
    same = [
        f"{trial.name}: {' and '.join((arm.name, *arm.also))} are the same run at this scale"
        for trial in asked.trials
        for arm in trial.to_run(asked.arms)
        if arm.also
    ]
    for text in (*same, *unscored):
        console.print(text, highlight=False, soft_wrap=True)


def carry_out(asked: SweepOptions, *, at_once: int, quiet: bool) -> int:
    import sys

    from rich.console import Console

    from electra.experiments.running import run as run_jobs
    from electra.experiments.sweep import arranged, scorable, shards_of

    said = Console(stderr=True, quiet=quiet, highlight=False)

    def say(text: str) -> None:
        said.print(text, soft_wrap=True, markup=False)

    jobs = arranged(asked, shards_of(asked, quiet=quiet), scorable(asked)[0])
    tally = run_jobs(jobs, at_once=at_once, say=say, quiet=quiet)
    for label, error in tally.failed.items():
        print(f"error: {label}: {error}", file=sys.stderr)
    if tally.stopped:
        print(
            f"stopped early with {len(tally.done)} runs done now; the same command goes on where "
            "this one was"
        )
        return STOPPED_EARLY
    if tally.failed:
        print(f"{len(tally.failed)} of {len(jobs)} runs failed; the same command tries them again")
        return FAILED
    print(
        f"{asked.output_dir}: all {len(jobs)} runs are done; `electra trials report "
        f"{asked.output_dir}` shows them"
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
    from electra.experiments import evidence, findings
    from electra.reports import plots
    from electra.reports.report import INSTALL
    from electra.reports.report import report as write

    if not source.exists():
        raise UserError(f"{source}: no such folder or file; `electra trials run` fills a folder")
    is_file = source.is_file()
    found = evidence.load(source) if is_file else findings.collect(source)
    place = to or (source.parent if is_file else source / "report")
    written = write(found, place)
    for each in found:
        print(
            f"{each.trial.name}: {sum(finding.done for finding in each.found)} of "
            f"{len(each.found)} runs done"
        )
    if not plots.is_available():
        print(f"without figures: matplotlib is not installed ({INSTALL})")
    print(f"{place / 'index.html'} and index.md, {len(written)} files in all")
    return DONE
