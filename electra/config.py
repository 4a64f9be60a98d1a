"""Configuration is data: a frozen dataclass ⇄ TOML ⇄ `--dotted.key value`.

Layers of plain dicts are merged and then built into one dataclass, strictly: an unknown key is
refused with the nearest known one, a value of the wrong type with its file and key. What comes out
is valid or was never born.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import itertools
import json
import math
import re
import stat
import sys
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

Config = TypeVar("Config")
Layer = dict[str, Any]
RECIPES = Path(__file__).parent / "recipes"

# Bounds on files that others wrote and we hold whole; what anybody has use for stays far below
# them.
WHOLE_BYTES = 256 * 1024 * 1024
MOST_NESTED = 100
MOST_BITS = 4096
TOML_CHARACTERS, TOML_DOTS = 1_000_000, 1000


class UserError(ValueError):
    """A mistake the user can put right. The message says what was asked, what was found and what to
    do.
    """


class RunFailed(RuntimeError):
    """A run that cannot go on, through no mistake of its user. The message says what is safe and
    what to do.
    """


class Flag(str):
    """Text from the command line or the environment: its type is decided by the field that it
    meets.
    """


@dataclasses.dataclass(frozen=True)
class Origins:
    """Layers by name, later ones winning, so that an error names the file that holds the mistake."""

    layers: Mapping[str, Layer]

    def of(self, key: str) -> str:
        """Where a key, or every key of a section, was last said."""
        said = {leaf: name for name, layer in self.layers.items() for leaf, _ in leaves(layer)}
        names = [
            name for leaf, name in said.items() if f"{leaf}.".startswith(f"{key}." if key else "")
        ]
        return " and ".join(dict.fromkeys(names)) or next(iter(self.layers))


Source = str | Origins


def at(source: Source, key: str) -> str:
    return source if isinstance(source, str) else source.of(key)


# ---- reading -------------------------------------------------------------------------------------


def whole_bytes(path: Path) -> bytes:
    """A file that is held whole: OSError or ValueError where it cannot be. A pipe or a device might
    never end.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError("a folder, a pipe or a device, not a plain file")
    if found.st_size > WHOLE_BYTES:
        raise ValueError(f"{found.st_size:,} bytes long, where at most {WHOLE_BYTES:,} are read")
    return path.read_bytes()


def whole_text(path: Path) -> str:
    return whole_bytes(path).decode()


def from_json(text: str) -> Any:
    """What a JSON text says, if that is JSON and tame: a ValueError otherwise."""
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError(f"nested more than {MOST_NESTED} deep") from None
    if text.count("[") + text.count("{") > MOST_NESTED:
        check_tame(found)
    return found


def check_tame(value: Any) -> None:
    """Refuse values that whoever walks or prints them would fail on: Python's stack ends at a
    thousand calls, and its printing of integers at a few thousand digits.
    """
    level = [value]
    for _ in range(MOST_NESTED + 1):
        level = [
            part
            for whole in level
            if isinstance(whole, (dict, list))
            for part in (whole.values() if isinstance(whole, dict) else whole)
        ]
        if any(type(part) is int and part.bit_length() > MOST_BITS for part in level):
            raise ValueError(f"an integer of more than {MOST_BITS} bits")
        if not level:
            return
    raise ValueError(f"nested more than {MOST_NESTED} deep")


def read(path: Path) -> Layer:
    """One TOML file as a layer."""
    try:
        text = whole_text(path)
        # The parser takes time by the square of a key's parts: a minute for a file of 60 kB that is
        # one key.
        if len(text) > TOML_CHARACTERS or any(
            line.count(".") > TOML_DOTS for line in text.splitlines()
        ):
            raise ValueError(
                f"longer than {TOML_CHARACTERS:,} characters, or {TOML_DOTS:,} dots in a line"
            )
        layer = tomllib.loads(text)
        check_tame(layer)
        return layer
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    except RecursionError:
        raise UserError(f"{path}: not valid TOML: nested more than {MOST_NESTED} deep") from None
    except ValueError as error:
        raise UserError(f"{path}: not valid TOML: {error}") from None


