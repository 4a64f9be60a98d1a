"""Commands that ask a model: evaluate, predict, embed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from electra.cli import DONE, Integer, StringList, app
from electra.config import UserError, suggest
from electra.console import to_stderr

Words = Annotated[str, Parameter(allow_leading_hyphen=True)]  # options of a task come among them


@app.command
def evaluate(
    *model: Words,
    task: str | None = None,
    data: str | None = None,
    dev: StringList = None,
    split: Literal["dev", "test"] = "dev",
    json: bool = False,
) -> int:
    """Score a fine-tuned model, or several that are averaged, without training.

    Options of the task may follow as for `finetune`: columns that are called otherwise here, say.

    Parameters
    ----------
    model
        Folders of fine-tuned models of one task: ours, or transformers'.
    task
        The task that the data is of; by default the one that the model was fine-tuned for.
    data
        Folder with the official files in their official layout, or a name on the hub.
    dev
        Files to score on, instead of those in --data.
    split
        dev or test, where the test data has its answers.
    json
        For machines.
    """
    from electra.console import redirect_warnings
    from electra.data.tables import find_table
    from electra.tasks.inference import evaluate as score

    folders, options = apart(model)
    models = loaded(folders, task, options=options, command="evaluate")
    if dev and (data or split != "dev"):
        raise UserError(
            "--dev names files; leave out --data and --split, which choose files in a folder"
        )
    if dev:
        parts: Mapping[str, Any] = {"dev": [find_table(path) for path in dev]}
    elif data:
        files = models[0].task.locate(data)
        parts = files.dev if split == "dev" else files.test
        if not parts:
            raise UserError(f"{data}: no {split} data there; name files with --dev")
    else:
        raise UserError("give --data (a folder or hub name) or --dev (files)")
    with redirect_warnings(to_stderr):
        scores = score(models, parts)
    if json:
        import json as form

        print(
            form.dumps(
                {
                    "task": models[0].task.name,
                    "models": [str(each.folder) for each in models],
                    "scores": scores,
                },
                indent=1,
            )
        )
        return DONE
    for part, found in scores.items():
        print(
            f"{models[0].task.name} {part}: "
            + ", ".join(f"{name} {value:.4f}" for name, value in found.items())
        )
    return DONE


@app.command
def predict(
    *models_and_input: Words,
    output: Path | None = None,
    task: str | None = None,
    form: Literal["records", "glue", "squad"] = "records",
) -> int:
    """Ask a fine-tuned model, or several that are averaged, about every example of a file.

    Options of the task may follow as for `finetune`: columns that are called otherwise here, say.

    Parameters
    ----------
    models_and_input
        MODEL [MODEL …] INPUT: fine-tuned models of one task, then a file in any form that the task
        reads.
    output
        .jsonl, .csv or .tsv; standard output, as JSON lines, when left out.
    task
        For a model that transformers fine-tuned: how to read the input.
    form
        records; glue: the file that the GLUE server takes (INPUT may be GLUE's folder, OUTPUT then
        is one); squad: the file that SQuAD's evaluation takes.
    """
    places, options = apart(models_and_input)
    if len(places) < 2:
        raise UserError(
            "name at least one model and, last, the file to read: electra predict MODEL INPUT"
        )
    *folders, source = places
    from electra.console import redirect_warnings
    from electra.data.tables import find_table
    from electra.tasks import prediction_files
    from electra.tasks.inference import predict as records

    if form == "records":
        find_table(source)  # what is not there is said before models are loaded
    prediction_files.check_output(output, form=form)
    models = loaded(folders, task, options=options, command="predict")
    with redirect_warnings(to_stderr):
        if output is None or form == "records":
            count = prediction_files.write_records(records(models, [source]), output)
        else:
            count = prediction_files.write_official(models, source, output, form=form)
    if output is not None:
        print(f"{output}: {count:,} predictions")
    return DONE


def apart(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """What is named, and the options among it with their values."""
    places, options, rest = [], [], list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            places.append(word)
            continue
        options.append(word)
        if "=" not in word and rest:
            options.append(rest.pop(0))
    return places, options


def loaded(
    folders: Sequence[str], task: str | None, *, options: Sequence[str], command: str
) -> list[Any]:
    """Fine-tuned models, with options of their task."""
    from electra import tasks

    models = fine_tuned(folders, task)
    found, unknown = tasks.split_options(type(models[0].task), options)
    if learnt := [name for name in found if name not in models[0].task.inference_options]:
        raise UserError(
            f"--{learnt[0].replace('_', '-')} was decided when {models[0].folder} was fine-tuned; "
            "what may "
            f"follow is {', '.join('--' + name.replace('_', '-') for name in models[0].task.inference_options)}"
        )
    if unknown:
        named = [
            name
            for argument in app[command].assemble_argument_collection()
            for name in argument.names
        ]
        near = (
            suggest(unknown[0].partition("=")[0], named)
            or f"; electra {command} --help and electra finetune --help"
        )
        raise UserError(f"unknown option {unknown[0]} for {models[0].task.name}{near}")
    return (
        [replace(model, task=replace(model.task, **found)) for model in models] if found else models
    )


def fine_tuned(folders: Sequence[str], task: str | None) -> list[Any]:
    """A task that is named says how to read; what a model has learnt stays."""
    from electra import tasks
    from electra.tasks.models import load_tuned
    from electra.tasks.span import Span

    if not folders:
        raise UserError("name at least one model")
    asked = tasks.find_task(task) if task else None
    models = [load_tuned(folder, task=asked) for folder in folders]
    if asked is None or asked.name == models[0].task.name:
        return models
    learnt = models[0].task
    if not isinstance(learnt, Span) or not isinstance(asked, Span):
        raise UserError(
            f"{models[0].folder} was fine-tuned for {learnt.name}, not for {asked.name}; leave "
            "out --task, "
            "or fine-tune a model for it"
        )
    if asked.unanswerable and not learnt.unanswerable:
        raise UserError(
            f"{models[0].folder} was fine-tuned for {learnt.name}, where every question has an "
            "answer; it "
            f"cannot say that {asked.name} has none"
        )
    # Otherwise a model that finds answers finds them in any data set of questions.
    return [replace(model, task=replace(model.task, name=asked.name)) for model in models]


@app.command
def embed(
    model: str,
    input: str,
    *,
    output: Path,
    layer: str = "last",
    pool: Literal["mean", "cls", "tokens"] = "mean",
    text: str = "text",
    length: Integer | None = None,
) -> int:
    """Turn texts into vectors.

    Parameters
    ----------
    model
        Any ELECTRA folder: pre-trained or fine-tuned, ours or transformers'.
    input
        .txt (a text a line), .csv, .tsv, .jsonl or .parquet.
    output
        .parquet (with texts), or .npy (one array).
    layer
        last, sum-last-4, concat-last-4, or the number of a layer; 0 is the embeddings.
    pool
        mean over the tokens, cls (the first vector), or tokens (all of them; .parquet).
    text
        Column that holds the text.
    length
        Tokens at most; by default as many as the model has positions.
    """
    from electra.data.tables import find_table
    from electra.tasks import embed as vectors
    from electra.tasks.inference import default_device
    from electra.tasks.models import load_pretrained

    vectors.check_output(output, pool=pool)
    source, loaded = find_table(input), load_pretrained(model)
    if length is None:
        length = loaded.encoder.shape.positions
    embeddings = vectors.embed(
        loaded.encoder,
        loaded.tokenizer,
        vectors.read_texts(source, text),
        vectors.EmbedOptions(length=length, layer=layer, pool=pool),
        device=default_device(),
    )
    written = vectors.write_embeddings(output, embeddings, loaded.tokenizer, pool=pool)
    cut = ""
    if written.truncated:
        cut = f"; {written.truncated:,} were longer than the model reads and were cut"
    print(f"{output}: {written.texts:,} texts{cut}")
    return DONE
