"""A small corpus for a first run: the English prose in the docstrings of Python and the installed
libraries.

Nothing is downloaded or imported: docstrings and pydoc's topics are read from the source files.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import re
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from electra import atomic
from electra.config import UserError

# Libraries whose docstrings explain things in sentences; those that are not installed are skipped.
LIBRARIES = (
    "torch",
    "transformers",
    "scipy",
    "sklearn",
    "numpy",
    "pandas",
    "sympy",
    "networkx",
    "pyarrow",
    "datasets",
    "huggingface_hub",
    "rich",
    "hypothesis",
    "mpmath",
    "PIL",
    "tokenizers",
    "safetensors",
    "fsspec",
    "anyio",
    "setuptools",
    "pip",
    "jinja2",
    "pygments",
    "pydantic",
    "cyclopts",
    "joblib",
    "pluggy",
    "_pytest",
    "filelock",
    "packaging",
    "click",
    "typer",
    "attr",
    "regex",
    "tqdm",
    "tensorboard",
    "narwhals",
)
MAX_LIBRARY_SHARE = 0.2  # of the corpus, so that no library dominates it
MIN_WORDS, MIN_CHARACTERS = 8, 30  # of a paragraph
MIN_WORD_SHARE = 0.8  # of what white space separates in a paragraph

# Folders of other libraries, and of text that is written for machines.
SKIPPED_FOLDERS = {"site-packages", "test", "tests", "testing", "idlelib", "lib2to3"}
TOPICS = "pydoc_data/topics.py"
ROLE = re.compile(r":[\w:+-]+:`~?([^`<]+?)(\s*<[^`>]*>)?`")  # :class:`~torch.Tensor`
MARKS = re.compile(r"`+|\*\*|^\s*([-*•]|\d+[.)])\s+")
WORD = re.compile(r"[\"'(]*[A-Za-z]+([-'’/][A-Za-z]+)*[\"')]*[.,;:!?]*[\"')]*")
SENTENCES = re.compile(r"[\"'(]*[A-Z].*[.!?:][\"')]*")


def write_docstring_corpus(
    output_dir: str | Path,
    *,
    max_bytes: int = 9_000_000,
    libraries: Mapping[str, Path] | None = None,
) -> Path:
    """Write `corpus.jsonl` (fields text, library, module; one document per module), unless it is
    there, and return its path.
    """
    path = Path(output_dir) / "corpus.jsonl"
    if path.is_file():
        return path
    if libraries is None:
        libraries = find_libraries()
    lines: list[str] = []
    total = 0
    seen: set[bytes] = set()
    for library, folder in libraries.items():
        limit = min(MAX_LIBRARY_SHARE * max_bytes, max_bytes - total)
        for module, text in read_library(folder, seen, max_bytes=limit):
            document = {"text": text, "library": library, "module": module}
            lines.append(json.dumps(document, ensure_ascii=False) + "\n")
            total += len(text.encode())
        if total >= max_bytes:
            break
    if not lines:
        raise UserError(
            "no prose found in the installed libraries: their source files are missing; give a "
            "corpus of your own with --corpus"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(path, "".join(lines).encode())
    return path


def find_libraries() -> dict[str, Path]:
    """Return the folders of Python itself and of every library of the list that is installed."""
    paths = sysconfig.get_paths()
    folders = {"python": Path(paths["stdlib"])}
    for library in LIBRARIES:
        for root in (paths["purelib"], paths["platlib"]):
            if (folder := Path(root) / library).is_dir():
                folders.setdefault(library, folder)
    return folders


def read_library(folder: Path, seen: set[bytes], *, max_bytes: float) -> Iterator[tuple[str, str]]:
    """Yield the prose of each module of a library that was not seen before, until `max_bytes` are
    reached.
    """
    size = 0
    for module, docstrings in read_modules(folder):
        paragraphs: list[str] = []
        for docstring in docstrings:
            paragraphs += drop_seen(split_paragraphs(docstring), seen)
        text = "\n".join(paragraphs)
        if not text:
            continue
        yield module, text
        size += len(text.encode())
        if size >= max_bytes:
            return


def read_modules(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each module's name and docstrings, in an order that mixes subjects and is the same on
    every machine: a library that is cut off should not consist of the letters A to C.
    """
    files = [path.relative_to(folder) for path in folder.rglob("*.py")]
    files = [file for file in files if not SKIPPED_FOLDERS & set(file.parts)]
    for file in sorted(files, key=lambda file: hashlib.sha256(file.as_posix().encode()).digest()):
        try:
            source = (folder / file).read_text(encoding="utf8")
        except (OSError, ValueError):  # a test file in another encoding, say
            continue
        read_docstrings = find_docstrings
        if file.as_posix() == TOPICS:
            read_docstrings = find_string_constants
        name = file.with_suffix("").as_posix().replace("/", ".")
        yield name, [inspect.cleandoc(text) for text in read_docstrings(source)]


def find_docstrings(source: str) -> list[str]:
    """Return the triple-quoted strings that begin their line. Parsing every file would tell
    docstrings apart exactly, but take a minute; `is_prose` drops other strings.
    """
    pieces = source.split('"""')
    docstrings = []
    for before, text in zip(pieces[0::2], pieces[1::2], strict=False):
        if before.rpartition("\n")[2].strip() in ("", "r", "R"):
            docstrings.append(text)
    return docstrings


def find_string_constants(source: str) -> list[str]:
    """Return all strings of a module: in pydoc's topics, what `help("topic")` shows."""
    strings = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            strings.append(node.value)
    return strings


def drop_seen(paragraphs: Iterable[str], seen: set[bytes]) -> Iterator[str]:
    """Yield the paragraphs that were not seen before, and remember them."""
    for paragraph in paragraphs:
        digest = hashlib.blake2b(paragraph.encode(), digest_size=12).digest()
        if digest not in seen:
            seen.add(digest)
            yield paragraph


def split_paragraphs(docstring: str) -> Iterator[str]:
    """Yield the paragraphs that are prose, one line each. A change of indentation ends a paragraph
    as a blank line does: it separates the name and type of a parameter from its description.
    """
    lines: list[str] = []
    depth = 0
    for line in [*docstring.split("\n"), ""]:
        indent = len(line) - len(line.lstrip())
        if lines and (not line.strip() or indent != depth or MARKS.match(line)):
            text = " ".join(lines)
            if len(text) >= MIN_CHARACTERS and is_prose(text := strip_markup(text)):
                yield text
            lines = []
        if line.strip():
            lines.append(line.strip())
            depth = indent


def strip_markup(text: str) -> str:
    """Remove reStructuredText roles and marks, and repeated white space."""
    return " ".join(MARKS.sub("", ROLE.sub(r"\1", text)).split())


def is_prose(text: str) -> bool:
    """Return whether a text consists of sentences: no doctest, table, signature or drawing."""
    if not SENTENCES.fullmatch(text) or ">>>" in text or "::" in text.rstrip(":"):
        return False
    parts = text.split()
    words = sum(bool(WORD.fullmatch(part)) for part in parts)
    return len(parts) >= MIN_WORDS and words >= MIN_WORD_SHARE * len(parts)
