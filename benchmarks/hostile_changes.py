"""Change one file of a folder as someone would who means harm: contents, names, links, sizes."""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import tomli_w

HUGE = 10**400
SPARSE = 3 * 10**11  # bytes of a file that takes no place on the disk
NAMES: list[bytes] = [
    b"..a",
    b"-rf",
    b"--output-dir",
    b"\x1b[2J.txt",
    b"a\nb.txt",
    b"\xff\xfe.txt",
    b"a" * 250,
    "\u202egnp.txt".encode(),
    b"[red]a.jsonl",
    b"<img src=x>.toml",
    b"a\\..\\b.npy",
]
KEYS = [
    "",
    "..",
    "eval_/../../canary/a_loss",
    'eval_x"><img src=x>_loss',
    "\x1b[2J",
    "[red]",
    "\ud800",
    "a" * 5000,
    "__class__",
    "name",
]
VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    1,
    10**9,
    2**31,
    2**63,
    10**30,
    HUGE,
    0.5,
    1e308,
    float("nan"),
    float("-inf"),
    "",
    "x" * 5000,
    "\0",
    "\ud800",
    "\x1b[2J\x9b\u202e",
    "[red]a[/red]",
    "<img src=x onerror=a>|`x`",
    "../../canary/secret.txt",
    "../canary",
    "/etc/passwd",
    "line\nline",
    [],
    {},
    [[]],
    [None],
    ["a", 1],
    {"a": 1},
    {"../canary": {}},
    [2**31, 2**31],
]
FRAGMENTS = [
    b"\0",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\xed\xa0\x80",
    b"\r",
    b"\n\n",
    b"\x1b[2J",
    b'"',
    b"\\ud800",
    b",",
    b"[" * 300,
    b'{"a":' * 300,
    b"NaN",
    b"1e999",
    b"9" * 5000,
    b"a" * 70_000,
    b"../" * 20,
    b"\x1f\x8b\x08\0",
    b"PAR1",
    b"\x93NUMPY",
    b"\x80\x04.",
]
WHOLE = [b"", b"\0" * 64, b"null", b"[]", b"{}", b"[" * 100_000, b'{"a":' * 100_000, b"(" * 9999]


def change_folder(folder: Path, rng: Random, canary: Path) -> str:
    """Change something in a folder and return what."""
    plain = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    files = sorted(path for path in plain if path.stat().st_size < SPARSE)  # not to be read here
    if not files:
        return "nothing left to change"
    path = rng.choice(files)
    change = rng.choices([change_content, change_name, change_kind, change_size], [12, 2, 4, 1])[0]
    return f"{path.relative_to(folder)}: {change(path, rng, canary)}"


def change_content(path: Path, rng: Random, canary: Path) -> str:
    content = path.read_bytes()
    change = change_bytes
    if rng.random() < 0.75:
        change = BY_SUFFIX.get(path.suffix, change_bytes)
    path.write_bytes(change(content, rng))
    return change.__name__


def change_name(path: Path, rng: Random, canary: Path) -> str:
    """Rename a file, or copy it under another name, which is no plain one."""
    name = rng.choice(NAMES)
    target = os.path.join(os.fsencode(path.parent), name)
    if rng.random() < 0.5:
        os.rename(path, target)
        return f"renamed to {name!r}"
    if os.fsencode(path) != target:  # it may have got the name before
        shutil.copyfile(path, target)
    return f"copied to {name!r}"


def change_kind(path: Path, rng: Random, canary: Path) -> str:
    """Replace a file, or its folder, by a link, a pipe, a folder or nothing."""
    kind = rng.choice(
        ["link", "link", "dangling", "loop", "device", "pipe", "folder", "none", "up"]
    )
    if kind == "up" and path.parent.name not in ("input", "output"):
        shutil.rmtree(path.parent)
        path.parent.symlink_to(canary, target_is_directory=True)
        return "folder is a link"
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind != "none":
        targets = {"dangling": canary / "new", "loop": path, "device": Path("/dev/zero")}
        path.symlink_to(targets.get(kind, canary / "secret.txt"))
    return kind


