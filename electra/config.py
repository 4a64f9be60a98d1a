"""Decode plain data (TOML, JSON, flags) into frozen dataclasses, strictly.

An unknown key is refused with the nearest known one, a value of the wrong type with its file and
key. An invalid config cannot be created.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import itertools
import json
import math
import string
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from electra.renamed import RENAMED

Config = TypeVar("Config")
Layer = dict[str, Any]
RECIPES = Path(__file__).parent / "recipes"


class UserError(ValueError):
    """A mistake that the user can correct. The message names the value, the place and a remedy."""


class RunFailed(RuntimeError):
    """A run that cannot continue, without a mistake of its user. The message says what is safe and
    what to do.
    """


class SettingError(UserError):
    """A setting that cannot be used.

    A dataclass raises it with a key relative to itself, and itself as `settings`: the text then
    begins with `key=value`, and in `message` a `{key}` stands for `key=value`, a `{key:name}` for
    the key alone. `build` adds the section and the source. Without `settings` the message is
    complete.
    """

    def __init__(
        self, key: str, message: str, settings: object = None, section: str = "", source: str = ""
    ) -> None:
        super().__init__(key, message, settings, section, source)  # what it is unpickled from
        self.relative_key, self.message, self.settings = key, message, settings
        self.section, self.source = section, source

    @property
    def key(self) -> str:
        """The dotted key."""
        return self.section + self.relative_key

    @property
    def keys(self) -> list[str]:
        """The dotted keys of all values that the message shows."""
        if self.settings is None:
            return [self.key]
        fields = [key for _, key, form, _ in self._fields() if key and form != "name"]
        return [self.key, *(self.section + key for key in fields)]

    def in_section(self, section: str) -> SettingError:
        """Return the error with its keys below a section such as "encoder."."""
        return SettingError(
            self.relative_key, self.message, self.settings, section + self.section, self.source
        )

    def with_source(self, source: str) -> SettingError:
        """Return the error with the file, or other source, that holds the setting."""
        return SettingError(self.relative_key, self.message, self.settings, self.section, source)

    def __str__(self) -> str:
        text = self.message
        if self.settings is not None:
            text = f"{self._with_value(self.relative_key)} {self._filled()}"
        if self.source:
            return f"{self.source}: {text}"
        return text

    def _fields(self) -> list[tuple[str, str | None, str | None, str | None]]:
        return list(string.Formatter().parse(self.message))

    def _filled(self) -> str:
        parts = []
        for text, key, form, _ in self._fields():
            parts.append(text)
            if key and form == "name":
                parts.append(self.section + key)
            elif key:
                parts.append(self._with_value(key))
        return "".join(parts)

    def _with_value(self, key: str) -> str:
        value = functools.reduce(getattr, key.split("."), self.settings)
        return f"{self.section}{key}={as_text(value)}"


def as_text(value: Any) -> str:
    """Return a value as a setting's text: TOML's true, false and lists, quoted strings."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return str(list(value))
    if isinstance(value, str):
        return repr(value)
    return str(value)


@contextmanager
def in_section(name: str) -> Iterator[None]:
    """Put errors about settings that are raised inside into a section."""
    try:
        yield
    except SettingError as error:
        raise error.in_section(f"{name}.") from None


class Flag(str):
    """Text from the command line or the environment; the field it is for decides its type."""


@dataclasses.dataclass(frozen=True)
class Layers:
    """Layers by source, later ones winning, so that an error names the file with the mistake."""

    layers: Mapping[str, Layer]

    def source_of(self, key: str) -> str:
        """Return where a key, or every key of a section, was set last."""
        sources: dict[str, str] = {}
        for source, layer in self.layers.items():
            sources |= {leaf: source for leaf, _ in flatten(layer)}
        beginning = f".{key.partition('[')[0]}.".replace("..", ".")
        setting = [name for leaf, name in sources.items() if f".{leaf}.".startswith(beginning)]
        return " and ".join(dict.fromkeys(setting)) or next(iter(self.layers))


Source = str | Layers


def source_of(source: Source, key: str) -> str:
    """Return where a key was set: in the one source, or in the last of several layers."""
    if isinstance(source, str):
        return source
    return source.source_of(key)


