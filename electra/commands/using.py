"""Commands from a pre-trained model to answers: fine-tune, evaluate, predict, embed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from electra.commands import DONE, STOPPED_EARLY, Files, Settings, Several, Whole, app, check_flags
from electra.config import UserError, meant

Words = Annotated[str, Parameter(allow_leading_hyphen=True)]  # options of a task come among them


@app.command
def finetune(model: str, *settings: Settings, task: str, output_dir: Path, data: str | None = None,
             train: Several = None, dev: Several = None, seeds: Whole = 1, seed: Whole = 0, recipe: str = "paper",
             frozen: bool = False, layer: str = "concat-last-4", random_weights: bool = False,
             keep: Literal["all", "best"] = "all", resume: Literal["auto", "never"] = "auto", overwrite: bool = False,
             config: Files = None, print_config: bool = False, json: bool = False, quiet: bool = False,
             verbose: bool = False) -> int:
    """Fine-tune a model on a task, once or with several seeds, and score it.

    Settings of the recipe may follow (--learning-rate 1e-4 --epochs 5 --batch-size 16 --length 256; --print-config
    lists them), and options of the task:

    classify: --text COLUMN --text-pair COLUMN --label COLUMN --regression true|false.
    span, squad-1.1, squad-2.0: --head joint|simple --question COLUMN --context COLUMN --answers COLUMN --unanswerable.
    tag, ner, chunk: --words COLUMN --tags COLUMN --column N --scheme iob1|iob2|bioes|plain.
    choose, swag, race: --context COLUMN --question COLUMN --options COLUMN,COLUMN --label COLUMN.

    Parameters
    ----------
    model
        A discriminator: run folder, transformers ELECTRA folder, or owner/name on the hub. A fine-tuned one gets a
        fresh head.
    task
        glue/cola sst-2 mrpc sts-b qqp mnli qnli rte wnli, or glue for all of them; squad-1.1, squad-2.0, mrqa; ner,
        chunk; swag, race; for data of your own: classify, span, tag, choose.
    output_dir
        Results, and for each seed the model and its predictions. The same command goes on where it was stopped.
    data
        Folder with the official files in their official layout, or with train.* and dev.*; or a name on the hub.
    train
        Training files, instead of those in --data: .csv .tsv .jsonl .parquet, or the task's own form.
    dev
        Files to score on.
    seeds
        Runs; their median is reported, and every one of them.
    seed
        The first seed.
    recipe
        paper, official, bert, or a TOML file.
    frozen
        Do not train the encoder: its vectors are features for a small network (for tags a two-layer BiLSTM).
    layer
        With --frozen: last, sum-last-4, concat-last-4, mix, or a number.
    random_weights
        Only the shape and the tokenizer of the model: what the task gives without pre-training.
    keep
        Models of all seeds, or of the best.
    resume
        auto (go on with this fine-tuning if it is there) or never.
    overwrite
        With --resume never: start over in a folder that holds a fine-tuning.
    config
        TOML files that change settings.
    print_config
        Print the settings as TOML and do nothing.
    json
        Results for machines, on standard output.
    quiet
        No progress.
    verbose
        Also the learning rate of each layer.
    """
    from electra import tasks
    from electra.training.tuning import Tuning

    is_glue = task.lower() == "glue"
    options, flags = tasks.split_options(tasks.task_class("glue/rte" if is_glue else task), settings)
    check_flags(flags, "finetune", Tuning)
    options |= {"frozen": layer} if frozen else {}
    if print_config:
        return print_settings(model, "glue/rte" if is_glue else task, recipe=recipe, config=config or [], flags=flags,
                              frozen=frozen)
    from electra.training import seeds as running
    from electra.training.results import Summary

    wish: dict[str, Any] = {
        "data": data, "train": train or [], "dev": dev or [], "seeds": seeds, "seed": seed, "recipe": recipe,
        "config": config or [], "flags": flags, "random_weights": random_weights, "keep": keep, "resume": resume,
        "overwrite": overwrite, "quiet": quiet, "verbose": verbose}
    summaries: list[Summary] = []
    missing: list[str] = []
    if is_glue:
        if options:
            raise UserError(f"--{next(iter(options)).replace('_', '-')} does not go with --task glue; name one task")
        summaries, missing, whole = running.finetune_glue(model, output_dir=output_dir, **wish)
    else:
        summary = running.finetune(model, tasks.find_task(task, **options), output_dir=output_dir, **wish)
        summaries, whole = [summary] if summary else [], summary is not None
    show(summaries, missing, as_json=json)
    return DONE if whole else STOPPED_EARLY


def print_settings(model: str, task: str, *, recipe: str, config: Sequence[Path], flags: Sequence[str],
                   frozen: bool) -> int:
    from electra import tasks
    from electra.config import as_toml
    from electra.model.huggingface import load_shape
    from electra.tasks.models import model_folder
    from electra.training.tuning import load_tuning

    shape, _, _ = load_shape(model_folder(model))
    print(as_toml(load_tuning(recipe, shape=shape, kind=tasks.task_class(task).kind, task=task.lower(), frozen=frozen,
                              files=config, flags=flags)), end="")
    return DONE


def show(summaries: Sequence[Any], missing: Sequence[str], *, as_json: bool) -> None:
    import json
    import os
    from dataclasses import asdict

    from rich.console import Console

    from electra.training.results import table

    if int(os.environ.get("RANK", 0)) != 0 or not summaries:
        return
    if as_json:
        found = [{"protocol": summary.protocol, **asdict(summary)} for summary in summaries]
        print(json.dumps({"tasks": found, "missing": list(missing)} if len(found) > 1 or missing else found[0],
                         indent=1, ensure_ascii=False))
        return
    console = Console()
    if not console.is_terminal:  # a log may be as wide as it needs to be
        console = Console(width=160)
    console.print(table(summaries, missing=missing))
    console.print(f"{summaries[0].protocol}; every run is in results.json" +
                  (f"; no data for {', '.join(missing)}" if missing else ""), highlight=False)


@app.command
def evaluate(*model: Words, task: str | None = None, data: str | None = None, dev: Several = None, split: str = "dev",
             json: bool = False) -> int:
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
    from electra.data.tables import table
    from electra.tasks.answering import evaluate as score
    from electra.training.assignment import told

    folders, options = apart(model)
    models = loaded(folders, task, options=options, command="evaluate")
    if dev:
        parts: Mapping[str, Any] = {"dev": [table(path) for path in dev]}
    elif data:
        files = models[0].task.locate(data)
        if split not in ("dev", "test"):
            raise UserError(f"--split {split}: dev or test")
        parts = files.dev if split == "dev" else files.test
        if not parts:
            raise UserError(f"{data}: no {split} data there; name files with --dev")
    else:
        raise UserError("give --data (a folder or hub name) or --dev (files)")
    with told(aside):
        scores = score(models, parts)
    if json:
        import json as form

        print(form.dumps({"task": models[0].task.name, "models": [str(each.folder) for each in models],
                          "scores": scores}, indent=1))
        return DONE
    for part, found in scores.items():
        print(f"{models[0].task.name} {part}: " + ", ".join(f"{name} {value:.4f}" for name, value in found.items()))
    return DONE


@app.command
def predict(*models_and_input: Words, output: Path | None = None, task: str | None = None,
            form: Literal["records", "glue", "squad"] = "records") -> int:
    """Ask a fine-tuned model, or several that are averaged, about every example of a file.

    Options of the task may follow as for `finetune`: columns that are called otherwise here, say.

    Parameters
    ----------
    models_and_input
        MODEL [MODEL …] INPUT: fine-tuned models of one task, then a file in any form that the task reads.
    output
        .jsonl, .csv or .tsv; standard output, as JSON lines, when left out.
    task
        For a model that transformers fine-tuned: how to read the input.
    form
        records; glue: the file that the GLUE server takes; squad: the file that SQuAD's evaluation takes.
    """
    places, options = apart(models_and_input)
    if len(places) < 2:
        raise UserError("name at least one model and, last, the file to read: electra predict MODEL INPUT")
    *folders, source = places
    from electra.data.tables import table
    from electra.tasks.answering import predict as records
    from electra.training.assignment import told

    inputs = [table(source)]
    check_output(output)
    models = loaded(folders, task, options=options, command="predict")
    with told(aside):
        count = (write_records(records(models, [source]), output) if form == "records" else
                 write_official(models, inputs, output, form=form))
    if output is not None:
        print(f"{output}: {count:,} predictions")
    return DONE


def write_official(models: Sequence[Any], inputs: Sequence[Any], output: Path | None, *, form: str) -> int:
    """The file that a benchmark's own evaluation takes."""
    from electra.tasks.answering import stream
    from electra.tasks.span import write_squad
    from electra.tasks.submission import write_glue

    writers: dict[str, tuple[str, Any]] = {"glue": ("glue", write_glue), "squad": ("span", write_squad)}
    kind, write = writers[form]
    if models[0].task.kind != kind or output is None:
        raise UserError(f"--form {form} needs a model of that benchmark (this one is of {models[0].task.name}) and "
                        "--output")
    answered = list(stream(models, models[0].task.read(inputs, labelled=False)))
    write(output, models[0].task, [pair[0] for pair in answered], [pair[1] for pair in answered])
    return len(answered)


