"""Which files a corpus is made of: every input is found and recognised before any long work begins."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from electra.config import UserError

Report = Callable[[str], None]
Kind = Literal["text", "jsonl", "parquet", "hub"]

KINDS: dict[str, Kind] = {
    ".txt": "text",
    ".jsonl": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}
COMPRESSIONS = (".gz", ".xz", ".bz2", ".zst")
READABLE = ".txt, .jsonl, .json (one object per line), .parquet; text also as .gz, .xz, .bz2, .zst"
HUB_NAME = re.compile(
    r"(?P<dataset>[\w.-]+/[\w.-]+)(:(?P<config>[\w.-]+))?(@(?P<revision>[\w./-]+))?"
)
CONTENT_HASH = (
    "sha256_of_blocks"  # the key of a fingerprint that only a reader of the file can know
)
BLOCK_BYTES = 64 * 1024
MAX_HASHED_BLOCKS = 4096  # so files up to 256 MB are read whole, and larger ones no more than that


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """One file of a corpus, or one data set on the hub."""

    display_name: str  # as messages name it
    name: str  # the same on every machine: the file's path below the input that named it
    kind: Kind
    path: Path = Path()
    compression: str = ""
    size: int = 0  # bytes on disk; 0 where nobody can know it
    config: str | None = None  # of a data set on the hub
    revision: str | None = None

    def identity(self) -> dict[str, Any]:
        """What can be told without reading it."""
        if self.kind == "hub":
            return {"name": self.name, "config": self.config, "revision": self.revision}
        return {"name": self.name, "size": self.size}

    def fingerprint(self) -> dict[str, Any]:
        """Content, by name, size and a hash: of all of a file, or of blocks spread over one too
        large to read twice.
        """
        if self.kind == "hub":
            return self.identity()
        try:
            with self.path.open("rb") as stream:
                content = hashlib.sha256()
                for start in range(
                    0, max(1, self.size), max(BLOCK_BYTES, self.size // MAX_HASHED_BLOCKS)
                ):
                    stream.seek(start)
                    content.update(stream.read(BLOCK_BYTES))
                stream.seek(max(0, self.size - BLOCK_BYTES))
                content.update(stream.read(BLOCK_BYTES))
        except OSError as error:
            raise UserError(f"{self.display_name}: cannot be read: {error.strerror}") from None
        return self.identity() | {CONTENT_HASH: content.hexdigest()}


def warn(message: str) -> None:
    """How something worth knowing is reported unless the caller passes a `report` of its own."""
    warnings.warn(message, stacklevel=3)


def resolve(inputs: Sequence[str | Path], *, report: Report = warn) -> list[Source]:
    """Every file behind files, folders, globs and hub names, in the order given; a file named twice
    is read once.
    """
    if isinstance(inputs, (str, Path)):
        inputs = [inputs]
    sources: list[Source] = []
    seen: set[Path] = set()
    for given in inputs:
        for source in expand(str(given), report=report):
            if source.kind != "hub":
                if (real := source.path.resolve()) in seen:
                    report(f"{source.display_name}: named more than once; it is read once")
                    continue
                seen.add(real)
            sources.append(source)
    if not sources:
        where = ", ".join(map(str, inputs)) or "an empty list"
        raise UserError(
            f"no corpus: {where} holds nothing readable; give files, folders or globs of {READABLE}"
        )
    return sources


def expand(given: str, *, report: Report) -> Iterator[Source]:
    """The sources behind one input. What lies on this disk always wins over a name on the hub."""
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
        yield from recognize_files(
            [Path(m) for m in matches if Path(m).is_file()], given=given, report=report
        )
        for folder in (m for m in matches if Path(m).is_dir() and "**" not in given):
            yield from expand(folder, report=report)
    elif (name := HUB_NAME.fullmatch(given)) and file_kind(path) is None:
        yield find_on_hub(name["dataset"], name["config"], name["revision"])
    else:
        nothing = (
            "no file matches this pattern" if glob.has_magic(given) else "no such file or folder"
        )
        raise UserError(f"{given}: {nothing}; looked in {Path.cwd()}")


def check_outside_corpus(output_dir: Path, given: Sequence[str | Path]) -> None:
    """What is made of a text must not become part of it."""
    place = output_dir.resolve()
    if inside := [each for each in given if Path(each).resolve() in (place, *place.parents)]:
        raise UserError(
            f"--output-dir {output_dir} lies inside the corpus {inside[0]} and would become part "
            "of it; "
            f"name a folder elsewhere"
        )


def find_in_folder(folder: Path, *, report: Report) -> Iterator[Source]:
    """Every file below that is not hidden, through links too; each real folder once, so no link
    leads in circles.
    """
    visible: list[Path] = []
    entered: set[Path] = set()
    for path, folders, files in os.walk(folder, followlinks=True):
        real = Path(path).resolve()
        folders[:] = (
            [] if real in entered else sorted(name for name in folders if not name.startswith("."))
        )
        visible += (
            []
            if real in entered
            else [Path(path) / name for name in files if not name.startswith(".")]
        )
        entered.add(real)
    for dangling in [file for file in visible if not file.exists()]:
        report(f"{dangling}: a link that leads nowhere; not read")
    yield from recognize_files(
        sorted(file for file in visible if file.is_file()),
        given=str(folder),
        below=folder,
        report=report,
    )


def recognize_files(
    files: Sequence[Path], *, given: str, below: Path | None = None, report: Report
) -> Iterator[Source]:
    """The files that can be read; a stray README is no reason to refuse a whole folder, but it is
    mentioned.
    """
    unknown = []
    for path in files:
        source = recognize_file(
            path, name=path.relative_to(below).as_posix() if below else path.name
        )
        if source is None:
            unknown.append(path)
        else:
            yield source
    if unknown:
        report(
            f"{given}: {len(unknown)} of {len(files)} files left out, {unknown[0].name} for one; "
            f"readable are {READABLE}"
        )


def recognize_file(path: Path, *, name: str) -> Source | None:
    kind = file_kind(path)
    if kind is None:
        return None
    compression = path.suffix.lower() if path.suffix.lower() in COMPRESSIONS else ""
    return Source(
        display_name=printable_path(path),
        name=name,
        kind=kind,
        path=path,
        compression=compression,
        size=path.stat().st_size,
    )


def check_regular_file(path: Path) -> Path:
    """A path that a plain file is at: what is read twice, to recognise it and to use it, cannot be
    a pipe.
    """
    if not path.is_file():
        raise UserError(
            f"{printable_path(path)}: a pipe or a device; write what it gives into a file, and name that"
        )
    return path


def printable_path(path: Path) -> str:
    """A path as messages and manifests name it, on one line."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise UserError(f"{str(path)!r}: a name that is not UTF-8; rename the file") from None
    return str(path) if str(path).isprintable() else repr(str(path))


