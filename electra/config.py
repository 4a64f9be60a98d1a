"""Configuration is data: a frozen dataclass ⇄ TOML ⇄ `--dotted.key value`.

Layers of plain dicts are merged and then built into one dataclass, strictly: an unknown key is refused with the nearest
known one, a value of the wrong type with its file and key. What comes out is valid or was never born.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

Config = TypeVar("Config")
Layer = dict[str, Any]


class UserError(ValueError):
    """A mistake the user can put right. The message says what was asked, what was found and what to do."""


class Flag(str):
    """Text from the command line or the environment: its type is decided by the field that it meets."""


# ---- reading -------------------------------------------------------------------------------------------------------

def read(path: Path) -> Layer:
    """One TOML file as a layer."""
    try:
        return tomllib.loads(path.read_text(encoding="utf8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: not valid TOML: {error}") from None


def flags(tokens: Sequence[str], cls: type) -> Layer:
    """`--optimizer.learning-rate 3e-4 --seed=7` as a layer. A section may be left out where the last word is unique."""
    layer: Layer = {}
    rest = list(tokens)
    while rest:
        token = rest.pop(0)
        if not token.startswith("--"):
            raise UserError(f"unexpected argument {token!r}; settings are written --section.key value")
        name, equals, value = token[2:].partition("=")
        key = full_key(name.replace("-", "_"), cls, source="command line", shown="--" + name)
        if not equals:
            if not rest:
                raise UserError(f"--{name} needs a value")
            value = rest.pop(0)
        insert(layer, key, Flag(value))
    return layer


def environment(variables: Mapping[str, str], cls: type, *, prefix: str = "ELECTRA_") -> Layer:
    """`ELECTRA_OPTIMIZER_LEARNING_RATE=3e-4` as a layer."""
    names = {key.replace(".", "_").upper(): key for key in keys(cls)}
    layer: Layer = {}
    for variable, value in sorted(variables.items()):
        if variable.startswith(prefix):
            name = variable.removeprefix(prefix)
            if name not in names:
                raise UserError(f"environment: unknown setting {variable}{nearest(name, names, prefix=prefix)}")
            insert(layer, names[name], Flag(value))
    return layer


def merge(*layers: Mapping[str, Any]) -> Layer:
    """Later layers win, table by table."""
    merged: Layer = {}
    for layer in layers:
        for key, value in layer.items():
            both_tables = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
            merged[key] = merge(merged[key], value) if both_tables else value
    return merged


# ---- building ------------------------------------------------------------------------------------------------------

def build(cls: type[Config], values: Mapping[str, Any], *, source: str, prefix: str = "") -> Config:
    """The dataclass that `values` describe; `source` and the dotted key stand in every error."""
    hints = typing.get_type_hints(cls)
    for key in values:
        if key not in hints:
            raise UserError(f"{source}: unknown key {prefix}{key}{nearest(key, hints, prefix=prefix)}")
    arguments = {key: convert(value, hints[key], source=source, key=prefix + key) for key, value in values.items()}
    required = [f.name for f in dataclasses.fields(cls)  # type: ignore[arg-type]
                if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING]
    if missing := [name for name in required if name not in arguments]:
        raise UserError(f"{source}: {prefix}{missing[0]} is missing")
    try:
        return cls(**arguments)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{source}: {error}") from None


def convert(value: Any, hint: Any, *, source: str, key: str) -> Any:
    """One value as the type its field declares; flags are parsed, everything else is taken literally."""
    def wrong() -> UserError:
        shown = f"{value!r}" if isinstance(value, Flag) else f"{type(value).__name__} {value!r}"
        return UserError(f"{source}: {key} must be {spelled(hint)}, found {shown}")

    origin, choices = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if type(None) in choices:
            if value is None or (isinstance(value, Flag) and value.lower() == "none"):
                return None
            (choice,) = [c for c in choices if c is not type(None)]
            return convert(value, choice, source=source, key=key)
        return build_named(choices, value, source=source, key=key)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise UserError(f"{source}: {key} is a section, found {value!r}; write {key}.NAME = …")
        return build(typing.cast(type, hint), value, source=source, prefix=key + ".")
    if origin is typing.Literal:
        if value in choices:
            return str(value)
        raise UserError(f"{source}: {key} must be one of {', '.join(map(repr, choices))}, found {value!r}"
                        f"{nearest(str(value), choices)}")
    if origin is tuple:
        parts = value.split(",") if isinstance(value, Flag) else value
        inner = [choices[0]] * len(parts) if choices[-1] is Ellipsis else list(choices)
        if not isinstance(parts, (list, tuple)) or len(parts) != len(inner):
            raise wrong()
        as_given = Flag if isinstance(value, Flag) else (lambda part: part)
        return tuple(convert(as_given(p), h, source=source, key=key) for p, h in zip(parts, inner, strict=True))
    if isinstance(value, Flag):
        try:
            return {"true": True, "false": False}[value.lower()] if hint is bool else hint(value)
        except (KeyError, ValueError):
            raise wrong() from None
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:  # exact: bool is an int to isinstance
        raise wrong()
    return value


def build_named(choices: Sequence[type], value: Any, *, source: str, key: str) -> Any:
    """A union of dataclasses is told apart by its field `name`."""
    by_name = {typing.get_args(typing.get_type_hints(c)["name"])[0]: c for c in choices}
    name = value.get("name") if isinstance(value, Mapping) else None
    if name not in by_name:
        raise UserError(f"{source}: {key}.name must be one of {', '.join(map(repr, by_name))}, found {name!r}"
                        f"{nearest(str(name), by_name)}")
    return build(by_name[name], value, source=source, prefix=key + ".")


# ---- writing and comparing -----------------------------------------------------------------------------------------

def as_dict(config: Any) -> Layer:
    """The layer that builds this config again. TOML has no null, so a field that is None is left out."""
    layer: Layer = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            layer[field.name] = as_dict(value)
        elif value is not None:
            layer[field.name] = list(value) if isinstance(value, tuple) else value
    return layer


def as_toml(config: Any) -> str:
    import tomli_w

    return tomli_w.dumps(as_dict(config))


def fingerprint(values: Any) -> str:
    """A short hash of plain data, the same on every machine."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def differences(ours: Layer, theirs: Layer) -> list[str]:
    """The dotted keys in which two layers differ."""
    a, b = dict(leaves(ours)), dict(leaves(theirs))
    return sorted(key for key in a.keys() | b.keys() if a.get(key) != b.get(key))


