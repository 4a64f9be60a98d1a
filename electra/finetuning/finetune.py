"""Fine-tune a model on a task, once for each seed; or on every GLUE task."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from electra import atomic, tasks
from electra.config import RunFailed, UserError
from electra.console import Terminal, ignore, redirect_warnings, to_stdout, without_readers
from electra.data.wordpiece import WordPiece
from electra.engine.distributed import World, process_group
from electra.engine.optimizer import layer_lr_scale
from electra.finetuning.folds import build_folds
from electra.finetuning.options import FinetuneKeywords, FinetuneOptions
from electra.finetuning.output_dir import (
    check_output_dir,
    open_output_dir,
    remove_other_models,
    set_status,
    set_stopped,
)
from electra.finetuning.results import SeedResult, Summary
from electra.finetuning.search import search_settings
from electra.finetuning.seed_job import SeedJob, finetune_with_folds
from electra.finetuning.session import Session, examples_per_seed
from electra.finetuning.setup import (
    NO_TABLES,
    FinetuneSetup,
    Tables,
    find_files,
    prepare_finetuning,
    read_examples,
    resolve_config,
)
from electra.finetuning.summary import summarize
from electra.model.model_config import load_shape
from electra.runs import run_dir
from electra.runs.lock import run_lock
from electra.runs.progress import OverallProgress
from electra.runs.signals import stop_signals
from electra.settings import as_toml
from electra.tasks.features import Features
from electra.tasks.models import model_folder
from electra.tasks.task import AnyTask
from electra.tasks.vocabulary_fit import VocabularyFit

# Share of [UNK] in the training text without a warning. Emojis and rare signs stay below it.
MAX_UNKNOWN = 0.1


def finetune(
    model: str | Path,
    task: str | AnyTask,
    *,
    output_dir: str | Path,
    **options: Unpack[FinetuneKeywords],
) -> Summary | None:
    """Fine-tune a model on a task (its name, or a Task of your own), once for each seed.

    Return the summary over the seeds, or None when it was stopped early; the same call continues.
    The other keywords are the fields of `FinetuneOptions`, which the command line has as flags.
    """
    if isinstance(task, str):
        task = tasks.find_task(task)
    return finetune_with_options(model, task, Path(output_dir), FinetuneOptions(**options))


def finetune_with_options(
    model: str | Path,
    task: AnyTask,
    output_dir: Path,
    options: FinetuneOptions,
    tables: Tables = NO_TABLES,
) -> Summary | None:
    """Fine-tune in a process group of its own, with the folder locked against other processes."""
    with (
        without_readers(),
        process_group() as world,
        stop_signals() as interrupted,
        run_lock(output_dir, world),
    ):
        session = Session(world, interrupted)
        return finetune_task(model, task, output_dir, options, session, tables)


# ---- one task ------------------------------------------------------------------------------------


def finetune_task(
    model: str | Path,
    task: AnyTask,
    output_dir: Path,
    options: FinetuneOptions,
    session: Session,
    tables: Tables = NO_TABLES,
) -> Summary | None:
    """Fine-tune a model once for each seed. Return None when it was stopped early."""
    world = session.world
    say = reporter(quiet=options.quiet or not world.is_main)
    setup = prepare_finetuning(model, task, options, tables=tables, say=say)
    folds = build_folds(setup, say)
    open_output_dir(setup, output_dir, options, world)
    announce(setup, options, say)
    plan_trainings([setup, *(fold.setup for fold in folds)], options, session.overall)
    runs: list[SeedResult] = []
    with explain_failures(output_dir, runs, world):
        searched = search_or_keep(setup, output_dir, options, session, say)
        if searched is None:
            set_stopped(output_dir, runs, world)
            say("stopped early; the same command continues with the search")
            return None
        for seed in range(options.seed, options.seed + options.seeds):
            job = SeedJob(seed, output_dir, options, session, runs)
            result = finetune_with_folds(searched, folds, job, say)
            if result is None:
                set_stopped(output_dir, runs, world)
                say(f"stopped early; the same command continues with seed {seed}")
                return None
            runs.append(result)
            set_status(output_dir, "running", runs, world)
            say(str(result))
        return write_summary(searched, runs, output_dir, options, world)


def plan_trainings(
    setups: Sequence[FinetuneSetup], options: FinetuneOptions, overall: OverallProgress
) -> None:
    """Set how many trainings there are, and how many examples those of this task read."""
    setup, *_ = setups
    trainings = options.seeds * len(setups)
    if setup.search is not None:
        trainings += setup.search.trainings or setup.search.first_round
    overall.trainings = max(overall.trainings, trainings)
    overall.plan(setup.task.name, options.seeds * sum(map(examples_per_seed, setups)))


def search_or_keep(
    setup: FinetuneSetup,
    output_dir: Path,
    options: FinetuneOptions,
    session: Session,
    say: Callable[[str], None],
) -> FinetuneSetup | None:
    """Return the set-up with the settings that a search finds, if one was asked for.

    Return None when it was stopped early.
    """
    if setup.search is None:
        return setup
    found = search_settings(setup, setup.search, output_dir, session, say, quiet=options.quiet)
    if found is None:
        return None
    if session.world.is_main:
        atomic.write(output_dir / run_dir.CONFIG, as_toml(found.config))
    session.overall.plan(found.task.name, options.seeds * examples_per_seed(found))
    return found


def describe_finetuning(
    model: str | Path, task: AnyTask, output_dir: Path, options: FinetuneOptions
) -> None:
    """Read and check everything that a fine-tuning needs, and print what it would do."""
    setup = prepare_finetuning(model, task, options, say=to_stdout)
    build_folds(setup, to_stdout)
    check_output_dir(output_dir, json.loads(json.dumps(setup.identity())), options)
    announce(setup, options, to_stdout)
    if setup.search is not None:
        to_stdout(setup.search.describe())
    to_stdout(f"seeds: {options.seeds}; nothing was trained or written (--dry-run)")


@contextmanager
def explain_failures(output_dir: Path, runs: Sequence[SeedResult], world: World) -> Iterator[None]:
    """Write the status of a fine-tuning that failed, and raise RunFailed for an OSError."""
    try:
        yield
    except Exception as error:
        with suppress(OSError):  # the disk may be full
            set_status(output_dir, "failed", runs, world, message=str(error))
        if not isinstance(error, OSError):
            raise
        raise RunFailed(
            f"{error}; {len(runs)} seeds are finished. The same command continues from there once "
            "that is fixed."
        ) from error


def reporter(*, quiet: bool) -> Callable[[str], None]:
    """Return a function that prints a line on standard error, warnings in yellow."""
    console = Terminal(stderr=True, quiet=quiet, highlight=False)

    def say(text: str) -> None:
        style = ""
        if text.startswith("warning:"):
            style = "yellow"
        console.print(text, soft_wrap=True, style=style)

    return say


def announce(setup: FinetuneSetup, options: FinetuneOptions, say: Callable[[str], None]) -> None:
    """Print the model, the data, the number of steps and the learning rate."""
    config = setup.config
    if setup.loaded is None:
        say(f"{setup.model}: its shape and tokenizer, random weights")
    else:
        say(f"{setup.model}: {setup.loaded}; the head for {setup.task.name} is fresh")
    dev = ", ".join(f"{name} {len(split.examples):,}" for name, split in setup.dev.items())
    if config.folds:
        dev = f"{config.folds} folds"
    say(
        f"{setup.data['train']['examples']:,} training examples in "
        f"{len(setup.train.examples):,} rows of at most {config.length} tokens; {dev}; "
        f"{config.steps(len(setup.train)):,} steps of {config.batch_size}, learning rate "
        f"{config.learning_rate:g}, recipe {options.recipe}"
    )
    warn_of_vocabulary(setup.train, setup.tokenizer, say)
    if options.verbose:
        announce_learning_rates(setup, say)


def warn_of_vocabulary(train: Features, tokenizer: WordPiece, say: Callable[[str], None]) -> None:
    """Print that the vocabulary was not made for the training text, where it seems so."""
    fit = VocabularyFit(tokenizer)
    fit.add(train)
    if fit.unknown > MAX_UNKNOWN * fit.tokens:
        say(
            f"warning: {fit.unknown / fit.tokens:.0%} of the training text is [UNK], not in the "
            f"vocabulary of {tokenizer.display_name}; if that was made for another language or "
            "script, take another model"
        )
    if fit.split_warning:
        say(f"warning: {fit.split_warning}")


def announce_learning_rates(setup: FinetuneSetup, say: Callable[[str], None]) -> None:
    """Print the learning rate of the head, of each layer and of the embeddings."""
    config, layers = setup.config, setup.shape.layers
    prefixes = {"head": "head."}
    for layer in reversed(range(layers)):
        prefixes[f"layer {layer + 1}"] = f"encoder.blocks.{layer}."
    prefixes["embeddings"] = "encoder.embeddings."
    for part, prefix in prefixes.items():
        scale = layer_lr_scale(
            prefix,
            layers=layers,
            decay=config.layer_decay,
            official=config.layer_counting == "official",
        )
        say(f"  {part:<12} {config.learning_rate * scale:.3g}")


def write_summary(
    setup: FinetuneSetup,
    runs: Sequence[SeedResult],
    output_dir: Path,
    options: FinetuneOptions,
    world: World,
) -> Summary:
    """Summarize all seeds of the folder: those of an earlier command are the same fine-tuning."""
    by_seed = {}
    for folder in sorted(output_dir.glob("seed-*")):
        earlier = SeedResult.load(folder)
        if earlier is not None:
            by_seed[earlier.seed] = earlier
    by_seed |= {run.seed: run for run in runs}
    summary = summarize(setup, [by_seed[seed] for seed in sorted(by_seed)])
    if not world.is_main:
        return summary
    if options.keep == "best":
        remove_other_models(summary, output_dir)
    summary.save(output_dir)
    set_status(output_dir, "finished", summary.runs, world)
    return summary


# ---- GLUE ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GlueSummaries:
    """The summaries of GLUE's tasks, the tasks without data, and whether all were finished."""

    summaries: list[Summary]
    missing: list[str]
    finished: bool


