"""The function `electra.finetune`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from electra import tasks
from electra.api.keywords import as_flags, field_values, takes_keywords
from electra.api.random_numbers import own_random_numbers
from electra.api.results import FinetuneResult
from electra.api.rows import Data, PathName, find_tables
from electra.config import UserError
from electra.data.tables import Table
from electra.finetuning.finetune import finetune_with_options, reporter
from electra.finetuning.options import FinetuneOptions, FrozenEncoder
from electra.tasks.task import AnyTask, Task

DEV_SHARE = 0.1  # of the training data, where no dev data is given


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns of the data, where they have other names than those of the task.

    Parameters
    ----------
    text
        classify, similar: the column of the text.
    text_pair
        classify, similar: the column of a second text, by default text_pair. For classify it is
        read if the first row has it; "" leaves it out.
    label
        classify, choose: the column of the label. With multi_label=True also a list of columns,
        one for each label, which hold 0 or 1.
    question
        span, choose: the column of the question.
    context
        span, choose: the column of the passage.
    answers
        span: the column of the answers.
    words
        tag: the column of the words, a list in each row; of a CoNLL file its number, as a text.
    tags
        tag: the column of the tags, a list in each row.
    options
        choose: the column with the list of options, or a column for each option.
    """

    text: str | None = None
    text_pair: str | None = None
    label: str | Sequence[str] | None = None
    question: str | None = None
    context: str | None = None
    answers: str | None = None
    words: str | None = None
    tags: str | None = None
    options: str | Sequence[str] | None = None

    def given(self) -> dict[str, object]:
        """Return the columns that were named."""
        names = [each.name for each in fields(Columns)]
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, kw_only=True)
class FinetuneArguments(FinetuneOptions, FrozenEncoder, Columns):
    """The arguments of `finetune`.

    Parameters
    ----------
    model
        A run folder, a model folder of transformers, owner/name on the hub, or what `pretrain`,
        `finetune` or `load` returned.
    task
        classify, span, tag, choose or similar for data of your own; glue/rte, squad-2.0, ner and
        others for a benchmark; or a Task of your own.
    output_dir
        Folder for the results, and for the model and the predictions of each seed. The default is
        runs/MODEL-TASK. The fine-tuning that it holds is continued.
    train
        Training data: a file (.csv .tsv .jsonl .parquet, or the task's own format), a list of
        files, a DataFrame, or a list of dicts.
    dev
        Data to score on, of the same kinds. Without it, and without `data`, a tenth of `train` is
        held out; settings={"dev_share": 0.2} holds out another share, {"folds": 5} each in turn.
    regression
        classify: whether labels are scores; by default, whether they look like scores.
    multi_label
        classify: whether a text may have several labels, or none. Labels are a list, or text such
        as "a|b".
    class_weights
        classify: "balanced", or a dict of labels and their weights in the loss.
    settings
        Further settings of the recipe or options of the task: {"learning_rate": 1e-4, "epochs": 5,
        "length": 256}.
    """

    model: PathName = field(kw_only=False)
    task: str | AnyTask = field(kw_only=False)
    train: Data | None = None  # type: ignore[assignment]
    dev: Data | None = None  # type: ignore[assignment]
    data: PathName | None = None  # type: ignore[assignment]
    output_dir: PathName | None = None
    settings: Mapping[str, object] | None = None
    regression: bool | None = None
    multi_label: bool | None = None
    class_weights: str | Mapping[str, float] | None = None
    config: PathName | Sequence[PathName] = ()  # type: ignore[assignment]
    flags: Sequence[str] = field(init=False, default=())


@takes_keywords(FinetuneArguments)
def finetune(arguments: FinetuneArguments) -> FinetuneResult:
    """Fine-tune a model on a task, once for each seed, and score it.

        result = electra.finetune(
            "runs/small", "classify", train="reviews.csv", text="review", label="stars"
        )
        electra.load(result).predict(["A film to see twice."])

    Ctrl-C, or the interrupt of a notebook, writes a checkpoint before it raises KeyboardInterrupt;
    the same call continues from there.
    """
    if arguments.task == tasks.SIMILAR:
        return finetune_embedder(arguments)
    task, flags = build_task(arguments)
    tables = find_data(arguments)
    values = field_values(FinetuneOptions, arguments) | {"train": (), "dev": ()}
    values["flags"] = [*dev_flags(arguments), *flags]
    if arguments.data is not None:
        values["data"] = str(Path(arguments.data))
    output_dir = result_folder(arguments, task.name)
    options = FinetuneOptions(**values)
    with own_random_numbers(quiet=arguments.quiet):
        summary = finetune_with_options(Path(arguments.model), task, output_dir, options, tables)
    if summary is None:
        raise KeyboardInterrupt(f"{output_dir}: stopped early; the same call continues")
    if options.report and os.environ.get("RANK", "0") == "0":
        from electra.reports.finetune_report import write_finetune_report

        write_finetune_report(output_dir, summary, reporter(quiet=options.quiet))
    return FinetuneResult(
        output_dir, summary.task, summary.metric, summary.median, summary.baseline, summary
    )


