"""Vectors become answers: example → features → head → loss → decode → score.

    what a task is        task (the interface), features (rows and batches)
    the tasks             classify, multi_label, glue, span, tag, choose
    what they read        splits (which files), texts, conll (its columns: conll_columns),
                          span_files, choice_files, labels; electra.data.tables reads rows
    long texts            span_windows, tag_windows
    their heads           classification_heads, span_heads, tag_heads
    their scores          metrics, class_scores, class_weights, squad_metrics, entities
    their errors          analysis (its data), mistakes (of each kind of task), text_mistakes
    a model of a task     models (⇄ transformers folders), model_task, inference,
                          evaluation_options
    its input and output  input_rows, input_text, prediction_files, submissions, vocabulary_fit
    vectors of texts      embed, embed_options, sentence_transformer

`KINDS` maps the kind of a saved model's task to its class; add your own to it, and your task is
saved and loaded like ours.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, get_type_hints

from electra.config import Flag, UserError, convert, suggest_or_list

if TYPE_CHECKING:
    from electra.tasks.task import AnyTask, Task

KINDS: dict[str, str | type[Task[Any, Any]]] = {
    "classify": "electra.tasks.classify.Classify",
    "glue": "electra.tasks.glue.Glue",
    "span": "electra.tasks.span.Span",
    "tag": "electra.tasks.tag.Tag",
    "choose": "electra.tasks.choose.Choose",
}
MULTI_LABEL = "electra.tasks.multi_label.MultiLabel"  # of kind classify, for rows of many labels
NAMES = {  # the kind of each task that the command line names; GLUE's nine are glue/NAME
    "classify": "classify",
    "span": "span",
    "tag": "tag",
    "choose": "choose",
    "squad-1.1": "span",
    "squad-2.0": "span",
    "mrqa": "span",
    "triviaqa": "span",
    "newsqa": "span",
    "naturalquestions": "span",
    "searchqa": "span",
    "ner": "tag",
    "chunk": "tag",
    "swag": "choose",
    "race": "choose",
}
SIMILAR = "similar"  # a task without a class: electra.finetuning.similar trains its embedders
FIELD_OF_FLAG = {"head": "head_kind"}  # the method `head` has taken that name
# Fields that training data, the recipe or a model folder decides.
NOT_OPTIONS = (
    "name",
    "labels",
    "metrics",
    "frozen",
    "pooling",
    "conventions",
    "count",
    "extent",
    "label_weights",
    "projected",
    "windows",
)


def kind_class(kind: str) -> type[AnyTask]:
    """Return the class of tasks of this kind."""
    known = KINDS.get(kind)
    if known is None:
        raise UserError(unknown_kind(kind))
    if not isinstance(known, str):
        return known
    return import_task(known)


def import_task(path: str) -> type[AnyTask]:
    """Import the class of a task by its module and name."""
    module, _, name = path.rpartition(".")
    task_class: type[AnyTask] = getattr(importlib.import_module(module), name)
    return task_class


def find_task(name: str, **options: Any) -> AnyTask:
    """Return the task of this name; options are fields of it."""
    return task_class(name).from_name(name.lower(), **options)


def task_class(name: str) -> type[AnyTask]:
    """Return the class of the task of this name."""
    kind = NAMES.get(name.lower())
    if name.lower().startswith("glue/"):
        kind = "glue"
    if name.lower() == SIMILAR:
        raise UserError(
            f"--task {name}: `electra finetune` makes an embedder for it, which has vectors and no "
            "answers; use `electra embed`"
        )
    if kind is None:
        names = [*NAMES, SIMILAR]
        raise UserError(
            f"--task {name}: unknown{suggest_or_list(name, [*names, 'glue/rte'])}; tasks are glue, "
            f"glue/NAME, {', '.join(names)}"
        )
    return kind_class(kind)


def split_options(kind: type[AnyTask], flags: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the options of a task (its columns, for instance), converted, and the other flags."""
    hints = get_type_hints(kind)
    known = {
        field.name: hints[field.name] for field in fields(kind) if field.name not in NOT_OPTIONS
    }
    options: dict[str, Any] = {}
    others: list[str] = []
    remaining = list(flags)
    while remaining:
        argument = remaining.pop(0)
        if not argument.startswith("--"):  # the value of a setting
            others.append(argument)
            continue
        flag, equals, value = argument.removeprefix("--").partition("=")
        key = FIELD_OF_FLAG.get(flag, flag.replace("-", "_"))
        negated = key.removeprefix("no_")
        if negated != key and known.get(negated) in (bool, bool | None):
            options[negated] = False
            continue
        if key not in known:
            others.append(argument)
            continue
        if not equals:
            value = take_value(remaining, flag, hint=known[key])
        options[key] = convert(Flag(value), known[key], source="command line", key=flag)
    return options, others


def take_value(remaining: list[str], flag: str, *, hint: Any) -> str:
    """Remove and return the value of a flag from the arguments after it; a bare bool is true."""
    if remaining and not remaining[0].startswith("--"):
        return remaining.pop(0)
    if hint in (bool, bool | None):
        return "true"
    raise UserError(f"--{flag} needs a value")


def restore_task(settings: Mapping[str, Any], *, source: str) -> AnyTask:
    """Return the task that a model folder stores."""
    try:
        kind = settings["kind"]
        if kind in KINDS:
            return kind_class(kind).from_settings(settings)
    except (TypeError, KeyError, ValueError) as error:
        raise UserError(
            f"{source}: electra_task cannot be read ({error}); the folder is damaged, or was "
            "written by another version"
        ) from None
    raise UserError(f"{source}: {unknown_kind(kind)}")


def unknown_kind(kind: object) -> str:
    return (
        f"unknown kind of task {kind!r}{suggest_or_list(str(kind), KINDS)}; for a task of your "
        "own, import the module that adds its class to electra.tasks.KINDS, or run it as the "
        "command (docs/finetuning.md)"
    )
