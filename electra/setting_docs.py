"""Settings as a user reads them: every key with its value, its choices and what it means.

What a setting means is the comment at its field in the source, so that it is written once.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import json
import tokenize
import types
import typing
from collections.abc import Iterator
from functools import cache
from typing import Any

from electra.config import as_text, variants_of

KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}


@dataclasses.dataclass(frozen=True)
class Setting:
    """One setting of a section."""

    name: str
    choices: str  # what its value may be
    default: str  # "none" where it has to be given
    meaning: str


@dataclasses.dataclass(frozen=True)
class Section:
    """A dataclass of settings: its dotted key, what it is, and its settings."""

    key: str
    meaning: str
    settings: list[Setting]


# ---- reading the source --------------------------------------------------------------------------


@cache
def field_comments(cls: type) -> dict[str, str]:
    """Return the comment of each field of a dataclass: above its line or at the end of it."""
    comments: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            comments |= own_comments(inspect.getsource(base))
    return comments


def own_comments(source: str) -> dict[str, str]:
    """Return the comments of the fields that the source of a class declares."""
    source = inspect.cleandoc(source)
    ends: dict[int, str] = {}  # comments at the end of a line, and those that are all of it
    whole: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            is_whole = token.line.strip() == token.string
            comments = whole if is_whole else ends
            comments[token.start[0]] = token.string.removeprefix("#").strip()
    (declared,) = ast.parse(source).body
    fields: dict[str, str] = {}
    for node in typing.cast(ast.ClassDef, declared).body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        lines: list[str] = []
        line = node.lineno - 1
        while line in whole:
            lines.insert(0, whole[line])
            line -= 1
        lines.append(ends.get(node.end_lineno or 0, ""))
        fields[node.target.id] = " ".join(lines).strip()
    return fields


# ---- describing types ----------------------------------------------------------------------------


def describe_choices(hint: Any) -> str:
    """Return what the value of a field of this type may be."""
    origin, members = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return ", ".join(map(str, members))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(
            describe_choices(member) for member in members if member is not type(None)
        )
    if origin is tuple and members[-1] is not ...:
        return f"a list of {len(members)} numbers"
    if origin in (list, tuple):
        return "a list"
    return KINDS.get(hint, getattr(hint, "__name__", str(hint)))


def describe_default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        if field.default is None:
            return "unset"
        return as_text(field.default)
    return "none"


def sections_of(hint: Any) -> list[type]:
    """Return the dataclasses that a field may hold; none where it is a plain value."""
    members = variants_of(hint) or (hint, *typing.get_args(hint))
    return [member for member in members if dataclasses.is_dataclass(member)]


def list_sections(cls: type, key: str = "") -> Iterator[Section]:
    """Yield every section of settings below a dataclass, itself first."""
    hints, comments = typing.get_type_hints(cls), field_comments(cls)
    settings, below = [], []
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        if inner := sections_of(hint):
            below += [(member, f"{key}{field.name}") for member in inner]
        else:
            choices, default = describe_choices(hint), describe_default(field)
            settings.append(Setting(field.name, choices, default, comments[field.name]))
    if settings:
        meaning = " ".join((inspect.getdoc(cls) or "").split())
        yield Section(key.rstrip("."), meaning, settings)
    for member, name in below:
        yield from list_sections(member, f"{name}.")


# ---- TOML with comments --------------------------------------------------------------------------


def as_commented_toml(config: Any, key: str = "") -> str:
    """Return the TOML text that builds this config again, with choices and meanings.

    A setting that is not set is a comment: TOML has no null.
    """
    cls: type = type(config)
    hints, comments = typing.get_type_hints(cls), field_comments(cls)
    lines, below = [], []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            below.append(as_commented_toml(value, f"{key}{field.name}."))
            continue
        line = f"{field.name} = {as_toml_value(value)}"
        if value is None:
            line = f"# {field.name} is unset"
        remark = describe_remark(hints[field.name], comments[field.name])
        lines.append(f"{line}  # {remark}")
    head = []
    if lines and key:
        head = [f"[{key.rstrip('.')}]"]
    texts = ["\n".join([*head, *lines])] if lines else []
    return "\n\n".join([*texts, *(text.rstrip("\n") for text in below)]) + "\n"


def describe_remark(hint: Any, comment: str) -> str:
    """Return the choices of a setting and what it means, in one line."""
    choices = describe_choices(hint)
    if comment:
        return f"{choices}; {comment}"
    return choices


def as_toml_value(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(as_toml_value(item) for item in value)}]"
    if isinstance(value, (str, bool)):
        return json.dumps(value)
    return repr(value)
