"""Change bytes and JSON values of valid files as a disk, a download or an attacker would."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import tomli_w
from hypothesis import strategies as st

from electra.files import check_toml_size

DEEP = 100_000
HUGE = 10**400

# Bytes that break readers: encodings, numbers, nesting, and the magic numbers of other formats.
FRAGMENTS: list[bytes] = [
    b"\0",
    b"\xff",
    b"\xfe\xff",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\xed\xa0\x80",
    b"\xc0\xaf",
    b"\x80",
    b"\r",
    b"\n",
    b"\r\n\r\n",
    b"\x1b[2J",
    b"\x85",
    "\u2028".encode(),
    b'"',
    b'""',
    b"'",
    b"\\",
    b"\\ud800",
    b",",
    b"\t",
    b";",
    b"=",
    b"[",
    b"]",
    b"{",
    b"}",
    b"[[",
    b"{}",
    b"[]",
    b"null",
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"-1",
    b"0",
    b"9" * 30,
    b"9" * 5000,
    b"0x" + b"f" * 5000,
    b"true",
    b"../",
    b"/etc/passwd",
    b" " * 300,
    b"a" * 300,
    b"a." * 600,
    b"[" * 300,
    b'{"a":' * 300,
    b"#",
    b"\x1f\x8b\x08\0",
    b"\xfd7zXZ\0",
    b"BZh9",
    b"(\xb5/\xfd",
    b"PAR1",
    b"\x93NUMPY",
    b"\x80\x04.",
    b"-DOCSTART-",
    b"[CLS]",
    b"<<<<<<< HEAD\n",
]
WHOLE_FILES: list[bytes] = [
    b"",
    b"\0" * 64,
    b"\xef\xbb\xbf",
    b"null",
    b"[]",
    b"{}",
    b"0",
    b'"x"',
    b"[" * DEEP,
    b"]",
    b"[{}]",
    b'{"a":' * DEEP,
    b"[" * 900 + b"]" * 900,
    b'{"a":' * 900 + b"1" + b"}" * 900,
    b"\n" * 50,
    b"a." * 50_000 + b"a = 1",
    b"a = " + b"9" * 5000,
    b"a = " + b"[" * 3000,
    b"\xff\xfea\0b\0",
]


def nest(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    3,
    10**9,
    2**31,
    2**63,
    10**30,
    HUGE,
    -HUGE,
    0.5,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
    "",
    " ",
    "a",
    "x" * 5000,
    "\0",
    "\ud800",
    "\x1b[2J",
    "../../etc/passwd",
    "/etc/passwd",
    "1",
    "nan",
    "line\nline",
    [],
    {},
    [[]],
    [{}],
    [None],
    ["a"],
    [1],
    {"a": 1},
    {"": {}},
    {"name": "x"},
    nest(80),
    nest(900),
]


@st.composite
def mutate(draw: st.DrawFn, good: bytes, *, suffix: str) -> bytes:
    """Draw the content after one to three changes, mostly to values if its suffix is known."""
    content = good
    for _ in range(draw(st.integers(1, 3))):
        change = change_bytes
        if draw(st.integers(0, 3)) > 0:
            change = CHANGES_BY_SUFFIX.get(suffix, change_bytes)
        content = draw(change(content))
    return content


@st.composite
def change_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    kind = draw(
        st.sampled_from(["fragment", "flip", "cut", "drop", "repeat", "replace", "whole", "noise"])
    )
    start, end = sorted((draw(st.integers(0, len(content))), draw(st.integers(0, len(content)))))
    if kind == "fragment":
        return content[:start] + draw(st.sampled_from(FRAGMENTS)) + content[start:]
    if kind == "flip":
        return (
            content[:start]
            + bytes(byte ^ 1 << draw(st.integers(0, 7)) for byte in content[start : start + 1])
            + (content[start + 1 :])
        )
    if kind == "cut":
        return content[:end]
    if kind == "drop":
        return content[:start] + content[end:]
    if kind == "repeat":
        return content[:end] + content[start:end] * draw(st.integers(1, 3)) + content[end:]
    if kind == "replace":
        return content[:start] + draw(st.sampled_from(FRAGMENTS)) + content[end:]
    if kind == "noise":
        return content[:start] + draw(st.binary(max_size=40)) + content[start:]
    return draw(st.sampled_from(WHOLE_FILES))


@st.composite
def change_json(draw: st.DrawFn, content: bytes) -> bytes:
    """Replace, remove or rename one value of a JSON document; return other bytes unchanged."""
    try:
        document = json.loads(content)
        places = list(value_paths(document))
    except (ValueError, RecursionError):
        return content
    if not places:
        return content
    path = draw(st.sampled_from(places))
    holder = document
    for key in path[:-1]:
        holder = holder[key]
    kind = draw(st.sampled_from(["replace"] * 4 + ["remove", "rename"]))
    if kind == "replace":
        holder[path[-1]] = draw(st.sampled_from(VALUES))
    elif kind == "remove" or not isinstance(holder, dict):
        del holder[path[-1]]
    else:
        holder[draw(st.sampled_from(["", "a", "\ud800", "../x", "name"]))] = holder.pop(path[-1])
    return as_json(document)


@st.composite
def change_jsonl(draw: st.DrawFn, content: bytes) -> bytes:
    """Change one line, as JSON."""
    lines = content.split(b"\n")
    place = draw(st.integers(0, len(lines) - 1))
    lines[place] = draw(change_json(lines[place]))
    return b"\n".join(lines)


@st.composite
def change_toml(draw: st.DrawFn, content: bytes) -> bytes:
    """Change one value as in JSON; return the file unchanged where TOML cannot hold the value, or
    where parsing it would take minutes and gigabytes.
    """
    try:
        text = content.decode()
        check_toml_size(text)
        changed = json.loads(draw(change_json(json.dumps(tomllib.loads(text)).encode())))
        return tomli_w.dumps(changed).encode()
    except (ValueError, TypeError, RecursionError):
        return content


@st.composite
def change_safetensors(draw: st.DrawFn, content: bytes) -> bytes:
    """Change the header, a JSON object after its length; keep the tensors."""
    size = int.from_bytes(content[:8], "little")
    if size > len(content):
        return content
    header = draw(change_json(content[8 : 8 + size]))
    return len(header).to_bytes(8, "little") + header + content[8 + size :]


CHANGES_BY_SUFFIX = {
    ".json": change_json,
    ".jsonl": change_jsonl,
    ".toml": change_toml,
    ".safetensors": change_safetensors,
}


def value_paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the keys that lead to the first few hundred values of a document."""
    paths: list[tuple[Any, ...]] = []
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    for key, item in items[:40]:
        paths += [(*path, key), *value_paths(item, (*path, key))]
    return paths[:400]


def as_json(value: Any) -> bytes:
    """Return JSON with NaN, long numbers and lone surrogates, all of which Python writes."""
    return json.dumps(value).encode()