def flags(tokens: Sequence[str], cls: type, *, others: Sequence[str] = ()) -> Layer:
    """`--optimizer.learning-rate 3e-4 --seed=7` as a layer. A section may be left out where the
    last word is unique.

    `others` are flags that are no settings, but that a misspelt one may have meant.
    """
    layer: Layer = {}
    rest = list(tokens)
    while rest:
        token = rest.pop(0)
        if not token.startswith("--"):
            raise UserError(
                f"unexpected argument {token!r}; settings are written --section.key value"
            )
        name, equals, value = token[2:].partition("=")
        key = full_key(
            name.replace("-", "_"), cls, source="command line", shown="--" + name, others=others
        )
        if not equals:
            if not rest or rest[0].startswith("--"):
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
                near = (
                    meant(name, names, prefix=prefix)
                    or "; unset it: names with this beginning are settings"
                )
                raise UserError(f"environment: unknown setting {variable}{near}")
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


# ---- building ------------------------------------------------------------------------------------


def build_layers(cls: type[Config], layers: Mapping[str, Layer]) -> Config:
    """The dataclass that several layers, each with its name, describe together."""
    return build(cls, merge(*layers.values()), source=Origins(layers))


def build(
    cls: type[Config], values: Mapping[str, Any], *, source: Source, prefix: str = ""
) -> Config:
    """The dataclass that `values` describe; where it was said and the dotted key stand in every
    error.
    """
    hints = typing.get_type_hints(cls)
    for key in values:
        if key not in hints:
            known = nearest(key, hints, prefix=prefix)
            raise UserError(f"{at(source, prefix + key)}: unknown key {prefix}{key}{known}")
    arguments = {
        key: convert(value, hints[key], source=source, key=prefix + key)
        for key, value in values.items()
    }
    required = [
        f.name
        for f in dataclasses.fields(cls)  # type: ignore[arg-type]
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing := [name for name in required if name not in arguments]:
        raise UserError(f"{at(source, prefix[:-1])}: {prefix}{missing[0]} is missing")
    try:
        return cls(**arguments)
    except UserError:
        raise
    except ValueError as error:
        named = re.findall(r"([a-z_.]+)=", str(error)) or [prefix[:-1]]
        where = dict.fromkeys(at(source, key) for key in named)
        raise UserError(f"{' and '.join(where)}: {error}") from None


def convert(value: Any, hint: Any, *, source: Source, key: str) -> Any:
    """One value as the type its field declares."""
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
            raise UserError(
                f"{at(source, key)}: {key} is a section, found {value!r}; write {key}.NAME = …"
            )
        return build(typing.cast(type, hint), value, source=source, prefix=key + ".")
    if hint is Any:
        return value
    if origin is typing.Literal:
        if value in choices:
            return str(value)
        raise UserError(
            f"{at(source, key)}: {key} must be one of {', '.join(map(repr, choices))}, found "
            f"{value!r}"
            f"{meant(str(value), choices)}"
        )
    if origin is dict:
        if not isinstance(value, Mapping):
            raise UserError(
                f"{at(source, key)}: {key} is a section, found {value!r}; write {key}.NAME = …"
            )
        return {
            convert(name, choices[0], source=source, key=key): convert(
                part, choices[1], source=source, key=f"{key}.{name}"
            )
            for name, part in value.items()
        }
    if origin is list:
        if not isinstance(value, list):
            raise wrong_type(value, hint, source=source, key=key)
        return [
            convert(part, choices[0], source=source, key=f"{key}[{place}]")
            for place, part in enumerate(value)
        ]
    if origin is tuple:
        parts = value.split(",") if isinstance(value, Flag) else value
        if choices[-1] is ... and isinstance(parts, (list, tuple)):  # of any length
            choices = choices[:1] * len(parts)
        if not isinstance(parts, (list, tuple)) or len(parts) != len(choices):
            raise wrong_type(value, hint, source=source, key=key)
        as_given = Flag if isinstance(value, Flag) else (lambda part: part)
        return tuple(
            convert(as_given(p), h, source=source, key=key)
            for p, h in zip(parts, choices, strict=True)
        )
    return plain(value, hint, source=source, key=key)


def plain(value: Any, hint: Any, *, source: Source, key: str) -> Any:
    """A single value: a flag is parsed, everything else is taken literally."""
    found = value
    if isinstance(value, Flag):
        try:
            found = {"true": True, "false": False}[value.lower()] if hint is bool else hint(value)
        except (KeyError, ValueError):
            raise wrong_type(value, hint, source=source, key=key) from None
    elif hint is float and type(value) is int and abs(value) <= sys.float_info.max:
        found = float(value)
    # Exact, since bool is an int to isinstance; finite, since TOML and float() both know nan; and
    # no integer that a machine's would not hold, since sizes are multiplied by fractions.
    if (
        type(found) is not hint
        or (hint is float and not math.isfinite(found))
        or (hint is int and found.bit_length() > 64)
    ):
        raise wrong_type(value, hint, source=source, key=key)
    return found


def wrong_type(value: Any, hint: Any, *, source: Source, key: str) -> UserError:
    shown = f"{value!r}" if isinstance(value, Flag) else f"{type(value).__name__} {value!r}"
    return UserError(f"{at(source, key)}: {key} must be {spelled(hint)}, found {shown}")


def build_named(choices: Sequence[type], value: Any, *, source: Source, key: str) -> Any:
    """A union of dataclasses is told apart by its field `name`."""
    by_name = {typing.get_args(typing.get_type_hints(c)["name"])[0]: c for c in choices}
    name = value.get("name") if isinstance(value, Mapping) else None
    if not isinstance(name, str) or name not in by_name:
        raise UserError(
            f"{at(source, key)}: {key}.name must be one of {', '.join(map(repr, by_name))}, found "
            f"{name!r}"
            f"{meant(str(name), by_name)}"
        )
    alien = [
        field
        for field in value
        if field not in typing.get_type_hints(by_name[name])
        and any(field in typing.get_type_hints(c) for c in choices)
    ]
    if alien:
        raise UserError(
            f"{at(source, f'{key}.{alien[0]}')}: {key}.{alien[0]} does not go with {key}.name = "
            f"{name!r}; "
            f"leave it out, or begin with a recipe whose {key} is {name!r}"
        )
    return build(by_name[name], value, source=source, prefix=key + ".")


# ---- writing and comparing -----------------------------------------------------------------------


def as_dict(config: Any) -> Layer:
    """The layer that builds this config again. TOML has no null, so a field that is None is left
    out.
    """
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


# ---- keys ----------------------------------------------------------------------------------------


def keys(cls: type, prefix: str = "") -> Iterator[str]:
    """Every dotted key that a config of this class may hold."""
    for name, hint in typing.get_type_hints(cls).items():
        sections = [h for h in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(h)]
        found = [
            key for h in sections for key in keys(typing.cast(type, h), f"{prefix}{name}.")
        ] or [prefix + name]
        yield from dict.fromkeys(found)  # members of a union have keys in common


def full_key(name: str, cls: type, *, source: str, shown: str, others: Sequence[str] = ()) -> str:
    known = list(keys(cls))
    if name in known:
        return name
    matches = [key for key in known if key.endswith("." + name)]
    if len(matches) > 1:
        raise UserError(
            f"{source}: {shown} could be {' or '.join('--' + m.replace('_', '-') for m in matches)}"
        )
    if not matches:
        names = [key.replace("_", "-") for full in known for key in (full, full.rpartition(".")[2])]
        near = (
            meant(name.replace("_", "-"), [*others, *names], prefix="--")
            or "; --print-config lists them all"
        )
        raise UserError(f"{source}: unknown setting {shown}{near}")
    return matches[0]


def insert(layer: Layer, key: str, value: Any) -> None:
    *sections, last = key.split(".")
    for section in sections:
        layer = layer.setdefault(section, {})
    layer[last] = value


def nearest(name: str, known: typing.Iterable[Any], *, prefix: str = "") -> str:
    """The end of an error message: the known name that was probably meant, or all of them where
    none is near.
    """
    names = [str(k) for k in known]
    if close := meant(name, names, prefix=prefix):
        return close
    return f"; known are {', '.join(prefix + n for n in names)}" if len(names) <= 12 else ""


def meant(name: str, known: typing.Iterable[Any], *, prefix: str = "") -> str:
    # Comparing takes time by the product of both: a name of pages, or one of a million columns, is
    # not misspelt.
    names = [str(k) for k in itertools.islice(known, 1000)]
    close = difflib.get_close_matches(name, names, n=1) if len(name) <= 100 else []
    return f"; did you mean {prefix}{close[0]}?" if close else ""


def spelled(hint: Any) -> str:
    names = {
        bool: "true or false",
        int: "a whole number",
        float: "a finite number",
        str: "a string",
    }
    if typing.get_origin(hint) in (tuple, list):
        if typing.get_args(hint)[-1] is ... or typing.get_origin(hint) is list:
            return "a list"
        return f"a list of {len(typing.get_args(hint))} numbers"
    return names.get(hint, str(hint))
