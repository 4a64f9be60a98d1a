"""The functions `electra.load`, `electra.evaluate` and `electra.embed`, and a model's methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from electra.api.finetuning import Columns
from electra.api.keywords import as_flags, field_values, python_messages, takes_keywords
from electra.api.results import Embeddings, Evaluation, Predictions
from electra.api.rows import (
    MODELS,
    TEXTS,
    Data,
    PathName,
    as_items,
    find_input,
    find_tables,
    input_tables,
    is_path,
)
from electra.config import UserError
from electra.data.sources import warn
from electra.data.tables import Table, is_hub_name, is_missing, table_of_rows
from electra.data.wordpiece import WordPiece
from electra.model.encoder import Encoder
from electra.model.layers import layer_width
from electra.tasks import split_options
from electra.tasks.embed import Embedding, read_texts
from electra.tasks.embed import embed as embed_texts
from electra.tasks.embed_options import EmbedOptions
from electra.tasks.evaluation_options import EvaluationData
from electra.tasks.inference import (
    add_input_columns,
    default_device,
    ensemble_task,
    load_for_task,
    set_columns,
    stream_answers,
)
from electra.tasks.inference import evaluate as score_models
from electra.tasks.model_task import has_task
from electra.tasks.models import (
    FinetunedModel,
    Pretrained,
    load_pretrained,
    model_folder,
)
from electra.tasks.sentence_transformer import complete_options


@dataclass(frozen=True)
class Model:
    """A model in memory: a fine-tuned one, several whose answers are averaged, or a pre-trained
    one, which has embeddings alone.

    Attributes
    ----------
    folder
        The folder of the model, of the first one where there are several.
    task
        The name of the task; None for a pre-trained model.
    """

    folder: Path
    task: str | None
    models: tuple[FinetunedModel, ...] = field(repr=False)
    pretrained: Pretrained | None = field(repr=False)

    def __fspath__(self) -> str:
        return str(self.folder)

    def predict(
        self,
        inputs: PathName | Sequence[object],
        *,
        text: str | None = None,
        text_pair: str | None = None,
        question: str | None = None,
        context: str | None = None,
        words: str | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> Predictions:
        """Return the columns of each input with a label, an answer, tags or a choice.

        Inputs are texts, pairs (a text and another, or a question and a passage), lists of words
        for tags, dicts, a DataFrame, or the path of a file. The other keywords name the columns of
        dicts, DataFrames and files, where they are not those of the training data. `settings` are
        further options of the task, such as {"header": False}.
        """
        names = dict(
            text=text, text_pair=text_pair, question=question, context=context, words=words
        )
        with python_messages({"inputs": None, "settings": settings, **names}):
            given = {name: column for name, column in names.items() if column is not None}
            models = change_options(self.finetuned(), given, settings)
            task = ensemble_task(models)
            examples = task.read(input_tables(task, inputs), labelled=False)
            records = []
            for example, answer in stream_answers(models, examples):
                row = getattr(example, "row", None)
                records.append(add_input_columns(task.record(example, answer), row))
            return Predictions(tuple(records))

    def encoder(self) -> tuple[Encoder, WordPiece]:
        """Return the network whose vectors are the embeddings, and its tokenizer."""
        if self.pretrained is not None:
            return self.pretrained.encoder, self.pretrained.tokenizer
        return self.models[0].network.encoder, self.models[0].tokenizer

    def finetuned(self) -> Sequence[FinetunedModel]:
        """Return the models that answer; raise UserError for a model without a task."""
        if not self.models:
            raise UserError(
                f"{self.folder}: pre-trained, but without a task; fine-tune it first with "
                "electra.finetune"
            )
        return self.models


def load(model: PathName | Sequence[PathName], *, task: str | None = None) -> Model:
    """Load a fine-tuned model, several whose answers are averaged, or a pre-trained model.

        model = electra.load("runs/stars")
        model.predict(["one text", "another"])

    Parameters
    ----------
    model
        A folder of ours or of transformers, owner/name on the hub, what `pretrain` or `finetune`
        returned, or a list of fine-tuned models of one task.
    task
        For a model that transformers fine-tuned: how its data is read.
    """
    with python_messages({"model": model, "task": task}):
        folders = [
            model_folder(Path(each)) for each in as_items(model, name="model", accepted=MODELS)
        ]
        if not folders:
            raise UserError("name at least one model")
        if task is None and len(folders) == 1 and not has_task(folders[0]):
            return Model(folders[0], None, (), load_pretrained(folders[0]))
        models = load_for_task([str(folder) for folder in folders], task)
        return Model(folders[0], models[0].task.name, tuple(models), None)


def as_model(model: Model | PathName | Sequence[PathName], task: str | None = None) -> Model:
    if isinstance(model, Model) and task is None:
        return model
    return load(model, task=task)


def change_options(
    models: Sequence[FinetunedModel],
    columns: Mapping[str, object],
    settings: Mapping[str, object] | None,
) -> list[FinetunedModel]:
    """Return models that read other columns, with other options of their task."""
    task = models[0].task
    options, unknown = split_options(type(task), as_flags(settings))
    if unknown:
        raise UserError(
            f"{unknown[0]} is no option of {task.name}, which has "
            f"{', '.join(task.inference_options)}"
        )
    for name, column in columns.items():
        options[name] = column
        if isinstance(column, int):  # the number of a column
            options[name] = str(column)
    return set_columns(models, options)


# ---- evaluate ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class EvaluateArguments(Columns):
    """The arguments of `evaluate`.

    Parameters
    ----------
    model
        What `load` or `finetune` returned, the folder of a fine-tuned model, or a list of folders
        whose answers are averaged.
    data
        Labelled data: a file, a list of files, a DataFrame, a list of dicts; or the folder of a
        benchmark with its official files, or its name on the hub.
    split
        Of a folder or a name on the hub: dev, or test where the test data has its answers.
    task
        The task of the data; by default the one that the model was fine-tuned for.
    settings
        Further options of the task: {"header": False}, {"threshold": 0.3}.
    """

    model: Model | PathName | Sequence[PathName] = field(kw_only=False)
    data: Data = field(kw_only=False)
    split: Literal["dev", "test"] = "dev"
    task: str | None = None
    settings: Mapping[str, object] | None = None


@takes_keywords(EvaluateArguments)
def evaluate(arguments: EvaluateArguments) -> Evaluation:
    """Score a fine-tuned model, or several that are averaged, on labelled data.

    electra.evaluate("runs/stars", "test.csv").score
    """
    model = as_model(arguments.model, arguments.task)
    models = change_options(model.finetuned(), arguments.given(), arguments.settings)
    parts = score_models(models, labelled_tables(arguments, models[0]))
    return Evaluation(
        models[0].task.name,
        models[0].task.metric,
        {part: scores.scores for part, scores in parts.items()},
        {part: scores.classes for part, scores in parts.items() if scores.classes},
    )


def labelled_tables(
    arguments: EvaluateArguments, model: FinetunedModel
) -> Mapping[str, Sequence[Table]]:
    """Return the data by its parts: those of a folder, or one."""
    data: Any = arguments.data
    if is_path(data) and (Path(data).expanduser().is_dir() or is_hub_name(data)):
        return EvaluationData(data=str(data), split=arguments.split).find_tables(model.task)
    return {"dev": find_tables(data, name="data")}


# ---- embed ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class EmbedArguments(EmbedOptions):
    """The arguments of `embed`.

    Parameters
    ----------
    model
        What `load`, `pretrain` or `finetune` returned, or any ELECTRA or ModernBERT folder, ours
        or transformers'.
    texts
        A list of texts, a column of a DataFrame, a DataFrame, a list of dicts, or the path of a
        file: .txt (a text a line), .csv, .tsv, .jsonl or .parquet.
    text
        The column that holds the text of dicts, DataFrames and files.
    """

    model: Model | PathName = field(kw_only=False)
    texts: PathName | Sequence[object] = field(kw_only=False)
    text: str = "text"


@takes_keywords(EmbedArguments)
def embed(arguments: EmbedArguments) -> Embeddings:
    """Compute the embeddings of texts.

    electra.embed("runs/small", ["one text", "another"]).vectors
    """
    texts, model = find_texts(arguments), as_model(arguments.model)
    options = EmbedOptions(**field_values(EmbedOptions, arguments))
    encoder, tokenizer = model.encoder()
    options = complete_options(options, model.folder, positions=encoder.shape.positions)
    found = list(embed_texts(encoder, tokenizer, texts, options, device=default_device()))
    warn_truncated(found)
    vectors: Any = tuple(each.vectors for each in found)
    if options.pool != "tokens":
        shape = encoder.shape
        width = layer_width(options.layer, shape.width, layers=shape.layers)
        empty = np.zeros((0, width), dtype=np.float32)
        vectors = np.stack(vectors) if found else empty
    return Embeddings(tuple(each.text for each in found), vectors)


def find_texts(arguments: EmbedArguments) -> list[str]:
    """Return the texts that were given, or those of a file or of rows."""
    data: Any = arguments.texts
    items = as_items(data, name="texts", accepted=TEXTS)
    if is_path(data):
        return list(read_texts(find_input(data), arguments.text))
    if all(isinstance(item, str) or is_missing(item) for item in items):
        rows = [(f"texts, item {n}", {arguments.text: item}) for n, item in enumerate(items, 1)]
        return list(read_texts(table_of_rows(rows, name="texts"), arguments.text))
    for number, item in enumerate(items, start=1):
        if not is_path(item) and not isinstance(item, Mapping):
            raise UserError(
                f"texts, item {number} is a {type(item).__name__}; give texts alone, or a dict for "
                "each row"
            )
    tables = find_tables(data, name="texts")
    return [text for table in tables for text in read_texts(table, arguments.text)]


def warn_truncated(embeddings: Sequence[Embedding]) -> None:
    count = sum(each.truncated for each in embeddings)
    if count:
        warn(f"{count:,} of {len(embeddings):,} texts are longer than the model reads and were cut")
