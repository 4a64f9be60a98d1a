"""The command that fine-tunes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from electra.cli import (
    DONE,
    STOPPED_EARLY,
    Settings,
    app,
    check_flags,
    check_output_dir,
    is_main_rank,
    print_next_commands,
)
from electra.config import UserError
from electra.console import ignore, print_data, to_stderr, wide_terminal
from electra.finetuning.options import DEFAULTS, FinetuneOptions, FrozenEncoder
from electra.tasks import SIMILAR

if TYPE_CHECKING:
    from electra.finetuning.results import Summary

HELP = """Fine-tune a model on a task, once or with several seeds, and score it.

Settings of the recipe may follow (--learning-rate 1e-4 --epochs 5 --batch-size 16 --length 256;
--print-config lists them), and options of the task:

classify: --text COLUMN --text-pair COLUMN --label COLUMN --regression true|false --no-header
--delimiter tab|;|... --label-part coarse|fine --class-weights balanced|LABEL=WEIGHT,... --metric
NAME. A COLUMN is a name, or a number counted from 0. Texts with several labels: --multi-label
--label-separator |, or --label COLUMN,COLUMN of 0 and 1; --threshold 0.5.

span, squad-1.1, squad-2.0: --head joint|simple --question COLUMN --context COLUMN --answers COLUMN
--unanswerable.

tag, ner, chunk: --words COLUMN --tags COLUMN --scheme iob1|iob2|bioes|plain. Of CoNLL columns,
--words N and --column N are the numbers of the words and of the tags, counted from 0, or from -1
backwards; by default 0 and -1, and of CoNLL-U 1 (FORM) and 3 (UPOS).

choose, swag, race: --context COLUMN --question COLUMN --options COLUMN,COLUMN --label COLUMN
--first-label 0|1.

similar (an embedder, by sentence-transformers): --text COLUMN --text-pair COLUMN --negative COLUMN
--score COLUMN, and the settings that --print-config lists.
"""


@dataclass(frozen=True, kw_only=True)
class Output:
    """What the command prints, and whether it trains.

    Parameters
    ----------
    print_config
        Print all settings as TOML, with their choices and what they mean, and do nothing else.
    dry_run
        Check everything, print how many steps and trainings there would be, and do nothing else.
    json
        Print the results as JSON.
    """

    print_config: bool = False
    dry_run: bool = False
    json: bool = False


TRAINED, RESULTS_AS_TABLE = FrozenEncoder(), Output()
# Of the files in an example of what to type next, by the kind of task; of others .jsonl.
SUFFIXES = {"classify": ".csv", "glue": ".tsv", "span": ".json", "tag": ".conll"}


@app.command(help=HELP)
def finetune(
    model: str,
    *settings: Settings,
    task: str,
    output_dir: Path | None = None,
    encoder: Annotated[FrozenEncoder, Parameter(name="*")] = TRAINED,
    options: Annotated[FinetuneOptions, Parameter(name="*")] = DEFAULTS,
    output: Annotated[Output, Parameter(name="*")] = RESULTS_AS_TABLE,
) -> int:
    """Fine-tune a model on a task.

    Parameters
    ----------
    model
        A discriminator: run folder, transformers folder, or owner/name on the hub. A fine-tuned
        model gets a fresh head.
    task
        glue/cola sst-2 mrpc sts-b qqp mnli qnli rte wnli, or glue for all of them; squad-1.1,
        squad-2.0, mrqa; ner, chunk; swag, race; for data of your own: classify, span, tag, choose,
        similar.
    output_dir
        Folder for the results, and for the model and the predictions of each seed. The same command
        continues where it was stopped. Not needed with --print-config.
    """
    if task.lower() == SIMILAR:
        options = replace(options, flags=settings)
        return finetune_embedder(model, output_dir, options, encoder, output)
    task_options, flags = split_settings(task, settings)
    task_options |= encoder.task_options()
    options = replace(options, flags=flags)
    if output.print_config:
        return print_settings(model, task, task_options, options)
    output_dir = require_output_dir(output_dir)
    if output.dry_run:
        return describe(model, task, task_options, output_dir, options)
    if task.lower() == "glue":
        return finetune_all(model, task_options, output_dir, options, as_json=output.json)
    return finetune_one(model, task, task_options, output_dir, options, as_json=output.json)


def require_output_dir(output_dir: Path | None) -> Path:
    """Return the folder for the results; raise UserError where none, or a file, is named."""
    if output_dir is None:
        raise UserError("--output-dir is missing: the folder to keep the results in")
    return check_output_dir(output_dir)


def finetune_embedder(
    model: str,
    output_dir: Path | None,
    options: FinetuneOptions,
    encoder: FrozenEncoder,
    output: Output,
) -> int:
    """Train an embedder on pairs or triplets of texts and print its summary."""
    from electra.finetuning.similar_settings import SimilarConfig, load_similar_config

    if encoder.frozen:
        raise UserError("--frozen does not go with --task similar: the encoder is what learns")
    refuse_other_settings(options.flags)
    check_flags(options.flags, "finetune", SimilarConfig)
    if output.print_config:
        from electra.setting_docs import as_commented_toml

        config = load_similar_config(options.config, options.flags)
        print_data(as_commented_toml(config).rstrip())
        return DONE
    output_dir = require_output_dir(output_dir)
    from electra.finetuning.similar import finetune_similar
    from electra.finetuning.similar_setup import prepare_similar

    if output.dry_run:
        prepare_similar(model, options, output_dir)
        return DONE
    summary = finetune_similar(model, output_dir, options)
    if summary is None:
        return STOPPED_EARLY
    print_summaries([summary], [], as_json=output.json)
    if not (output.json or options.quiet):
        vectors = f"{output_dir}-vectors.npy"
        print_next_commands(("embed", output_dir, "texts.txt", "--output", vectors))
    return DONE


def refuse_other_settings(flags: Sequence[str]) -> None:
    """Raise UserError for a setting that other tasks have, and an embedder does not."""
    from electra.finetuning.recipe import FinetuneConfig
    from electra.finetuning.similar_settings import SimilarConfig
    from electra.settings import as_flag, setting_keys

    others = set(map(as_flag, setting_keys(FinetuneConfig)))
    others -= set(map(as_flag, setting_keys(SimilarConfig)))
    for flag in flags:
        name = flag.partition("=")[0]
        if name == "--label":
            raise UserError(
                "--label does not go with --task similar; --score COLUMN names how similar the "
                "texts of a pair are, from 0 to 1"
            )
        if name in others:
            raise UserError(
                f"{name} does not go with --task similar; --print-config lists the settings that do"
            )


def split_settings(task: str, settings: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Split what follows the options into options of the task and settings of the recipe."""
    from electra import tasks
    from electra.finetuning.recipe import FinetuneConfig

    name = task
    if task.lower() == "glue":
        name = "glue/rte"  # all of GLUE's tasks take the same options
    task_options, flags = tasks.split_options(tasks.task_class(name), settings)
    check_flags(flags, "finetune", FinetuneConfig)
    return task_options, flags


