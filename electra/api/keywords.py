"""Options as keywords of a Python function, and the messages of the command line in Python's words.

The options of a function are the fields of a dataclass, which `takes_keywords` shows to `help`, to
editors and to type checkers as its keywords.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from electra.config import RunFailed, SettingError, UserError, convert, flatten, suggest
from electra.escape import reword

P = ParamSpec("P")
Arguments = TypeVar("Arguments")
Result = TypeVar("Result")
# A flag; or a whole command, which stays as it is to be typed in a shell.
FLAG = re.compile(
    r"`electra (?P<command>[a-z]+)`|`electra [^`]*`|(?<![\w-])--(?P<flag>[a-z][a-z0-9_.-]*[a-z0-9])"
)
NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?")
# Words after a flag that are its value wherever they stand in a message.
VALUES = set(
    "auto never stretch constant true false on off cut plain zero1 fsdp bf16 fp16 squad-2.0".split()
)
PYTHON_VALUES = {"true": "True", "false": "False", "none": "None"}
FUNCTIONS = {
    "vocab": "electra.train_wordpiece",
    "shard": "electra.shard",
    "pretrain": "electra.pretrain",
    "finetune": "electra.finetune",
}
PHRASES = {
    "The same command": "The same call",
    "the same command": "the same call",
    "command line: ": "settings: ",
    "; --print-config lists them all": "",
}


def takes_keywords(
    arguments: Callable[P, Arguments],
) -> Callable[[Callable[[Arguments], Result]], Callable[P, Result]]:
    """Return a decorator that calls a function of one dataclass with the fields of that dataclass.

    The documentation of the fields, also of inherited ones, follows that of the function.
    """

    def decorate(function: Callable[[Arguments], Result]) -> Callable[P, Result]:
        signature = keyword_signature(arguments)
        defaults = {name: each.default for name, each in signature.parameters.items()}

        @functools.wraps(function)
        def call(*args: P.args, **keywords: P.kwargs) -> Result:
            try:
                given = signature.bind(*args, **keywords).arguments
            except TypeError as error:
                hint = keyword_hint(keywords, list(signature.parameters))
                raise TypeError(f"{function.__name__}() {error}{hint}") from None
            with python_messages(defaults | given):
                check_types(arguments, given, source=f"electra.{function.__name__}")
                return function(arguments(*args, **keywords))

        returns = inspect.signature(function).return_annotation
        call.__signature__ = signature.replace(return_annotation=returns)  # type: ignore[attr-defined]
        documentation = f"{inspect.getdoc(function)}\n\n{document_fields(arguments)}"
        call.__doc__ = to_python(documentation, defaults)
        return call

    return decorate


def keyword_signature(arguments: Callable[..., object]) -> inspect.Signature:
    """Return the signature of a dataclass, its own fields before those that it inherits."""
    own = list(arguments.__annotations__)
    parameters = []
    for each in inspect.signature(arguments).parameters.values():
        # What the parser of the command line must know is of no use to a reader.
        hint = re.sub(r"^Annotated\[(.*), Parameter\(.*\)\]$", r"\1", str(each.annotation))
        parameters.append(each.replace(annotation=hint))
    parameters.sort(key=lambda each: own.index(each.name) if each.name in own else len(own))
    return inspect.Signature(parameters)


def keyword_hint(keywords: Mapping[str, object], known: list[str]) -> str:
    """Return the end of a message about a keyword that a function does not have."""
    unknown = next((name for name in keywords if name not in known), None)
    if unknown is None:
        return ""
    hint = suggest(unknown, known)
    setting = f'setting of the recipe: settings={{"{unknown}": …}}'
    if "settings" not in known:
        return hint
    if hint:
        return f"{hint} Or is it a {setting}"
    return f"; give a {setting}"


def check_types(arguments: Callable[..., object], given: Mapping[str, Any], *, source: str) -> None:
    """Raise UserError for a keyword whose value is not of its declared type."""
    for name, hint in get_type_hints(arguments).items():
        if name not in given:
            continue
        value, kinds = given[name], {get_origin(kind) or kind for kind in kinds_of(hint)}
        if kinds <= {bool, int, float, Literal}:
            if isinstance(value, np.generic):
                value = value.item()
            convert(value, hint, source=source, key=name)
        elif kinds == {str, PathLike} and not isinstance(value, (str, PathLike, NoneType)):
            raise UserError(f"{source}: {name} must be a path, found {type(value).__name__}")


def kinds_of(hint: Any) -> list[Any]:
    """Return the types that a hint allows, besides None."""
    kinds = [hint]
    if get_origin(hint) in (Union, UnionType):
        kinds = list(get_args(hint))
    return [kind for kind in kinds if kind is not NoneType]


def document_fields(arguments: Callable[..., object]) -> str:
    """Return the section Parameters of a dataclass, in the order of its fields."""
    assert inspect.isclass(arguments)
    texts: dict[str, str] = {}
    for cls in reversed(arguments.__mro__):
        _, _, section = inspect.cleandoc(cls.__doc__ or "").partition("Parameters\n----------\n")
        for part in re.split(r"\n(?=\w)", section.strip()):
            texts[part.partition("\n")[0]] = part
    names = keyword_signature(arguments).parameters
    return "\n".join(["Parameters", "----------", *(texts[name] for name in names)])


# ---- messages ------------------------------------------------------------------------------------


@contextmanager
def python_messages(keywords: Mapping[str, object]) -> Iterator[None]:
    """Let errors, warnings and what is printed in the block speak of keywords, not of flags.

    Errors come without the frames below: the message says what is to be done.
    """
    outside = reword.set(lambda text: to_python(text, keywords))
    try:
        yield
    except SettingError as error:
        raise SettingError(error.key, to_python(with_notes(error), keywords)) from None
    except UserError as error:
        raise UserError(to_python(with_notes(error), keywords)) from None
    except RunFailed as error:
        raise RunFailed(to_python(with_notes(error), keywords)) from error
    except Exception as error:
        notes = getattr(error, "__notes__", [])
        notes[:] = [to_python(note, keywords) for note in notes]
        raise
    finally:
        reword.reset(outside)


def with_notes(error: Exception) -> str:
    """Return the message of an error with its notes, as the command line prints them."""
    return "; ".join([str(error), *getattr(error, "__notes__", ())])


def to_python(text: str, keywords: Mapping[str, object]) -> str:
    """Return a text about flags as one about keywords: `--output-dir x` becomes `output_dir='x'`.

    A flag that is no keyword is a setting. `keywords` are all that the function has, with their
    values.
    """
    for phrase, replacement in PHRASES.items():
        text = text.replace(phrase, replacement)
    parts, position = [], 0
    for match in FLAG.finditer(text):
        parts.append(text[position : match.start()])
        position = match.end()
        if match["command"] in FUNCTIONS:
            parts.append(f"`{FUNCTIONS[match['command']]}`")
        elif match["flag"]:
            name = match["flag"].replace("-", "_")
            value = value_after(text[position:], keywords.get(name))
            if value is not None:
                position += 1 + len(value)
            elif name.startswith("no_"):
                name, value = name.removeprefix("no_"), "false"
            parts.append(as_keyword(name, value, keywords))
        else:
            parts.append(match[0])
    return "".join([*parts, text[position:]])


def value_after(text: str, given: object) -> str | None:
    """Return the value that follows a flag in a message, if it is one and not the next word."""
    if isinstance(given, (str, int, float, PathLike)) and text.startswith(f" {given}"):
        return str(given)
    word = re.match(r"[ =](\S*\w)", text)
    if word and (word[1] in VALUES or NUMBER.fullmatch(word[1])):
        return word[1]
    return None


def as_keyword(name: str, value: str | None, keywords: Mapping[str, object]) -> str:
    if value is not None and not NUMBER.fullmatch(value):
        value = PYTHON_VALUES.get(value, repr(value))
    if name not in keywords:
        setting = f'settings["{name}"]'
        if value is None:
            return setting
        return f"{setting} = {value}"
    if value is None and isinstance(keywords[name], bool):
        value = "True"
    return f"{name}={value or ''}"


# ---- settings ------------------------------------------------------------------------------------


def as_flags(settings: Mapping[str, object] | None) -> list[str]:
    """Return settings, {"learning_rate": 1e-4} or {"encoder": {"layers": 6}}, as flags."""
    if settings is None:
        return []
    if not isinstance(settings, Mapping):
        raise UserError(
            f"settings is a {type(settings).__name__}; give a dict, such as "
            '{"learning_rate": 1e-4}'
        )
    flags = []
    for key, value in flatten(settings):
        flags.append(f"--{key.replace('_', '-')}={setting_text(value)}")
    return flags


def setting_text(value: object) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ",".join(map(setting_text, value))
    return str(value)


def field_values(options: type, arguments: Any) -> dict[str, Any]:
    """Return the fields of an options dataclass from the arguments that inherit them."""
    names = [field.name for field in dataclasses.fields(options) if field.init]
    return {name: getattr(arguments, name) for name in names}