def finetune_glue(model: str | Path, output_dir: Path, options: FinetuneOptions) -> GlueSummaries:
    """Fine-tune a model on every GLUE task whose data is there."""
    from electra.tasks.glue import available_tasks

    if options.data is None or options.train or options.dev:
        raise UserError(
            "--task glue takes --data, a folder with one folder for each task, or nyu-mll/glue"
        )
    names, missing = available_tasks(options.data)
    if not names:
        raise UserError(
            f"{options.data}: no GLUE task has its files there; a folder such as RTE/ with "
            "train.tsv and dev.tsv is expected"
        )
    for name in names:
        atomic.check_links(output_dir / name.removeprefix("glue/"), inside=output_dir)
    overall = OverallProgress(trainings=len(names) * options.seeds)
    overall.planned = check_glue_files(names, model, options)
    summaries: list[Summary] = []
    with without_readers(), process_group() as world, stop_signals() as interrupted:
        overall.start_time = time.monotonic()
        for number, name in enumerate(names, start=1):
            folder, task = output_dir / name.removeprefix("glue/"), tasks.find_task(name)
            session = Session(world, interrupted, overall, f"{folder.name} {number}/{len(names)}")
            with run_lock(folder, world):
                summary = finetune_task(model, task, folder, options, session)
            if summary is None:
                return GlueSummaries(summaries, list(missing), finished=False)
            summaries.append(summary)
    return GlueSummaries(summaries, list(missing), finished=True)


def check_glue_files(
    names: Sequence[str], model: str | Path, options: FinetuneOptions
) -> dict[str, float]:
    """Read all files once: a fault in the last should not show after hours of training.

    Return about how many examples the training of each task reads.
    """
    shape, _, _ = load_shape(model_folder(model))
    examples: dict[str, float] = {}
    for name in names:
        task = tasks.find_task(name)
        config = resolve_config(task, options, shape)
        with redirect_warnings(ignore):  # they are printed when the task's turn comes
            _, train, _ = read_examples(task, find_files(task, options), ignore)
        rows = min(len(train), config.max_train_examples or len(train))
        steps = config.for_examples(rows).steps(rows)
        examples[name] = options.seeds * steps * config.batch_size
    return examples