def change_size(path: Path, rng: Random, canary: Path) -> str:
    """Make a file huge, or cut it short."""
    size = path.stat().st_size
    size = rng.choice([SPARSE, size // 2, size + 1, max(0, size - 1)])
    os.truncate(path, size)
    return f"{size} bytes"


# ---- contents ------------------------------------------------------------------------------------


def change_bytes(content: bytes, rng: Random) -> bytes:
    """Insert, replace, drop or repeat bytes anywhere."""
    if rng.random() < 0.1:
        return rng.choice(WHOLE)
    start, end = sorted(rng.randint(0, len(content)) for _ in range(2))
    middle = rng.choice([b"", rng.choice(FRAGMENTS), rng.randbytes(9), content[start:end] * 3])
    if rng.random() < 0.5:
        end = start
    return content[:start] + middle + content[end:]


def change_json(content: bytes, rng: Random) -> bytes:
    """Replace, remove or rename one value; return other bytes unchanged."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return content
    return json.dumps(change_value(document, rng)).encode()


def change_value(value: Any, rng: Random) -> Any:
    """Return a document in which one value, at a random depth, is another."""
    if not isinstance(value, (dict, list)) or not value or rng.random() < 0.1:
        return nest(rng.choice(VALUES), rng)
    places = list(range(len(value)))
    if isinstance(value, dict):
        places = list(value)
    place, kind = rng.choice(places), rng.random()
    if kind < 0.1:
        del value[place]
    elif kind < 0.2 and isinstance(value, dict):
        value[rng.choice(KEYS)] = value.pop(place)
    elif kind < 0.3 and isinstance(value, dict):
        value[rng.choice(KEYS)] = rng.choice(VALUES)
    else:
        value[place] = change_value(value[place], rng)
    return value


def nest(value: Any, rng: Random) -> Any:
    """Return a value, rarely inside of many lists."""
    for _ in range(rng.choice([0] * 20 + [60, 900])):
        value = [value]
    return value


def change_jsonl(content: bytes, rng: Random) -> bytes:
    lines = content.split(b"\n")
    place = rng.randrange(len(lines))
    lines[place] = change_json(lines[place], rng)
    return b"\n".join(lines)


def change_toml(content: bytes, rng: Random) -> bytes:
    """Change a value; return the file unchanged where TOML cannot hold it."""
    try:
        return tomli_w.dumps(change_value(tomllib.loads(content.decode()), rng)).encode()
    except (ValueError, TypeError, AttributeError, RecursionError):
        return content


def change_safetensors(content: bytes, rng: Random) -> bytes:
    """Change the header, a JSON object after its length; keep the tensors."""
    size = int.from_bytes(content[:8], "little")
    header = change_json(content[8 : 8 + size], rng)
    return len(header).to_bytes(8, "little") + header + content[8 + size :]


def change_npy(content: bytes, rng: Random) -> bytes:
    """Change the header, in which shape and type stand as Python writes them."""
    size = int.from_bytes(content[8:10], "little")
    header = content[10 : 10 + size]
    shape = rng.choice([b"(9223372036854775807,)", b"(2147483648, 2147483648)", b"(-1,)", b"()"])
    old, new = rng.choice([(b"(", shape), (b"<", b">"), (b"i", b"f"), (b"descr", b"__class__")])
    header = header.replace(old, new, 1)[:65535]
    return content[:8] + len(header).to_bytes(2, "little") + header + content[10 + size :]


BY_SUFFIX: dict[str, Callable[[bytes, Random], bytes]] = {
    ".json": change_json,
    ".jsonl": change_jsonl,
    ".toml": change_toml,
    ".safetensors": change_safetensors,
    ".npy": change_npy,
}