def aside(text: str) -> None:
    """What is worth knowing, where it is not taken for a prediction."""
    import sys

    print(text, file=sys.stderr)


def check_output(output: Path | None) -> None:
    if output is not None and not output.absolute().parent.is_dir():
        raise UserError(f"--output {output}: no folder {output.parent}; make it first")


def write_records(found: Iterator[dict[str, Any]], output: Path | None) -> int:
    """JSON lines, or a table whose nested values are JSON; under its own name only when whole."""
    import csv
    import io
    import json
    import sys
    from contextlib import nullcontext

    from electra import atomic

    count, writer = 0, None
    if output is not None and output.suffix not in (".jsonl", ".csv", ".tsv"):
        raise UserError(f"--output {output}: predictions are written as .jsonl, .csv or .tsv")
    with atomic.writing(output) if output is not None else nullcontext(sys.stdout.buffer) as binary:
        stream = io.TextIOWrapper(binary, encoding="utf8", newline="", write_through=True)
        try:
            for count, record in enumerate(found, start=1):  # noqa: B007 (the number of the last is the count)
                if output is None or output.suffix == ".jsonl":
                    stream.write(json.dumps(record, ensure_ascii=False) + "\n")
                    continue
                if writer is None:
                    # Some rows may lack an id or a label to repeat, and a table has the columns that it began with.
                    writer = csv.DictWriter(stream, record, delimiter="\t" if output.suffix == ".tsv" else ",",
                                            extrasaction="ignore")
                    writer.writeheader()
                writer.writerow({key: json.dumps(value, ensure_ascii=False) if isinstance(value, (list, dict)) else
                                 value for key, value in record.items()})
        finally:
            stream.detach()  # or it would close standard output with itself
    return count


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


