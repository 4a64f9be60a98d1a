"""Bare inputs of a model, such as a text or a pair of texts, as rows of its task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from electra.config import UserError
from electra.tasks.choose import Choose
from electra.tasks.glue import Glue
from electra.tasks.task import AnyTask, Task
from electra.tasks.texts import TEXT_PAIR, TextTask


def input_row(task: AnyTask, item: object, where: str) -> Mapping[str, Any]:
    """Return one input as a row with the columns of the task."""
    if isinstance(item, Mapping):
        return item
    values: list[object] = [item]
    if task.kind == "tag" and isinstance(item, str):
        values = [item.split()]
    elif task.kind != "tag" and isinstance(item, (list, tuple)):
        values = list(item)
    if isinstance(task, TextTask) and task.text_pair is None and len(values) == 2:
        raise UserError(
            f"{where}: a pair of texts, and {task.name} was not told that its inputs are pairs; "
            f'set text_pair="{TEXT_PAIR}"'
        )
    columns = input_columns(task)
    if isinstance(task, Choose) and any(isinstance(value, (list, tuple)) for value in values):
        columns = columns_with_list(task)
    if not columns:
        raise UserError(
            f"{where}: the task {task.name} names no columns in `inputs` for bare texts; give a "
            "dict with its columns"
        )
    if len(values) != len(columns):
        raise UserError(
            f"{where}: {len(values)} values, where this model takes {len(columns)}: "
            f"{' and '.join(columns)}"
        )
    return dict(zip(columns, values, strict=True))


def columns_with_list(task: Choose) -> list[str]:
    """Return the columns of a bare input whose last part is the list of options."""
    columns = input_columns(task)
    return [*columns[: -len(task.options)], task.list_column]


def input_columns(task: Task[Any, Any]) -> list[str]:
    """Return the columns that a bare input fills, in the order of its parts."""
    if isinstance(task, Glue):
        pairs = ((task.text, task.layout.first), (task.text_pair, task.layout.second))
        return [own or official[0] for own, official in pairs if own or official]
    columns: list[str] = []
    for name in task.inputs:
        value = getattr(task, name, name)
        if isinstance(value, tuple):
            columns += value
        elif value:
            columns.append(value)
    return columns