def finetune_embedder(arguments: FinetuneArguments) -> FinetuneResult:
    """Train an embedder on pairs or triplets of texts."""
    from electra.finetuning.similar import finetune_similar

    tables = find_data(arguments)
    values = field_values(FinetuneOptions, arguments) | {"train": (), "dev": ()}
    flags = [*as_flags(arguments.given()), *as_flags(arguments.settings)]
    values["flags"] = [*dev_flags(arguments), *flags]
    output_dir = result_folder(arguments, tasks.SIMILAR)
    options = FinetuneOptions(**values)
    with own_random_numbers(quiet=arguments.quiet):
        summary = finetune_similar(Path(arguments.model), output_dir, options, tables)
    if summary is None:
        raise KeyboardInterrupt(f"{output_dir}: stopped early; the same call continues")
    return FinetuneResult(
        output_dir, summary.task, summary.metric, summary.median, summary.baseline, summary
    )


def build_task(arguments: FinetuneArguments) -> tuple[AnyTask, list[str]]:
    """Return the task with its options, and the settings of the recipe as flags."""
    given = arguments.given()
    for name in ("regression", "multi_label", "class_weights"):
        if (value := getattr(arguments, name)) is not None:
            given[name] = value
    if isinstance(arguments.class_weights, Mapping):
        given["class_weights"] = json.dumps(dict(arguments.class_weights))
    flags, task = as_flags(arguments.settings), arguments.task
    if isinstance(task, Task):
        if given:
            raise UserError(f"{next(iter(given))}= goes with the name of a task, not with a Task")
        return task, flags
    refuse_other_task(task)
    if task.lower() == "glue":
        raise UserError("task='glue': nine tasks, each with a model of its own; name one: glue/rte")
    kind = tasks.task_class(task)
    options, flags = tasks.split_options(kind, [*flags, *as_flags(given)])
    for name in given:
        if name not in options:
            own = [each.name for each in fields(kind) if each.name not in tasks.NOT_OPTIONS]
            raise UserError(f"{name}= does not go with task={task!r}, which has {', '.join(own)}")
    encoder = FrozenEncoder(**field_values(FrozenEncoder, arguments))
    return tasks.find_task(task, **options, **encoder.task_options()), flags


def refuse_other_task(task: object) -> None:
    """Raise UserError for a task that is neither a name nor a Task."""
    if isinstance(task, type) and issubclass(task, Task):
        raise UserError(
            f"task={task.__name__} is a class; give an instance of it: task={task.__name__}()"
        )
    if not isinstance(task, str):
        names = ", ".join([*tasks.NAMES, tasks.SIMILAR])
        raise UserError(
            f"task is a {type(task).__name__}; give a Task, or the name of one: glue/NAME, {names}"
        )


def find_data(arguments: FinetuneArguments) -> dict[str, list[Table]]:
    """Return the tables of train and dev, those that were given."""
    tables: dict[str, list[Table]] = {}
    given: dict[str, Data | None] = {"train": arguments.train, "dev": arguments.dev}
    for name, data in given.items():
        if data is not None:
            tables[name] = find_tables(data, name=name)
    return tables


def dev_flags(arguments: FinetuneArguments) -> list[str]:
    """Return the setting that holds dev data out where none is given, and say so."""
    if arguments.train is None or arguments.dev is not None or arguments.data is not None:
        return []
    if {"dev_share", "folds"} & set(arguments.settings or {}):
        return []
    say = reporter(quiet=arguments.quiet)
    say(f"no dev data: a share of {DEV_SHARE} of train is held out to score on")
    return as_flags({"dev_share": DEV_SHARE})


def result_folder(arguments: FinetuneArguments, task: str) -> Path:
    """Return the folder that was named, or the default one of the model and the task."""
    if arguments.output_dir is not None:
        return Path(arguments.output_dir)
    model = Path(arguments.model).absolute().name
    return Path("runs") / f"{model}-{task.replace('/', '-')}"