def loaded(folders: Sequence[str], task: str | None, *, options: Sequence[str], command: str) -> list[Any]:
    """Fine-tuned models, with options of their task."""
    from electra import tasks

    models = fine_tuned(folders, task)
    found, unknown = tasks.split_options(type(models[0].task), options)
    if unknown:
        named = [name for argument in app[command].assemble_argument_collection() for name in argument.names]
        near = meant(unknown[0].partition("=")[0], named) or f"; electra {command} --help and electra finetune --help"
        raise UserError(f"unknown option {unknown[0]} for {models[0].task.name}{near}")
    return [replace(model, task=replace(model.task, **found)) for model in models] if found else models


def fine_tuned(folders: Sequence[str], task: str | None) -> list[Any]:
    """A task that is named says how to read; what a model has learnt stays."""
    from electra import tasks
    from electra.tasks.models import load_tuned

    if not folders:
        raise UserError("name at least one model")
    asked = tasks.find_task(task) if task else None
    models = [load_tuned(folder, task=asked) for folder in folders]
    if asked is None or asked.name == models[0].task.name:
        return models
    learnt = models[0].task
    if learnt.kind != "span" or asked.kind != "span":
        raise UserError(f"{models[0].folder} was fine-tuned for {learnt.name}, not for {asked.name}; leave out --task, "
                        "or fine-tune a model for it")
    # A model that finds answers finds them in any data set of questions.
    return [replace(model, task=replace(model.task, name=asked.name, unanswerable=asked.unanswerable))
            for model in models]


@app.command
def embed(model: str, input: str, *, output: Path, layer: str = "last",
          pool: Literal["mean", "cls", "tokens"] = "mean", text: str = "text", length: Whole | None = None) -> int:
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
    from electra.data.tables import table
    from electra.tasks import embed as vectors
    from electra.tasks.answering import device_here
    from electra.tasks.models import load_pretrained

    vectors.check_output(output, pool=pool)
    source, loaded = table(input), load_pretrained(model)
    found = vectors.embed(loaded.encoder, loaded.words, vectors.texts(source, text), layer=layer, pool=pool,
                          length=length or loaded.encoder.shape.positions, device=device_here())
    written = vectors.write(output, found, loaded.words, pool=pool)
    cut = f"; {written.cut:,} were longer than the model reads and were cut" if written.cut else ""
    print(f"{output}: {written.texts:,} texts{cut}")
    return DONE
