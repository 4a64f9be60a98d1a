"""Collect settings from files, the environment and the command line, and write them again.

A layer is a plain nested dict of settings. Later layers win, table by table, and `build_layers`
makes one dataclass of them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import typing
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from electra.config import (
    RECIPES,
    Config,
    Flag,
    Layer,
    Layers,
    SettingError,
    UserError,
    build,
    field_types,
    flatten,
    suggest,
    variants_of,
)
from electra.renamed import RENAMED, find_renamed

# What other programs call our settings and options; too far from our names to be found by spelling.
CUSTOMARY = {
    "lr": "learning-rate",
    "bs": "batch-size",
    "batch": "batch-size",
    "seq_length": "length",
    "max_length": "length",
    "max_seq_length": "length",
    "num_train_epochs": "epochs",
    "output": "output-dir",
}


def build_layers(cls: type[Config], layers: Mapping[str, Layer]) -> Config:
    """Build the dataclass that several named layers describe together."""
    known = list(setting_keys(cls))
    for source, layer in layers.items():
        for key, _ in flatten(layer):
            if meant := find_in_other_section(key, known):
                raise SettingError(key, f"{source}: unknown key {key}; did you mean {meant}?")
    return build(cls, merge(*layers.values()), source=Layers(layers))


def merge(*layers: Mapping[str, Any]) -> Layer:
    """Merge layers into one. Later layers win, table by table."""
    merged: Layer = {}
    for layer in layers:
        for key, value in layer.items():
            if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
                merged[key] = merge(merged[key], value)
            else:
                merged[key] = value
    return merged


def find_in_other_section(key: str, known: Sequence[str]) -> str | None:
    """Return the key of the same name in another section, for one that its own section lacks."""
    section, _, name = key.rpartition(".")
    if key in known or not any(other.startswith(f"{section}.") for other in known):
        return None
    matches = [other for other in known if section and other.endswith(f".{name}")]
    if len(matches) == 1:
        return matches[0]
    return None


def set_key(layer: Layer, key: str, value: Any) -> None:
    """Set a dotted key of a layer, adding the sections it needs."""
    *sections, last = key.split(".")
    for section in sections:
        layer = layer.setdefault(section, {})
    layer[last] = value


# ---- recipes -------------------------------------------------------------------------------------


def recipe_names(folder: Path = RECIPES) -> list[str]:
    """Return the names of the built-in recipes in a folder, sorted."""
    return sorted(path.stem for path in folder.glob("*.toml"))


def find_recipe(
    name: str, folder: Path = RECIPES, *, kind: str = "recipe", other_names: Sequence[str] = ()
) -> Path:
    """Return the file of a built-in recipe, or the user's own .toml file.

    `kind` is what an error message calls the recipe. `other_names` are no recipes, but a misspelt
    name may have meant them.
    """
    built_in, own = folder / f"{name}.toml", Path(name)
    if built_in.is_file() and "/" not in name:
        return built_in
    if own.suffix == ".toml":
        return own
    if (config := own / "config.toml").is_file():
        raise UserError(f"{name} is a folder, not a {kind}; did you mean {config}?")
    names = [*recipe_names(folder), *other_names]
    hint = suggest(name, names) or f"; built in are {', '.join(names)}."
    raise UserError(f"unknown {kind} {name!r}{hint} A file of your own ends in .toml.")


# ---- the command line and the environment --------------------------------------------------------


def parse_flags(tokens: Sequence[str], cls: type, *, other_flags: Sequence[str] = ()) -> Layer:
    """Return `--optimizer.learning-rate 3e-4 --seed=7 --cased` as a layer of settings of `cls`.

    A section may be left out where the last word is unique, and the value where it is true.
    `other_flags` are no settings, but a misspelt one may have meant them.
    """
    layer: Layer = {}
    remaining = list(tokens)
    while remaining:
        token = remaining.pop(0)
        if not token.startswith("--"):
            raise UserError(
                f"unexpected argument {token!r}; settings are written --section.key value"
            )
        name, equals, value = token[2:].partition("=")
        has_value = bool(equals) or (bool(remaining) and not remaining[0].startswith("--"))
        if has_value and not equals:
            value = remaining.pop(0)
        key = find_key(name, value, cls, other_flags)
        if not has_value and dict(setting_hints(cls))[key] is bool:
            value = "true"  # as for options: `electra vocab --cased`
        elif not has_value:
            raise UserError(f"--{name} needs a value")
        set_key(layer, key, Flag(value))
    return layer


def find_key(name: str, value: str, cls: type, other_flags: Sequence[str]) -> str:
    """Return the dotted key that a flag's name stands for; raise UserError if there is none."""
    key = name.replace("-", "_")
    known = list(setting_keys(cls))
    if key in known:
        return key
    matches = [full for full in known if full.endswith("." + key)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UserError(f"command line: --{name} could be {' or '.join(map(as_flag, matches))}")
    if renamed := find_renamed(key, known):
        new, text = as_flag(renamed.key), renamed.value(value)
        message = f"command line: --{name} is now called {new}; write {new} {text}".rstrip()
        raise SettingError(renamed.key, message)
    if meant := find_in_other_section(key, known):
        raise UserError(f"command line: unknown setting --{name}; did you mean {as_flag(meant)}?")
    names = [as_flag(part)[2:] for full in known for part in (full, full.rpartition(".")[2])]
    names += other_flags
    hint = suggest(key.replace("_", "-"), names, prefix="--")
    if (customary := CUSTOMARY.get(key)) in names:
        hint = f"; did you mean --{customary}?"
    raise UserError(
        f"command line: unknown setting --{name}{hint or '; --print-config lists them all'}"
    )


def as_flag(key: str) -> str:
    return "--" + key.replace("_", "-")


def parse_environment(
    variables: Mapping[str, str], cls: type, *, prefix: str = "ELECTRA_"
) -> Layer:
    """Return variables such as `ELECTRA_OPTIMIZER_LEARNING_RATE=3e-4` as a layer of settings."""
    names = {as_variable(key, prefix): key for key in setting_keys(cls)}
    layer: Layer = {}
    for variable, value in sorted(variables.items()):
        if not variable.startswith(prefix):
            continue
        if variable not in names:
            raise unknown_variable(variable, value, names, prefix)
        set_key(layer, names[variable], Flag(value))
    return layer


def unknown_variable(variable: str, value: str, names: Mapping[str, str], prefix: str) -> UserError:
    for old, new in RENAMED.items():
        new_variable = as_variable(new.key, prefix)
        if as_variable(old, prefix) == variable and new_variable in names:
            return SettingError(
                new.key,
                f"environment: {variable} is now called {new_variable}; write "
                f"{new_variable}={new.value(value)}",
            )
    known = [name.removeprefix(prefix) for name in names]
    hint = suggest(variable.removeprefix(prefix), known, prefix=prefix)
    hint = hint or "; unset it: names with this beginning are settings"
    return UserError(f"environment: unknown setting {variable}{hint}")


def as_variable(key: str, prefix: str) -> str:
    return prefix + key.replace(".", "_").upper()


def setting_keys(cls: type) -> Iterator[str]:
    """Yield every dotted key that a config of this class may hold, once."""
    for key, _ in setting_hints(cls):
        yield key


def setting_hints(cls: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every dotted key that a config of this class may hold, once, with its type."""
    for name, hint in field_types(cls).items():
        members = variants_of(hint) or (hint, *typing.get_args(hint))
        sections = [member for member in members if dataclasses.is_dataclass(member)]
        hints: dict[str, Any] = {}  # members of a union have keys in common
        for section in sections:
            hints |= dict(setting_hints(typing.cast(type, section), f"{prefix}{name}."))
        yield from hints.items() or [(prefix + name, hint)]


# ---- writing and comparing -----------------------------------------------------------------------


def as_dict(config: Any) -> Layer:
    """Return the layer that builds this config again.

    TOML has no null, so a field that is None is left out.
    """
    layer: Layer = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            layer[field.name] = as_dict(value)
        elif isinstance(value, tuple):
            layer[field.name] = list(value)
        elif value is not None:
            layer[field.name] = value
    return layer


def as_toml(config: Any) -> str:
    """Return the TOML text that builds this config again."""
    import tomli_w

    return tomli_w.dumps(as_dict(config))


def fingerprint(values: Any) -> str:
    """Return a short hash of plain data, the same on every machine."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def describe_differences(asked: Layer, found: Layer, *, may_change: Container[str]) -> str:
    """Return a line for each setting that differs and may not change; empty if there is none."""
    ours, theirs = dict(flatten(asked)), dict(flatten(found))
    lines = []
    for key in differing_keys(asked, found):
        if key not in may_change:
            lines.append(f"\n  {key}: here {theirs.get(key)!r}, asked {ours.get(key)!r}")
    return "".join(lines)


def differing_keys(ours: Layer, theirs: Layer) -> list[str]:
    """Return the dotted keys in which two layers differ, sorted."""
    a, b = dict(flatten(ours)), dict(flatten(theirs))
    return sorted(key for key in a.keys() | b.keys() if a.get(key) != b.get(key))
