"""A small corpus for a first run: the English prose that ships with Python and the libraries
already installed.

Nothing is downloaded and nothing is imported: docstrings and pydoc's topics are read out of the
source files.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import re
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

from electra import atomic
from electra.config import UserError

# Installed libraries whose docstrings explain things in sentences; those that are absent are passed
# over.
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
LARGEST_SHARE = 0.2  # of the corpus that one library may fill, so that none sets the tone
FEWEST_WORDS, FEWEST_CHARACTERS = 8, 30
MOSTLY = 0.8

SKIPPED = {
    "site-packages",
    "test",
    "tests",
    "testing",
    "idlelib",
    "lib2to3",
}  # other libraries; words for machines
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
    """Write `corpus.jsonl` (fields text, library, module; one document per module), or find it
    there already.
    """
    path = Path(output_dir) / "corpus.jsonl"
    if path.is_file():
        return path
    lines: list[str] = []
    total = 0
    seen: set[bytes] = set()
    for library, folder in (libraries if libraries is not None else installed()).items():
        filled = 0
        for module, docstrings in modules(folder):
            text = "\n".join(
                new for docstring in docstrings for new in unseen(paragraphs(docstring), seen)
            )
            if not text:
                continue
            lines.append(
                json.dumps({"text": text, "library": library, "module": module}, ensure_ascii=False)
            )
            filled += len(text.encode())
            if filled >= min(LARGEST_SHARE * max_bytes, max_bytes - total):
                break
        total += filled
        if total >= max_bytes:
            break
    if not lines:
        raise UserError(
            "no prose found in the installed libraries: their source files are missing; give a "
            "corpus of "
            "your own with --corpus"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(path, "".join(line + "\n" for line in lines).encode())
    return path


def installed() -> dict[str, Path]:
    """Python itself first, then every library of the list that is here."""
    paths = sysconfig.get_paths()
    found = {"python": Path(paths["stdlib"])}
    for library in LIBRARIES:
        for root in (paths["purelib"], paths["platlib"]):
            if (folder := Path(root) / library).is_dir():
                found.setdefault(library, folder)
    return found


def modules(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Each module's name and docstrings. In an order that mixes subjects, the same on every
    machine: a library that is cut off at its share should not consist of the letters A to C.
    """
    files = [
        file
        for path in folder.rglob("*.py")
        if not SKIPPED & set((file := path.relative_to(folder)).parts)
    ]
    for file in sorted(files, key=lambda file: hashlib.sha256(file.as_posix().encode()).digest()):
        try:
            source = (folder / file).read_text(encoding="utf8")
        except (OSError, ValueError):  # a test file in another encoding, say
            continue
        found = topics(source) if file.as_posix() == TOPICS else quoted(source)
        yield (
            file.with_suffix("").as_posix().replace("/", "."),
            [inspect.cleandoc(text) for text in found],
        )


def quoted(source: str) -> list[str]:
    """The triple-quoted strings that begin their line. Parsing every file would tell docstrings
    apart exactly, and take a minute; what is quoted and not prose falls at the next test.
    """
    pieces = source.split('"""')
    return [
        text
        for before, text in zip(pieces[0::2], pieces[1::2], strict=False)
        if before.rpartition("\n")[2].strip() in ("", "r", "R")
    ]


def topics(source: str) -> list[str]:
    """What `help("topic")` shows: the values of one dict."""
    return [
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def unseen(found: Iterator[str], seen: set[bytes]) -> Iterator[str]:
    for paragraph in found:
        digest = hashlib.blake2b(paragraph.encode(), digest_size=12).digest()
        if digest not in seen:
            seen.add(digest)
            yield paragraph


def paragraphs(docstring: str) -> Iterator[str]:
    """The paragraphs that are prose, one line each. A change of indentation ends a paragraph as a
    blank line does: above it stand the name and the type of a parameter, below it what it means.
    """
    gathered: list[str] = []
    depth = 0
    for line in [*docstring.split("\n"), ""]:
        indent = len(line) - len(line.lstrip())
        if gathered and (not line.strip() or indent != depth or MARKS.match(line)):
            text = " ".join(gathered)
            if len(text) >= FEWEST_CHARACTERS and is_prose(text := cleaned(text)):
                yield text
            gathered = []
        if line.strip():
            gathered.append(line.strip())
            depth = indent


def cleaned(text: str) -> str:
    return " ".join(MARKS.sub("", ROLE.sub(r"\1", text)).split())


def is_prose(text: str) -> bool:
    """Sentences, and hardly anything but words: no doctest, table, signature or drawing."""
    if not SENTENCES.fullmatch(text) or ">>>" in text or "::" in text.rstrip(":"):
        return False
    words = text.split()
    return len(words) >= FEWEST_WORDS and sum(
        bool(WORD.fullmatch(word)) for word in words
    ) >= MOSTLY * len(words)