def file_kind(path: Path) -> Kind | None:
    suffix = path.suffix.lower()
    if suffix not in COMPRESSIONS:
        return KINDS.get(suffix)
    kind = KINDS.get(Path(path.stem).suffix.lower())
    return None if kind == "parquet" else kind


def find_on_hub(dataset: str, config: str | None, revision: str | None) -> Source:
    """A data set pinned to the commit that its name means today, so that a second run reads the
    same text.
    """
    try:
        import datasets  # noqa: F401
    except ImportError:
        raise UserError(
            f"{dataset}: no such file or folder, and reading it from the hub needs one more "
            "package: "
            "pip install 'electra[hub]'"
        ) from None
    from huggingface_hub import HfApi

    try:
        commit = HfApi().dataset_info(dataset, revision=revision, timeout=10).sha
    except Exception as error:  # each of the hub's clients raises its own kinds
        reason = str(error).strip().partition("\n")[0]
        raise UserError(
            f"{dataset}: no such file or folder, and the hub does not answer for a data set of "
            "that name "
            f"({reason}); without a network, fetch its .parquet files elsewhere, put them into a "
            "folder "
            "on this machine and give that folder"
        ) from None
    display_name = dataset + (f":{config}" if config else "")
    return Source(
        display_name=display_name, name=dataset, kind="hub", config=config, revision=commit
    )
