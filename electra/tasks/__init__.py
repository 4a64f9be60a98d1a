"""Vectors become answers: example → features → head → loss → decode → score.

    what a task is        task (the interface), features (rows and batches)
    the tasks             classify and glue, span, tag, choose; embed has no answers to learn
    what they read        folders (which files), conll, span_files; electra.data.tables reads rows
    their heads           first_vector, span_heads, tag_heads
    their scores          metrics, span_scores, entities
    a model of a task     models (⇄ transformers folders), answering, predictions, submission

`KINDS` says which class a saved model's task is of; add your own to it, and your task is saved and
loaded like ours.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, get_origin, get_type_hints

from electra.config import Flag, UserError, convert, suggest_or_list

KINDS: dict[str, str | type] = {
    "classify": "electra.tasks.classify.Classify",
    "glue": "electra.tasks.glue.Glue",
    "span": "electra.tasks.span.Span",
    "tag": "electra.tasks.tag.Tag",
    "choose": "electra.tasks.choose.Choose",
}
NAMES = {  # of a task on the command line, and its kind; GLUE's nine are glue/NAME
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

SPELLED = {"head": "head_kind"}  # a flag whose field could not have its name


def kind_class(kind: str) -> Any:
    found = KINDS.get(kind)
    if isinstance(found, str):
        module, _, name = found.rpartition(".")
        return getattr(importlib.import_module(module), name)
    if found is None:
        raise UserError(f"unknown kind of task {kind!r}{suggest_or_list(kind, KINDS)}")
    return found


def find_task(name: str, **options: Any) -> Any:
    """The task of this name; options are fields of it."""
    return task_class(name).named(name.lower(), **options)


def task_class(name: str) -> Any:
    kind = "glue" if name.lower().startswith("glue/") else NAMES.get(name.lower())
    if kind is None:
        raise UserError(
            f"--task {name}: unknown{suggest_or_list(name, [*NAMES, 'glue/rte'])}; tasks are glue, "
            "glue/NAME, "
            f"{', '.join(NAMES)}"
        )
    return kind_class(kind)


def split_options(kind: Any, flags: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Flags that set a field of a task of this class (its columns, say), converted; and the flags
    that are left.
    """
    hints = get_type_hints(kind)
    known = {
        field.name: hints[field.name]
        for field in fields(kind)
        if field.name not in ("name", "labels", "metrics", "frozen", "count", "extent", "projected")
    }
    options, rest, words = {}, [], list(flags)
    while words:
        word = words.pop(0)
        flag, equals, value = word.removeprefix("--").partition("=")
        key = SPELLED.get(flag, flag.replace("-", "_"))
        if key not in known:
            rest.append(word)
            continue
        if not equals:
            if words and not words[0].startswith("--"):
                value = words.pop(0)
            elif known[key] in (bool, bool | None):
                value = "true"
            else:
                raise UserError(f"--{flag} needs a value")
        several = get_origin(known[key]) is tuple
        options[key] = (
            tuple(value.split(","))
            if several
            else convert(Flag(value), known[key], source="command line", key=flag)
        )
    return options, rest


def restore_task(settings: Mapping[str, Any], *, source: str) -> Any:
    """The task that a model folder carries."""
    try:
        return kind_class(settings["kind"]).restore(settings)
    except (TypeError, KeyError, ValueError) as error:
        raise UserError(
            f"{source}: electra_task cannot be read ({error}); the folder is damaged, or was "
            "written by "
            "another version"
        ) from None