def flatten(layer: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys of a nested dict with their values."""
    for key, value in layer.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


# ---- building ------------------------------------------------------------------------------------


@functools.cache  # typing evaluates each annotation anew
def field_types(cls: type) -> Mapping[str, Any]:
    return types.MappingProxyType(typing.get_type_hints(cls))


def build(
    cls: type[Config], values: Mapping[str, Any], *, source: Source, prefix: str = ""
) -> Config:
    """Build the dataclass that `values` describe. Errors name the source and the dotted key."""
    hints = field_types(cls)  # type: ignore[arg-type]
    arguments = {}
    for key, value in values.items():
        if key not in hints:
            refuse_unknown_key(key, value, hints, source=source, prefix=prefix)
        arguments[key] = convert(value, hints[key], source=source, key=prefix + key)
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if field.name not in arguments and is_required(field):
            key = prefix + field.name
            raise SettingError(key, f"{source_of(source, prefix[:-1])}: {key} is missing")
    try:
        return cls(**arguments)
    except SettingError as error:
        error = error.in_section(prefix)
        sources = dict.fromkeys(source_of(source, key) for key in error.keys)
        raise error.with_source(" and ".join(sources)) from None


def refuse_unknown_key(
    key: str, value: Any, hints: Mapping[str, Any], *, source: Source, prefix: str
) -> typing.NoReturn:
    """Raise for a key that no field has: with its present name, or with the nearest field's."""
    old, where = prefix + key, source_of(source, prefix + key)
    for former, renamed in RENAMED.items():
        new = old.removesuffix(former) + renamed.key
        if f".{old}".endswith(f".{former}") and new.removeprefix(prefix) in hints:
            text = json.dumps(renamed.value(value), default=str)
            message = f"{where}: {old} is now called {new}; write {new} = {text} instead"
            raise SettingError(old, message)
    hint = suggest_or_list(key, hints, prefix=prefix)
    if not hint and isinstance(source, Layers):
        hint = "; --print-config lists them all"
    raise SettingError(old, f"{where}: unknown key {old}{hint}")


def is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def convert(value: Any, hint: Any, *, source: Source, key: str) -> Any:
    """Convert one value to the type that its field declares."""
    if hint is Any:
        return value
    if variants := variants_of(hint):
        return build_named(variants, value, source=source, key=key)
    if dataclasses.is_dataclass(hint):
        check_section(value, source=source, key=key)
        return build(typing.cast(type, hint), value, source=source, prefix=key + ".")
    origin, choices = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return convert_union(value, hint, source=source, key=key)
    if origin is typing.Literal:
        return convert_literal(value, choices, source=source, key=key)
    if origin in (dict, Mapping):
        check_section(value, source=source, key=key)
        return {
            convert(name, choices[0], source=source, key=key): convert(
                item, choices[1], source=source, key=f"{key}.{name}"
            )
            for name, item in value.items()
        }
    if origin in (list, tuple):
        return convert_sequence(value, hint, source=source, key=key)
    return convert_scalar(value, hint, source=source, key=key)


def convert_union(value: Any, hint: Any, *, source: Source, key: str) -> Any:
    """Convert to a member of a union: None, one of several dataclasses, or a plain type."""
    choices = [choice for choice in typing.get_args(hint) if choice is not type(None)]
    if len(choices) < len(typing.get_args(hint)):
        if value is None or (isinstance(value, Flag) and value.lower() == "none"):
            return None
        if len(choices) == 1:
            return convert(value, choices[0], source=source, key=key)
    if all(dataclasses.is_dataclass(choice) for choice in choices):
        return build_named(choices, value, source=source, key=key)
    for choice in choices:
        if type(value) is choice:
            return convert(value, choice, source=source, key=key)
    raise wrong_type(value, hint, source=source, key=key)


def variants_of(hint: Any) -> tuple[type, ...]:
    """Return the dataclasses among which a section chooses by its field `name`, if it does."""
    variants = getattr(hint, "variants", None)
    if variants is None:
        return ()
    return tuple(variants())


def build_named(choices: Sequence[type], value: Any, *, source: Source, key: str) -> Any:
    """Build one of several dataclasses, told apart by their field `name`."""
    hints = [field_types(choice) for choice in choices]
    by_name = {typing.get_args(hint["name"])[0]: c for hint, c in zip(hints, choices, strict=True)}
    name = value.get("name") if isinstance(value, Mapping) else None
    if not isinstance(name, str) or name not in by_name:
        remedy = getattr(choices[0], "unknown_name_remedy", "")
        raise SettingError(
            f"{key}.name",
            f"{source_of(source, key)}: {key}.name must be one of "
            f"{', '.join(map(repr, by_name))}, found {name!r}"
            f"{remedy}{suggest(str(name), by_name)}",
        )
    own = field_types(by_name[name])
    for field in value:
        if field not in own and any(field in hint for hint in hints):
            raise SettingError(
                f"{key}.{field}",
                f"{source_of(source, f'{key}.{field}')}: {key}.{field} does not go with "
                f"{key}.name = {name!r}; leave it out, or begin with a recipe whose {key} is "
                f"{name!r}",
            )
    return build(by_name[name], value, source=source, prefix=key + ".")


def convert_literal(value: Any, choices: Sequence[Any], *, source: Source, key: str) -> Any:
    if value in choices:
        return choices[choices.index(value)]
    raise SettingError(
        key,
        f"{source_of(source, key)}: {key} must be one of {', '.join(map(repr, choices))}, found "
        f"{value!r}{suggest(str(value), choices)}",
    )


def convert_sequence(value: Any, hint: Any, *, source: Source, key: str) -> Any:
    """Convert a list, or a flag with commas, to a list or a tuple."""
    kind, choices = typing.get_origin(hint), typing.get_args(hint)
    items = value
    if isinstance(value, Flag) and kind is tuple:
        items = [Flag(item) for item in value.split(",")]
    if not isinstance(items, (list, tuple)):
        raise wrong_type(value, hint, source=source, key=key)
    if kind is list or choices[-1] is ...:
        return kind(
            convert(item, choices[0], source=source, key=f"{key}[{index}]")
            for index, item in enumerate(items)
        )
    if len(items) != len(choices):
        raise wrong_type(value, hint, source=source, key=key)
    pairs = zip(items, choices, strict=True)
    return tuple(convert(item, choice, source=source, key=key) for item, choice in pairs)


def convert_scalar(value: Any, hint: Any, *, source: Source, key: str) -> Any:
    """Convert a single value: a flag is parsed, everything else is taken literally."""
    if hint is Path and isinstance(value, (str, Path)):
        return Path(value)
    converted = value
    if isinstance(value, Flag):
        try:
            converted = parse_flag(value, hint)
        except (KeyError, ValueError):
            raise wrong_type(value, hint, source=source, key=key) from None
    elif hint is float and type(value) is int and abs(value) <= sys.float_info.max:
        converted = float(value)
    # Exact, since bool is an int to isinstance; finite, since TOML and float() both know nan; and
    # no integer that a machine's would not hold, since sizes are multiplied by fractions.
    is_finite = hint is not float or (type(converted) is float and math.isfinite(converted))
    is_small = hint is not int or (type(converted) is int and converted.bit_length() <= 64)
    if type(converted) is not hint or not is_finite or not is_small:
        raise wrong_type(value, hint, source=source, key=key)
    return converted


def parse_flag(text: Flag, hint: Any) -> Any:
    if hint is bool:
        return {"true": True, "false": False}[text.lower()]
    return hint(text)


def check_section(value: Any, *, source: Source, key: str) -> None:
    if not isinstance(value, Mapping):
        raise SettingError(
            key,
            f"{source_of(source, key)}: {key} is a section, found {value!r}; write {key}.NAME = …",
        )


def wrong_type(value: Any, hint: Any, *, source: Source, key: str) -> SettingError:
    text = repr(value)
    if not isinstance(value, Flag):
        text = f"{type(value).__name__} {text}"
    return SettingError(
        key, f"{source_of(source, key)}: {key} must be {describe_type(hint)}, found {text}"
    )


def describe_type(hint: Any) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a finite number"}
    names |= {str: "a string", Path: "a path"}
    origin, choices = typing.get_origin(hint), typing.get_args(hint)
    if origin is list or (origin is tuple and choices[-1] is ...):
        return "a list"
    if origin is tuple:
        return f"a list of {len(choices)} numbers"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(names.get(choice, str(choice)) for choice in choices)
    return names.get(hint, str(hint))


# ---- suggestions ---------------------------------------------------------------------------------


def suggest(name: str, known: Iterable[Any], *, prefix: str = "") -> str:
    """Return the end of an error message: the known name that was probably meant, if any."""
    # Comparing takes time by the product of both: a name of pages, or one of a million columns, is
    # not misspelt.
    if len(name) > 100:
        return ""
    names = [str(k) for k in itertools.islice(known, 1000)]
    for close in difflib.get_close_matches(name, names, n=1):
        return f"; did you mean {prefix}{close}?"
    return ""


def suggest_or_list(name: str, known: Iterable[Any], *, prefix: str = "") -> str:
    """Return the end of an error message: the name probably meant, or a short list of all names."""
    names = [str(k) for k in known]
    hint = suggest(name, names, prefix=prefix)
    if not hint and len(names) <= 12:
        return f"; known are {', '.join(prefix + n for n in names)}"
    return hint
