"""The files of a corpus: find and recognize every input before any long work begins."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from electra.config import UserError
from electra.escape import first_line, reword

Report = Callable[[str], None]
Kind = Literal["text", "jsonl", "json", "csv", "tsv", "parquet", "hub"]
# What is one document of plain text: a whole file, or what blank lines separate in it.
DocumentUnit = Literal["blank-line", "file"]

KINDS: dict[str, Kind] = {
    ".txt": "text",
    ".jsonl": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
COMPRESSIONS = (".gz", ".xz", ".bz2", ".zst")
READABLE = ".txt, .jsonl, .json, .csv, .tsv, .parquet; all but that also as .gz, .xz, .bz2, .zst"
HUB_NAME = re.compile(
    r"(?P<dataset>[\w.-]+/[\w.-]+)(:(?P<config>[\w.-]+))?(@(?P<revision>[\w./-]+))?"
)
CONTENT_HASH = "sha256_of_blocks"  # the key of a fingerprint that needs the file to be read
PACKAGE = str(Path(__file__).parents[1]) + os.sep
BLOCK_BYTES = 64 * 1024
# Files up to 256 MB are hashed whole; of larger ones no more than that is hashed.
MAX_HASHED_BLOCKS = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """One file of a corpus, or one data set on the hub."""

    display_name: str  # for messages
    name: str  # the same on every machine: the file's path relative to the input
    kind: Kind
    path: Path = Path()
    compression: str = ""
    size: int = 0  # bytes on disk; 0 on the hub
    config: str | None = None  # of a data set on the hub
    revision: str | None = None

    def identity(self) -> dict[str, Any]:
        """Return what is known without reading the content."""
        if self.kind == "hub":
            return {"name": self.name, "config": self.config, "revision": self.revision}
        return {"name": self.name, "size": self.size}

    def fingerprint(self) -> dict[str, Any]:
        """Return name, size and a hash of the content: of a whole file, or of blocks spread over
        one that is too large to read twice.
        """
        if self.kind == "hub":
            return self.identity()
        stride = max(BLOCK_BYTES, self.size // MAX_HASHED_BLOCKS)
        try:
            with self.path.open("rb") as stream:
                content = hashlib.sha256()
                for start in range(0, max(1, self.size), stride):
                    stream.seek(start)
                    content.update(stream.read(BLOCK_BYTES))
                stream.seek(max(0, self.size - BLOCK_BYTES))
                content.update(stream.read(BLOCK_BYTES))
        except OSError as error:
            raise UserError(f"{self.display_name}: cannot be read: {error.strerror}") from None
        return self.identity() | {CONTENT_HASH: content.hexdigest()}


def warn(message: str) -> None:
    """Report a message as a Python warning, the default of every `report` parameter.

    It is shown with the line that called the package, not with one of the package.
    """
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(reword.get()(message), stacklevel=level)


def resolve(corpus: Sequence[str | Path], *, report: Report = warn) -> list[Source]:
    """Return the sources of files, folders, globs and hub names, in their order. A file that is
    named twice is read once.
    """
    if isinstance(corpus, (str, Path)):
        corpus = [corpus]
    sources: list[Source] = []
    seen: set[Path] = set()
    for given in corpus:
        for source in expand(str(given), report=report):
            if source.kind != "hub":
                if (real := source.path.resolve()) in seen:
                    report(f"{source.display_name}: named more than once; it is read once")
                    continue
                seen.add(real)
            sources.append(source)
    if not sources:
        where = ", ".join(map(str, corpus)) or "an empty list"
        raise UserError(
            f"no corpus: {where} holds nothing readable; give files, folders or globs of {READABLE}"
        )
    return sources


def expand(given: str, *, report: Report) -> Iterator[Source]:
    """Yield the sources of one input. A path on this disk takes precedence over a hub name."""
    path = Path(given).expanduser()
    if path.is_dir():
        yield from find_in_folder(path, report=report)
    elif path.exists():
        source = recognize_file(check_regular_file(path), name=path.name)
        if source is None:
            raise UserError(
                f"{given}: cannot tell what this file holds from its name; readable are {READABLE}"
            )
        yield source
    elif matches := sorted(glob.glob(str(path), recursive=True)):
        files = [Path(match) for match in matches if Path(match).is_file()]
        yield from recognize_files(files, given=given, report=report)
        folders = [match for match in matches if Path(match).is_dir() and "**" not in given]
        for folder in folders:
            yield from expand(folder, report=report)
    elif (name := HUB_NAME.fullmatch(given)) and file_kind(path) is None:
        yield find_on_hub(name["dataset"], name["config"], name["revision"])
    elif glob.has_magic(given):
        raise UserError(f"{given}: no file matches this pattern; looked in {Path.cwd()}")
    else:
        raise UserError(f"{given}: no such file or folder; looked in {Path.cwd()}")


def check_outside_corpus(output_dir: Path, corpus: Sequence[str | Path]) -> None:
    """Raise UserError if the output folder lies inside the corpus, where a second run would read
    it.
    """
    absolute = output_dir.resolve()
    for path in corpus:
        if Path(path).resolve() in (absolute, *absolute.parents):
            raise UserError(
                f"--output-dir {output_dir} lies inside the corpus {path} and would become part "
                "of it; name a folder elsewhere"
            )


def find_in_folder(folder: Path, *, report: Report) -> Iterator[Source]:
    """Yield the sources of all files below a folder that are not hidden. Links are followed, but
    each real folder is visited once, so that no link leads in circles.
    """
    visible: list[Path] = []
    visited: set[Path] = set()
    for path, folders, files in os.walk(folder, followlinks=True):
        real = Path(path).resolve()
        if real in visited:
            folders.clear()
            continue
        visited.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        visible += [Path(path) / name for name in files if not name.startswith(".")]
    for file in visible:
        if not file.exists():
            report(f"{file}: a link that leads nowhere; not read")
    regular = sorted(file for file in visible if file.is_file())
    yield from recognize_files(regular, given=str(folder), root=folder, report=report)


def recognize_files(
    files: Sequence[Path], *, given: str, root: Path | None = None, report: Report
) -> Iterator[Source]:
    """Yield the sources of the files that can be read, and report how many cannot. A stray README
    is no reason to refuse a whole folder.
    """
    unknown = []
    for path in files:
        name = path.relative_to(root or path.parent).as_posix()
        source = recognize_file(path, name=name)
        if source is None:
            unknown.append(path)
        else:
            yield source
    if unknown:
        report(
            f"{given}: {len(unknown)} of {len(files)} files left out, for example "
            f"{unknown[0].name}; readable are {READABLE}"
        )


def recognize_file(path: Path, *, name: str) -> Source | None:
    """Return the source of a file, or None if its suffix is unknown."""
    kind = file_kind(path)
    if kind is None:
        return None
    return Source(
        display_name=printable_path(path),
        name=name,
        kind=kind,
        path=path,
        compression=compression_suffix(path),
        size=path.stat().st_size,
    )


def check_regular_file(path: Path) -> Path:
    """Return the path of a regular file; raise UserError for a pipe, which cannot be read twice, to
    recognize it and to use it.
    """
    if not path.is_file():
        raise UserError(
            f"{printable_path(path)}: a pipe or a device; write what it gives into a file, and "
            "name that"
        )
    return path


def printable_path(path: Path) -> str:
    """Return a path as messages and manifests show it, on one line."""
    text = str(path)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{text!r}: a name that is not UTF-8; rename the file") from None
    if text.isprintable():
        return text
    return repr(text)


def file_kind(path: Path) -> Kind | None:
    """Return the kind of a file by its suffix, below a suffix of compression."""
    if not compression_suffix(path):
        return KINDS.get(path.suffix.lower())
    kind = KINDS.get(Path(path.stem).suffix.lower())
    if kind == "parquet":  # has a compression of its own, and must be seekable
        return None
    return kind


def compression_suffix(path: Path) -> str:
    """Return the suffix of a compressed file, or an empty string."""
    suffix = path.suffix.lower()
    if suffix in COMPRESSIONS:
        return suffix
    return ""


def find_on_hub(dataset: str, config: str | None, revision: str | None) -> Source:
    """Return the source of a data set, pinned to the current commit of its revision, so that a
    second run reads the same text.
    """
    try:
        import datasets  # noqa: F401
    except ImportError:
        raise UserError(
            f"{dataset}: no such file or folder, and reading it from the hub needs one more "
            "package: pip install datasets"
        ) from None
    from huggingface_hub import HfApi

    try:
        commit = HfApi().dataset_info(dataset, revision=revision, timeout=10).sha
    except Exception as error:  # every client of the hub raises types of its own
        reason = first_line(error)
        raise UserError(
            f"{dataset}: no such file or folder, and the hub does not answer for a data set of "
            f"that name ({reason}); without a network, fetch its .parquet files elsewhere, put "
            "them into a folder on this machine and give that folder"
        ) from None
    display_name = dataset
    if config:
        display_name = f"{dataset}:{config}"
    return Source(
        display_name=display_name, name=dataset, kind="hub", config=config, revision=commit
    )


@contextmanager
def open_on_hub(source: Source, split: str | None, *, name: str, remedy: str) -> Iterator[Any]:
    """Open a split as a stream: nothing of it is stored on this disk. Raise whatever goes wrong
    while it is read as an error of its user, who is told the remedy.
    """
    import datasets

    try:
        yield datasets.load_dataset(
            source.name, source.config, split=split, revision=source.revision, streaming=True
        )
    except UserError:
        raise
    except Exception as error:  # every builder and transport raises types of its own
        reason = first_line(error)
        raise UserError(f"{name}: cannot be read from the hub ({reason}); {remedy}") from None