def leaves(layer: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in layer.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


# ---- keys ----------------------------------------------------------------------------------------------------------

def keys(cls: type, prefix: str = "") -> Iterator[str]:
    """Every dotted key that a config of this class may hold."""
    seen: set[str] = set()
    for name, hint in typing.get_type_hints(cls).items():
        sections = [h for h in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(h)]
        found = [key for h in sections for key in keys(typing.cast(type, h), f"{prefix}{name}.")] or [prefix + name]
        yield from (key for key in found if key not in seen)
        seen.update(found)


def full_key(name: str, cls: type, *, source: str, shown: str) -> str:
    known = list(keys(cls))
    if name in known:
        return name
    matches = [key for key in known if key.endswith("." + name)]
    if len(matches) > 1:
        raise UserError(f"{source}: {shown} could be {' or '.join('--' + m.replace('_', '-') for m in matches)}")
    if not matches:
        names = [key.replace("_", "-") for full in known for key in (full, full.rpartition(".")[2])]
        raise UserError(f"{source}: unknown setting {shown}{nearest(name.replace('_', '-'), names, prefix='--')}")
    return matches[0]


def insert(layer: Layer, key: str, value: Any) -> None:
    *sections, last = key.split(".")
    for section in sections:
        layer = layer.setdefault(section, {})
    layer[last] = value


def nearest(name: str, known: typing.Iterable[Any], *, prefix: str = "") -> str:
    """The end of an error message: the known name that was probably meant, or all of them where none is near."""
    names = [str(k) for k in known]
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"; did you mean {prefix}{close[0]}?"
    return f"; known are {', '.join(prefix + n for n in names)}" if len(names) <= 12 else ""


def spelled(hint: Any) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
    if typing.get_origin(hint) is tuple:
        return "a list of numbers"
    return names.get(hint, str(hint))
