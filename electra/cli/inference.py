"""Commands for inference: evaluate, predict, embed."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from electra.cli import DONE, app
from electra.config import UserError, suggest
from electra.console import (
    count_items,
    print_data,
    redirect_warnings,
    to_stderr,
    to_stdout,
    wide_terminal,
)
from electra.tasks.embed_options import DEFAULTS, EmbedOptions
from electra.tasks.evaluation_options import EvaluationData

if TYPE_CHECKING:
    from electra.tasks.embed import WrittenCount
    from electra.tasks.inference import PartScores
    from electra.tasks.models import FinetunedModel
    from electra.tasks.task import AnyTask

# Options of the task may stand among these.
Arguments = Annotated[str, Parameter(allow_leading_hyphen=True)]


NO_DATA = EvaluationData()


@app.command
def models() -> int:
    """List the models that come with the package. Use their names wherever a model is expected."""
    from electra.shipped import model_path, shipped_models

    names = shipped_models()
    for name in names:
        print_data(f"{name}\t{model_path(name)}")
    if not names:
        to_stderr("no model comes with this version")
    return DONE


@app.command
def evaluate(
    *model: Arguments,
    task: str | None = None,
    data: Annotated[EvaluationData, Parameter(name="*")] = NO_DATA,
    report: Path | None = None,
    json: bool = False,
) -> int:
    """Score a fine-tuned model, or several that are averaged, without training.

    Options of the task may follow as for `finetune`, for columns with other names.

    Parameters
    ----------
    model
        Folders of fine-tuned models of one task: ours, or transformers'.
    task
        The task of the data; by default the one that the model was fine-tuned for.
    report
        Page to write, PAGE.html: the scores, a confusion matrix and the worst mistakes. It quotes
        texts of the data.
    json
        Print the scores as JSON.
    """
    from electra.tasks.inference import evaluate

    if report is not None:
        check_report(report)
    folders, flags = split_flags(model)
    models = load_models(folders, task, flags, command="evaluate")
    tables = data.find_tables(models[0].task)
    with redirect_warnings(to_stderr):
        scores = evaluate(models, tables, with_analysis=report is not None)
    if report is not None:
        write_report(report, models, scores)
    if json:
        print_json(models, scores)
    else:
        print_scores(models[0].task.name, scores)
    return DONE


def check_report(path: Path) -> None:
    """Refuse a page that cannot be written, before any work."""
    from electra.reports.evaluation_report import check_report_path

    check_report_path(path)


def write_report(
    path: Path, models: Sequence[FinetunedModel], parts: Mapping[str, PartScores]
) -> None:
    """Write the page about an evaluation, and print its path."""
    from electra.reports.evaluation_report import write_evaluation_report

    write_evaluation_report(
        path, models[0].task.name, [str(model.folder) for model in models], parts
    )
    to_stderr(f"report: {path}")


def print_json(models: Sequence[FinetunedModel], parts: Mapping[str, PartScores]) -> None:
    import json

    folders = [str(model.folder) for model in models]
    content: dict[str, Any] = {"task": models[0].task.name, "models": folders}
    content["scores"] = {part: scores.scores for part, scores in parts.items()}
    content["classes"] = {part: scores.classes for part, scores in parts.items() if scores.classes}
    print_data(json.dumps(content, indent=1, ensure_ascii=False))


def print_scores(task: str, parts: Mapping[str, PartScores]) -> None:
    """Print the scores on a line for each part, and a table of its classes."""
    from electra.tasks.class_scores import class_table

    for part, scores in parts.items():
        values = ", ".join(f"{name} {value:.4f}" for name, value in scores.scores.items())
        to_stdout(f"{task} {part}: {values}")
        if scores.classes:
            wide_terminal().print(class_table(scores.classes))


@app.command
def predict(
    *models_and_input: Arguments,
    output: Path | None = None,
    task: str | None = None,
    form: Literal["records", "glue", "squad"] = "records",
) -> int:
    """Predict every example of a file with a fine-tuned model, or with several that are averaged.

    Options of the task may follow as for `finetune`, for columns with other names.

    Parameters
    ----------
    models_and_input
        MODEL [MODEL …] INPUT: fine-tuned models of one task, then a file in any format that the
        task reads, - for standard input, or a sentence in quotes.
    output
        .jsonl, .csv or .tsv; by default JSON lines on standard output.
    task
        For a model that transformers fine-tuned: how to read the input.
    form
        records; glue: the file that the GLUE server takes (INPUT may be GLUE's folder, and OUTPUT
        is a folder then); squad: the file that SQuAD's evaluation takes.
    """
    paths, flags = split_flags(models_and_input)
    if len(paths) < 2:
        raise UserError(
            "name at least one model and, last, the file to read, - for standard input, or a "
            "sentence: electra predict MODEL INPUT"
        )
    *folders, source = paths
    check_one_input(folders, source)
    check_prediction_files(source, output, form)
    models = load_models(folders, task, flags, command="predict")
    with redirect_warnings(to_stderr), as_file(source, models[0].task) as path:
        count = write_predictions(models, path, output, form)
    if not count:
        to_stderr(f"warning: {source}: no examples there")
    if output is not None:
        to_stdout(f"{output}: {count:,} predictions")
    return DONE


def as_file(source: str, task: AnyTask) -> AbstractContextManager[str]:
    """Return a context with the path of the input, which may be standard input or a sentence."""
    from electra.tasks.input_text import as_file

    return as_file(source, task)


def check_one_input(folders: Sequence[str], source: str) -> None:
    """Refuse several inputs: only the last argument is none of the models."""
    for name in folders[1:]:
        if Path(name).is_file():
            raise UserError(
                f"{name}: a file, where a model is expected: `electra predict` reads one input, "
                f"the last argument, here {source}; for several: for f in {name} …; do electra "
                f'predict {folders[0]} "$f" --output "$f-predictions.jsonl"; done'
            )


def check_prediction_files(source: str, output: Path | None, form: str) -> None:
    """Refuse an input that is missing and an output that cannot be written, before any work."""
    from electra.tasks import prediction_files
    from electra.tasks.input_text import check_input, find_input, is_file

    check_input(source)
    if form == "records" and is_file(source):
        find_input(source)
    check_not_input(output, source)
    prediction_files.check_output(output, form=form)


def check_not_input(output: Path | None, source: str) -> None:
    """Refuse an output file that would replace the input."""
    with suppress(OSError, RuntimeError):  # no such file yet, or a sentence
        if output is not None and output.is_file() and output.samefile(Path(source).expanduser()):
            raise UserError(
                f"--output {output}: this is the input, which would be lost; name another file"
            )


def write_predictions(
    models: Sequence[FinetunedModel], source: str, output: Path | None, form: str
) -> int:
    """Write the predictions and return their number."""
    from electra.tasks import prediction_files
    from electra.tasks.inference import predict

    with freeze_loaded_objects():
        if output is None or form == "records":
            records = count_items(predict(models, [source]), "predictions")
            return prediction_files.write_records(records, output)
        return prediction_files.write_official(models, source, output, form=form)


@contextmanager
def freeze_loaded_objects() -> Iterator[None]:
    """Keep the garbage collector from looking through the loaded objects again for each chunk."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


