"""Rows on disk: memory-mapped files of one padded example per row, and a manifest that says how
they were made.

train-00000.ids.npy   [rows, T]  uint16 (uint32 where the vocabulary needs it)
train-00000.ends.npy  [rows, 2]  where the first and where the last segment ends, each counting its [SEP]
held-out-00000.…                 likewise, documents never trained on
counts.npy            [V] int64  how often each entry occurs in the rows to train on
tokenizer/                       the tokenizer that cut them
manifest.json                    settings, counts, checksums; written last
part-00001-of-00004/…            instead of the files, when several machines shared the work; `merging` then adds
                                 a manifest for all of them
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import tokenize
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from electra.config import SettingError, UserError, build
from electra.data.examples import Ends, Ids
from electra.data.sources import CONTENT
from electra.data.wordpiece import WordPiece
from electra.files import parse_json, read_bounded_text
from electra.settings import differing_keys, fingerprint

FORMAT = 1
LAYOUT = "one example per row"
MANIFEST, PROGRESS, COUNTS, TOKENIZER = "manifest.json", "progress.json", "counts.npy", "tokenizer"
PART = re.compile(r"part-(\d+)-of-(\d+)")
BELOW = re.compile(
    r"(part-\d+-of-\d+/)?[\w.-]+\.npy"
)  # names of a manifest's files: none leaves the folder


@dataclass(frozen=True, kw_only=True, slots=True)
class File:
    """One file of rows' ids or ends, as it must be found."""

    name: str  # below the manifest's folder; after a merger with its part's in front
    rows: int
    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        if not BELOW.fullmatch(self.name) or self.rows < 0:
            raise SettingError("name", "with {rows} is not a file of this folder with rows", self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Everything that decides which bytes are written."""

    length: int
    seed: int
    held_out: float
    part: int
    parts: int
    shard_bytes: int
    text_field: str
    tokenizer: str  # its fingerprint
    inputs: list[
        dict[str, Any]
    ]  # name, size and fingerprint of each file; by file, the last of those it read alone
    by_file: bool = False  # documents are numbered within their file, not through the corpus
    layout: str = LAYOUT
    format: int = FORMAT


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a folder of shards holds and how it was made."""

    settings: Settings
    vocab_size: int
    documents: int
    held_out_documents: int
    rows: int
    held_out_rows: int
    tokens: int  # in the rows to train on, [CLS] and [SEP] included, padding not
    fill: float  # share of those rows that is not padding
    unknown: float  # share of their text that is [UNK]
    long_words: int
    files: list[File] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def length(self) -> int:
        return self.settings.length

    @property
    def tokenizer(self) -> str:
        return self.settings.tokenizer

    @property
    def is_merged(self) -> bool:
        """Whether it stands for parts, in folders of their own."""
        return any("/" in file.name for file in self.files)

    @classmethod
    def read(cls, path: Path) -> Manifest:
        try:
            values = parse_json(read_bounded_text(path))
            if values["settings"]["format"] != FORMAT or values["settings"]["layout"] != LAYOUT:
                raise UserError(
                    f"{path}: format {values['settings']['format']} "
                    f"({values['settings']['layout']}), but "
                    f"this version reads format {FORMAT} ({LAYOUT}); run `electra shard` again"
                )
            return build(cls, values, source=str(path))
        except UserError:
            raise
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UserError(
                f"{path}: not a manifest of shards ({error}); run `electra shard` again with "
                "--overwrite"
            ) from None


class Rows:
    """Rows over several memory-mapped files, numbered through."""

    def __init__(self, files: Sequence[tuple[Path, int]]) -> None:
        """`files`: each file of ids, whose ends lie beside it, and its number of rows."""
        self.paths = [path for path, _ in files]
        self.starts = np.cumsum([0, *(rows for _, rows in files)], dtype=np.int64)
        self.mapped: dict[Path, npt.NDArray[Any]] = {}

    def __len__(self) -> int:
        return int(self.starts[-1])

    def take(self, indices: npt.NDArray[np.int64]) -> tuple[Ids, Ends]:
        """ids [n, T] and ends [n, 2] of these rows, in this order."""
        return self.gather(indices, ".ids.npy"), self.gather(indices, ".ends.npy")

    def ends(self, indices: npt.NDArray[np.int64]) -> Ends:
        """ends [n, 2] of these rows, in this order."""
        return self.gather(indices, ".ends.npy")

    def gather(self, indices: npt.NDArray[np.int64], suffix: str) -> npt.NDArray[Any]:
        indices = np.asarray(indices, dtype=np.int64)
        if len(indices) and (indices.min() < 0 or indices.max() >= len(self)):
            raise IndexError(f"rows {indices.min()} to {indices.max()} of {len(self)}")
        which = np.searchsorted(self.starts, indices, side="right") - 1
        gathered: npt.NDArray[Any] | None = None
        for number in np.unique(which):
            here = which == number
            rows = self.open(self.paths[number], suffix)[indices[here] - self.starts[number]]
            if gathered is None:
                gathered = np.empty((len(indices), rows.shape[1]), dtype=rows.dtype)
            gathered[here] = rows
        return gathered if gathered is not None else np.empty((0, 0), dtype=np.uint16)

    def open(self, path: Path, suffix: str) -> npt.NDArray[Any]:
        path = path.with_name(path.name.removesuffix(".ids.npy") + suffix)
        if path not in self.mapped:
            self.mapped[path] = loaded(path, mmap_mode="r")
        return self.mapped[path]


@dataclass(frozen=True, kw_only=True)
class Shards:
    """A packed corpus, whole: one folder, or all parts of one."""

    folder: Path
    manifest: Manifest
    parts: dict[Path, Manifest]

    @classmethod
    def open(cls, folder: str | Path) -> Shards:
        """Manifests are read and file sizes checked; `verify` reads every byte."""
        folder = Path(folder)
        parts = {part: Manifest.read(part / MANIFEST) for part in part_folders(folder)}
        for part, manifest in parts.items():
            check_same_corpus(part, manifest, first=next(iter(parts.values())))
            for file in manifest.files:
                path = part / file.name
                size = path.stat().st_size if path.is_file() else None
                if size != file.bytes:
                    found = "is missing" if size is None else f"has {size} bytes, not {file.bytes}"
                    raise UserError(f"{path}: {found}; run {shard_again(path)}")
        return cls(folder=folder, manifest=combined(list(parts.values())), parts=parts)

    @property
    def length(self) -> int:
        return self.manifest.length

    @property
    def fingerprint(self) -> str:
        """Equal for folders that hold the same rows."""
        return fingerprint(
            [file.sha256 for manifest in self.parts.values() for file in manifest.files]
        )

    @cached_property
    def tokenizer(self) -> WordPiece:
        return check_tokenizer(next(iter(self.parts)), self.manifest.tokenizer)

    @cached_property
    def train(self) -> Rows:
        return self.rows("train-")

    @cached_property
    def held_out(self) -> Rows:
        return self.rows("held-out-")

    @cached_property
    def counts(self) -> npt.NDArray[np.int64]:
        """[V] how often each entry occurs in the text of the rows to train on."""
        counts = np.zeros(self.manifest.vocab_size, dtype=np.int64)
        for part, manifest in self.parts.items():
            for file in manifest.files:
                if Path(file.name).name == COUNTS:
                    found = loaded(part / file.name)
                    if found.shape != counts.shape:
                        raise UserError(
                            f"{part / file.name}: {found.shape} numbers for a vocabulary of "
                            f"{len(counts)}; "
                            "run `electra shard` again with --overwrite"
                        )
                    counts += found
        return counts

    def rows(self, prefix: str) -> Rows:
        return Rows(
            [
                (part / file.name, file.rows)
                for part, manifest in self.parts.items()
                for file in manifest.files
                if Path(file.name).name.startswith(prefix) and file.name.endswith(".ids.npy")
            ]
        )

    def verify(
        self,
        *,
        first: int = 0,
        every: int = 1,
        progress: Callable[[float], None] = lambda share: None,
    ) -> None:
        """Every file is as it was written; or every so manieth, where several processes share the
        reading. And every tokenizer is the one that cut the rows.
        """
        for part in self.parts if first == 0 else ():
            check_tokenizer(part, self.manifest.tokenizer)
        files = [
            (part / file.name, file)
            for part, manifest in self.parts.items()
            for file in manifest.files
        ]
        files = files[first::every]
        for number, (path, file) in enumerate(files, start=1):
            with path.open("rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
            if found != file.sha256:
                raise UserError(
                    f"{path}: damaged: its checksum is not the one in {MANIFEST}; run "
                    f"{shard_again(path)}"
                )
            progress(number / len(files))


def check_tokenizer(folder: Path, fingerprint: str) -> WordPiece:
    wordpiece = WordPiece.load(folder / TOKENIZER)
    if wordpiece.fingerprint != fingerprint:
        raise UserError(
            f"{folder}: its tokenizer folder was changed after the shards were cut; run "
            "`electra shard` again with --overwrite"
        )
    return wordpiece


def loaded(path: Path, *, mmap_mode: Literal["r"] | None = None) -> npt.NDArray[Any]:
    """An array of whole numbers. Objects would come as a pickle, which is never opened."""
    try:
        found: npt.NDArray[Any] = np.load(path, mmap_mode=mmap_mode, allow_pickle=False)
        if not isinstance(found, np.ndarray) or found.dtype.kind not in "iu":
            raise ValueError("not an array of whole numbers")
    except (
        OSError,
        ValueError,
        EOFError,
        tokenize.TokenError,
    ) as error:  # a header is read as Python's literals are
        raise UserError(
            f"{path}: damaged ({error}); run `electra shard` again with --overwrite"
        ) from None
    return found


def part_name(part: int, parts: int) -> str:
    return f"part-{part:05}-of-{parts:05}"


def shard_again(file: Path) -> str:
    """The command that makes a file anew: in a part's folder, that part alone."""
    if part := PART.fullmatch(file.parent.name):
        return f"`electra shard … --part {int(part[1])}/{int(part[2])} --overwrite`"
    return "`electra shard` again with --overwrite"


def part_folders(folder: Path) -> list[Path]:
    """The folder itself, or its parts, all of them."""
    if (folder / MANIFEST).is_file():
        return [folder]
    totals = divisions(folder)
    if not totals:
        if folder.is_file():
            raise UserError(
                f"{folder} is a file, not a folder of shards; text goes to --corpus, or is cut "
                "with "
                f"`electra shard {folder} --tokenizer DIR --output-dir DIR`"
            )
        state = "unfinished shards" if (folder / PROGRESS).is_file() else "no shards"
        raise UserError(
            f"{folder}: {state if folder.is_dir() else 'no such folder'}; run `electra shard "
            "CORPUS "
            f"--tokenizer DIR --output-dir {folder}`"
        )
    if len(totals) > 1:
        raise UserError(
            f"{folder}: holds parts of {' and of '.join(map(str, totals))}; keep one division and "
            "remove the folders of the other"
        )
    return parts_of(folder, totals[0])


def divisions(folder: Path) -> list[int]:
    """In how many parts the work was divided that lies here."""
    return sorted(
        {int(part[2]) for path in folder.glob("part-*") if (part := PART.fullmatch(path.name))}
    )


def parts_of(folder: Path, total: int) -> list[Path]:
    """Every part of this division, finished."""
    wanted = [folder / part_name(number, total) for number in range(1, total + 1)]
    if missing := [
        number for number, part in enumerate(wanted, start=1) if not (part / MANIFEST).is_file()
    ]:
        shown = ", ".join(map(str, missing[:10])) + (" …" if len(missing) > 10 else "")
        raise UserError(
            f"{folder}: {len(missing)} of {total} parts are missing or unfinished: {shown}; run "
            "`electra "
            f"shard … --part {missing[0]}/{total}`{' and the others' if len(missing) > 1 else ''}"
        )
    return wanted


def check_same_corpus(folder: Path, manifest: Manifest, *, first: Manifest) -> None:
    """Everything but the part is alike; of files that another part read, what can be told without
    reading them.
    """
    ours, theirs = (dataclasses.asdict(each.settings) | {"part": 1} for each in (manifest, first))
    if ours["by_file"] and theirs["by_file"]:
        for each in (ours, theirs):
            each["inputs"] = [
                {key: value for key, value in file.items() if key != CONTENT}
                for file in each["inputs"]
            ]
    if keys := differing_keys(ours, theirs):
        shown = "; ".join(
            f"{key} is {ours[key]!r}, there {theirs[key]!r}"
            if key != "inputs"
            else "its text is another"
            for key in keys
        )
        raise UserError(
            f"{folder}: cut otherwise than {part_name(1, first.settings.parts)}: {shown}; run "
            f"{shard_again(folder / MANIFEST)} with the settings and the text of the others"
        )


def combined(manifests: list[Manifest]) -> Manifest:
    """One manifest for all parts: counts added up, shares weighed by the rows they are shares of."""
    if len(manifests) == 1:
        return manifests[0]
    added = {
        name: sum(getattr(m, name) for m in manifests)
        for name in (
            "documents",
            "held_out_documents",
            "rows",
            "held_out_rows",
            "tokens",
            "long_words",
        )
    }
    unknown = sum(m.unknown * m.tokens for m in manifests) / max(1, added["tokens"])
    fill = added["tokens"] / max(1, added["rows"] * manifests[0].length)
    # By file, the part that read a file knows most of it.
    inputs = [
        max(told, key=len) for told in zip(*(m.settings.inputs for m in manifests), strict=True)
    ]
    settings = dataclasses.replace(manifests[0].settings, part=1, parts=1, inputs=inputs)
    return dataclasses.replace(
        manifests[0],
        **added,
        unknown=round(unknown, 6),
        fill=round(fill, 4),
        files=[],
        settings=settings,
        warnings=list(dict.fromkeys(w for m in manifests for w in m.warnings)),
    )