def finetune_one(
    model: str,
    task: str,
    task_options: dict[str, Any],
    output_dir: Path,
    options: FinetuneOptions,
    *,
    as_json: bool,
) -> int:
    """Fine-tune a model on one task and print its summary."""
    from electra import tasks
    from electra.finetuning.finetune import finetune_with_options

    summary = finetune_with_options(
        model, tasks.find_task(task, **task_options), output_dir, options
    )
    if summary is None:
        return STOPPED_EARLY
    print_summaries([summary], [], as_json=as_json)
    write_report(output_dir, summary, options)
    if is_main_rank() and not (as_json or options.quiet):
        suffix = SUFFIXES.get(tasks.task_class(task).kind, ".jsonl")
        answers = f"{output_dir}-predictions.jsonl"
        print_next_commands(
            ("predict", output_dir, f"new{suffix}", "--output", answers),
            ("evaluate", output_dir, "--dev", f"test{suffix}"),
        )
    return DONE


def finetune_all(
    model: str,
    task_options: dict[str, Any],
    output_dir: Path,
    options: FinetuneOptions,
    *,
    as_json: bool,
) -> int:
    """Fine-tune a model on every GLUE task and print their summaries."""
    from electra.finetuning.finetune import finetune_glue

    if task_options:
        flag = next(iter(task_options)).replace("_", "-")
        raise UserError(f"--{flag} does not go with --task glue; name one task")
    if options.search or options.search_minutes:
        raise UserError("--search is for one task: --task glue/rte, for example")
    results = finetune_glue(model, output_dir, options)
    print_summaries(results.summaries, results.missing, as_json=as_json)
    for summary in results.summaries:
        write_report(output_dir / summary.task.removeprefix("glue/"), summary, options)
    if results.finished:
        return DONE
    return STOPPED_EARLY


def describe(
    model: str,
    task: str,
    task_options: dict[str, Any],
    output_dir: Path,
    options: FinetuneOptions,
) -> int:
    """Print what a fine-tuning on one task would do."""
    from electra import tasks
    from electra.finetuning.finetune import describe_finetuning

    if task.lower() == "glue":
        raise UserError("--dry-run looks at one task: --task glue/rte, for example")
    describe_finetuning(model, tasks.find_task(task, **task_options), output_dir, options)
    return DONE


def write_report(output_dir: Path, summary: Summary, options: FinetuneOptions) -> None:
    """Write the page about a fine-tuning from the main rank, and print its path."""
    if not options.report or not is_main_rank():
        return
    from electra.reports.finetune_report import write_finetune_report

    say = ignore if options.quiet else to_stderr
    write_finetune_report(output_dir, summary, say)


def print_settings(
    model: str, task: str, task_options: dict[str, Any], options: FinetuneOptions
) -> int:
    """Print the settings for one task as TOML."""
    from electra import tasks
    from electra.finetuning.setup import resolve_config
    from electra.model.model_config import load_shape
    from electra.setting_docs import as_commented_toml
    from electra.tasks.models import model_folder

    if task.lower() == "glue":
        raise UserError(
            "--print-config shows the settings of one task: --task glue/rte, for example"
        )
    shape, _, _ = load_shape(model_folder(model))
    config = resolve_config(tasks.find_task(task, **task_options), options, shape)
    print_data(as_commented_toml(config).rstrip())
    return DONE


def print_summaries(summaries: Sequence[Summary], missing: Sequence[str], *, as_json: bool) -> None:
    """Print the summaries from the main rank, as a table or as JSON."""
    if not is_main_rank() or not summaries:
        return
    if as_json:
        print_json(summaries, missing)
        return
    from electra.finetuning.results import summary_classes, summary_notes, summary_table

    console = wide_terminal()
    console.print(summary_table(summaries))
    if len(summaries) == 1 and (classes := summary_classes(summaries[0])):
        console.print(classes)
    for note in summary_notes(summaries, missing):
        console.print(note, highlight=False, soft_wrap=True)


def print_json(summaries: Sequence[Summary], missing: Sequence[str]) -> None:
    """Print one summary as an object, several with the names of the tasks without data."""
    import json

    content: dict[str, Any] = {
        "tasks": [summary.as_json() for summary in summaries],
        "missing": list(missing),
    }
    if len(summaries) == 1 and not missing:
        content = summaries[0].as_json()
    print_data(json.dumps(content, indent=1, ensure_ascii=False))