# ---- fine-tuned models ---------------------------------------------------------------------------


def split_flags(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split arguments into paths, and flags with their values."""
    paths, flags, remaining = [], [], list(arguments)
    while remaining:
        argument = remaining.pop(0)
        if not argument.startswith("--"):
            paths.append(argument)
            continue
        flags.append(argument)
        if "=" not in argument and not argument.startswith("--no-") and remaining:
            flags.append(remaining.pop(0))
    return paths, flags


def load_models(
    folders: Sequence[str], task: str | None, flags: Sequence[str], *, command: str
) -> list[FinetunedModel]:
    """Load fine-tuned models, with the options of their task that the flags change."""
    from electra import tasks
    from electra.settings import as_flag
    from electra.tasks.inference import load_for_task, set_columns

    models = load_for_task(folders, task)
    first = models[0]
    options, unknown = tasks.split_options(type(first.task), flags)
    models = set_columns(models, options)
    if unknown:
        known = [as_flag(option) for option in first.task.inference_options]
        for argument in app[command].assemble_argument_collection():
            known += argument.names
        hint = suggest(unknown[0].partition("=")[0], known)
        hint = hint or f"; electra {command} --help and electra finetune --help"
        raise UserError(f"unknown option {unknown[0]} for {first.task.name}{hint}")
    return models


# ---- embeddings ----------------------------------------------------------------------------------


@app.command
def embed(
    model: str,
    input: Arguments,
    *,
    output: Path,
    text: str = "text",
    options: Annotated[EmbedOptions, Parameter(name="*")] = DEFAULTS,
) -> int:
    """Compute the embeddings of texts.

    Parameters
    ----------
    model
        Any ELECTRA or ModernBERT folder: pre-trained or fine-tuned, ours or transformers'.
    input
        .txt (a text a line), .csv, .tsv, .jsonl or .parquet, - for standard input, or a sentence in
        quotes.
    output
        .parquet (with texts), or .npy (one array).
    text
        Column that holds the text.
    """
    from electra.tasks.embed import check_output, embed, write_embeddings
    from electra.tasks.inference import default_device
    from electra.tasks.models import load_pretrained
    from electra.tasks.sentence_transformer import complete_options

    check_output(output, pool=options.pool)
    check_not_input(output, input)
    with open_texts(input, text) as texts:
        source = load_pretrained(model)
        options = complete_options(options, source.folder, positions=source.encoder.shape.positions)
        device = default_device()
        embeddings = embed(source.encoder, source.tokenizer, texts, options, device=device)
        counted = count_items(embeddings, "texts")
        with freeze_loaded_objects():
            written = write_embeddings(output, counted, source.tokenizer, pool=options.pool)
    to_stdout(f"{output}: {describe_written(written)}")
    return DONE


def describe_written(written: WrittenCount) -> str:
    if not written.truncated:
        return f"{written.texts:,} texts"
    return (
        f"{written.texts:,} texts; {written.truncated:,} were longer than the model reads and were "
        "cut"
    )


@contextmanager
def open_texts(source: str, column: str) -> Iterator[Iterator[str]]:
    """Yield the texts of a file, of standard input, or the one on the command line."""
    from electra.data.lines import check_encodable
    from electra.data.tables import find_table
    from electra.tasks.embed import read_texts
    from electra.tasks.input_text import (
        STANDARD_INPUT,
        check_input,
        find_input,
        is_file,
        standard_input_file,
    )

    check_input(source)
    if source == STANDARD_INPUT:
        with standard_input_file() as path:
            yield read_texts(find_table(path), column)
    elif is_file(source):
        yield read_texts(find_input(source), column)
    else:
        check_encodable(source, "the sentence")
        yield iter([source])
