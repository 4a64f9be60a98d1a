"""A fine-tuning is several runs: one for each seed, and for `glue` one set of them for each task."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from electra import atomic, tasks
from electra.config import RunFailed, UserError, flatten
from electra.console import ignore, redirect_warnings
from electra.engine.distributed import World, process_group
from electra.engine.optimizer import layer_lr_scale
from electra.engine.rendezvous import assert_same_on_all_ranks
from electra.files import read_json_object, read_json_object_or_empty
from electra.finetuning.loop import finetune_seed, speed_of
from electra.finetuning.recipe import FinetuneConfig, load_finetune_config
from electra.finetuning.results import RESULT, Summary, summarise
from electra.finetuning.setup import FinetuneSetup, given_files, prepare_finetuning, read
from electra.model.shape import EncoderShape
from electra.provenance import environment
from electra.runs import run_dir
from electra.runs.lock import LOCK, run_lock
from electra.runs.signals import stop_signals
from electra.settings import as_toml, differing_keys
from electra.tasks.models import RESULTS

RUN = "run.json"  # what this folder is a fine-tuning of
MAY_CHANGE = {
    "config.logging_steps",
    "config.save_steps",
    "config.micro_batch_size",
    "config.eval_steps",
    "config.kernels",
    "config.cuda_graph",
    "config.compile",
}


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions:
    """What a user asks for, but for model, task and folder."""

    data: str | None = None
    train: Sequence[str | Path] = ()
    dev: Sequence[str | Path] = ()
    seeds: int = 1
    seed: int = 0  # the first one
    recipe: str = "paper"
    config: Sequence[Path] = ()
    flags: Sequence[str] = ()
    random_weights: bool = False
    keep: Literal["all", "best"] = "all"
    resume: Literal["auto", "never"] = "auto"
    overwrite: bool = False
    quiet: bool = False
    verbose: bool = False

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise UserError(f"--seeds {self.seeds}: at least one run is needed")
        if self.seed < 0:
            raise UserError(f"--seed {self.seed}: must not be negative")
        if self.overwrite and self.resume != "never":
            raise UserError("--overwrite starts over and so needs --resume never")


def finetune(
    model: str | Path, task: Any, *, output_dir: str | Path, **wishes: Any
) -> Summary | None:
    """Fine-tune `model` on a task (its name, or a Task of your own) once for each seed; None when
    stopped early.

    Keywords are the fields of `Wish`: data, train, dev, seeds, recipe, flags, random_weights and so
    on.
    """
    options = FinetuneOptions(**wishes)
    task = tasks.find_task(task) if isinstance(task, str) else task
    with process_group() as world, stop_signals() as interrupted, run_lock(Path(output_dir), world):
        return finetune_task(model, task, Path(output_dir), options, world, interrupted)


def finetune_glue(
    model: str | Path, *, output_dir: str | Path, **wishes: Any
) -> tuple[list[Summary], list[str], bool]:
    """Every GLUE task whose data is there: summaries, the names of those that lack it, and whether
    all came to an end.
    """
    from electra.tasks.glue import available_tasks

    options = FinetuneOptions(**wishes)
    if options.data is None or options.train or options.dev:
        raise UserError(
            "--task glue takes --data, a folder with one folder for each task, or nyu-mll/glue"
        )
    found, missing = available_tasks(options.data)
    if not found:
        raise UserError(
            f"{options.data}: no GLUE task has its files there; a folder such as RTE/ with train.tsv "
            "and "
            f"dev.tsv is expected"
        )
    for name in found:  # a fault in the last one should not show after hours of the others
        task = tasks.find_task(name)
        with redirect_warnings(ignore):  # what is worth saying is said when its turn comes
            read(task, given_files(task, options.data, train=(), dev=()), say=ignore)
    summaries: list[Summary] = []
    with process_group() as world, stop_signals() as interrupted:
        for name in found:
            place = Path(output_dir) / name.removeprefix("glue/")
            with run_lock(place, world):
                summary = finetune_task(
                    model, tasks.find_task(name), place, options, world, interrupted
                )
            if summary is None:
                return summaries, list(missing), False
            summaries.append(summary)
    return summaries, list(missing), True


def finetune_task(
    model: str | Path,
    task: Any,
    output_dir: Path,
    options: FinetuneOptions,
    world: World,
    interrupted: Callable[[], bool],
) -> Summary | None:
    console = Console(stderr=True, quiet=options.quiet or not world.is_main, highlight=False)

    def say(text: str) -> None:
        console.print(
            text,
            soft_wrap=True,
            markup=False,
            style="yellow" if text.startswith("warning:") else "",
        )

    def load(shape: EncoderShape) -> FinetuneConfig:
        return load_finetune_config(
            options.recipe,
            shape=shape,
            kind=task.kind,
            task=task.name,
            frozen=bool(task.frozen),
            files=options.config,
            flags=options.flags,
        )

    setup = prepare_finetuning(
        model,
        task,
        load,
        recipe=options.recipe,
        data=options.data,
        train=options.train,
        dev=options.dev,
        random_weights=options.random_weights,
        say=say,
    )
    begin(setup, output_dir, options, world)
    introduce(setup, options, say)
    runs: list[dict[str, Any]] = []
    for seed in range(options.seed, options.seed + options.seeds):
        place = output_dir / f"seed-{seed}"
        result = finished(place)
        if result is None:
            try:
                result = finetune_seed(
                    setup, seed, place, world, interrupted=interrupted, quiet=options.quiet
                )
            except RunFailed as failure:
                set_status(output_dir, "failed", runs, world, message=str(failure))
                raise
        if result is None:
            set_status(output_dir, "stopped", runs, world)
            say(f"stopped early; the same command goes on with seed {seed}")
            return None
        runs.append(result)
        say(in_words(result))
    return conclude(setup, runs, output_dir, options, world)


def begin(setup: FinetuneSetup, output_dir: Path, options: FinetuneOptions, world: World) -> None:
    """The folder of this fine-tuning, and of no other."""
    speed_of(setup, world)  # refuses what this device does not have
    asked = json.loads(json.dumps(setup.identity()))
    assert_same_on_all_ranks(dict(flatten(asked)))
    there = (output_dir / RUN).exists()
    if there and options.resume == "never" and not options.overwrite:
        raise UserError(
            f"{output_dir} already holds a fine-tuning; choose another --output-dir, or add "
            "--overwrite"
        )
    if (
        not there
        and output_dir.is_dir()
        and any(path.name != LOCK for path in output_dir.iterdir())
    ):
        raise UserError(
            f"{output_dir} holds something else than a fine-tuning; choose another --output-dir"
        )
    if there and not options.overwrite:
        here = read_run(output_dir)
        if changed := [key for key in differing_keys(asked, here) if key not in MAY_CHANGE]:
            wanted, found = dict(flatten(asked)), dict(flatten(here))
            lines = "".join(
                f"\n  {key}: here {found.get(key)!r}, asked {wanted.get(key)!r}" for key in changed
            )
            raise UserError(
                f"{output_dir} holds another fine-tuning:{lines}\nUse another --output-dir, or "
                "--resume "
                "never --overwrite to start over in this one."
            )
    world.barrier()
    if world.is_main:
        output_dir.mkdir(parents=True, exist_ok=True)
        if options.overwrite:
            for path in output_dir.iterdir():
                if re.fullmatch(r"seed-\d+", path.name):
                    shutil.rmtree(path)
            (output_dir / RESULTS).unlink(missing_ok=True)
        atomic.write_json(output_dir / run_dir.ENVIRONMENT, environment())
        atomic.write(output_dir / run_dir.CONFIG, as_toml(setup.config))
        atomic.write_json(output_dir / RUN, asked)
        set_status(output_dir, "running", [], world)
    world.barrier()


def read_run(output_dir: Path) -> dict[str, Any]:
    remedy = "start over with --resume never --overwrite"
    return read_json_object(output_dir / RUN, remedy=remedy)


def introduce(setup: FinetuneSetup, options: FinetuneOptions, say: Callable[[str], None]) -> None:
    """What is about to happen, in a few lines."""
    settings, shape = setup.config, setup.shape
    say(
        f"{setup.model}: "
        + (
            f"{setup.loaded}; the head for {setup.task.name} is fresh"
            if setup.loaded
            else "its shape and tokenizer, random weights"
        )
    )
    dev = ", ".join(f"{part} {len(examples):,}" for part, (examples, _) in setup.dev.items())
    say(
        f"{setup.data['train']['examples']:,} training examples in "
        f"{len(setup.train.examples):,} rows of at "
        f"most {settings.length} tokens; {dev}; {settings.steps(len(setup.train)):,} steps of "
        f"{settings.batch_size}, "
        f"learning rate {settings.learning_rate:g}, recipe {options.recipe}"
    )
    if options.verbose:
        official = settings.layer_counting == "official"
        parts = {
            "head": "head.",
            **{f"layer {n + 1}": f"encoder.blocks.{n}." for n in reversed(range(shape.layers))},
            "embeddings": "encoder.embeddings.",
        }
        for part, name in parts.items():
            share = layer_lr_scale(
                name, layers=shape.layers, decay=settings.layer_decay, official=official
            )
            say(f"  {part:<12} {settings.learning_rate * share:.3g}")


def finished(place: Path) -> dict[str, Any] | None:
    """The result of a seed that is done."""
    return read_json_object_or_empty(place / RESULT) or None


def in_words(result: dict[str, Any]) -> str:
    scores = ", ".join(
        f"{name} {value:.4f}" for name, value in next(iter(result["scores"].values())).items()
    )
    mark = (
        "; warning: no better than an answer that ignores the text" if result["degenerate"] else ""
    )
    return f"seed {result['seed']}: {scores} ({result['steps']:,} steps in {result['seconds']:.0f} s){mark}"


def conclude(
    setup: FinetuneSetup,
    runs: list[dict[str, Any]],
    output_dir: Path,
    options: FinetuneOptions,
    world: World,
) -> Summary:
    # Seeds of an earlier command count as well: it is the same fine-tuning.
    found = {
        run["seed"]: run
        for run in (*map(finished, sorted(output_dir.glob("seed-*"))), *runs)
        if run
    }
    runs = [found[seed] for seed in sorted(found)]
    summary = summarise(setup, runs)
    if not world.is_main:
        return summary
    if options.keep == "best":
        for run in runs:
            if (place := f"seed-{run['seed']}/model") != summary.best_model:
                shutil.rmtree(output_dir / place, ignore_errors=True)
    summary.save(output_dir)
    set_status(output_dir, "finished", runs, world)
    return summary


def set_status(
    output_dir: Path, status: run_dir.Status, runs: Sequence[Any], world: World, **facts: Any
) -> None:
    if world.is_main:
        run_dir.set_status(
            output_dir,
            status,
            step=sum(run["steps"] for run in runs),
            seeds_done=len(runs),
            **facts,
        )
