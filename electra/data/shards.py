"""Rows on disk: memory-mapped files of one padded example per row, and a manifest that says how they were made.

    train-00000.ids.npy   [rows, T]  uint16 (uint32 where the vocabulary needs it)
    train-00000.ends.npy  [rows, 2]  where the first and where the last segment ends, each counting its [SEP]
    held-out-00000.…                 likewise, documents never trained on
    counts.npy            [V] int64  how often each entry occurs in the rows to train on
    tokenizer/                       the tokenizer that cut them
    manifest.json                    settings, counts, checksums; written last
    part-00001-of-00004/…            instead of the files, when several machines shared the work
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from electra.config import UserError, differences, fingerprint
from electra.data.examples import Ends, Ids
from electra.data.wordpiece import WordPiece

FORMAT = 1
LAYOUT = "one example per row"
MANIFEST, PROGRESS, COUNTS, TOKENIZER = "manifest.json", "progress.json", "counts.npy", "tokenizer"


@dataclass(frozen=True, kw_only=True, slots=True)
class File:
    """One file of rows' ids or ends, as it must be found."""

    name: str
    rows: int
    bytes: int
    sha256: str


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
    inputs: list[dict[str, Any]]  # name, size and fingerprint of each file
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

    @classmethod
    def read(cls, path: Path) -> Manifest:
        try:
            values = json.loads(path.read_text(encoding="utf8"))
            if values["settings"]["format"] != FORMAT or values["settings"]["layout"] != LAYOUT:
                raise UserError(f"{path}: format {values['settings']['format']} ({values['settings']['layout']}), but "
                                f"this version reads format {FORMAT} ({LAYOUT}); run `electra shard` again")
            return cls(**values | {"settings": Settings(**values["settings"]),
                                   "files": [File(**file) for file in values["files"]]})
        except (ValueError, TypeError, KeyError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"{path}: not a manifest of shards ({error}); run `electra shard` again with "
                            "--overwrite") from None


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
            self.mapped[path] = np.load(path, mmap_mode="r", allow_pickle=False)
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
                    raise UserError(f"{path}: {found}; run `electra shard` again with --overwrite")
        return cls(folder=folder, manifest=combined(list(parts.values())), parts=parts)

    @property
    def length(self) -> int:
        return self.manifest.length

    @property
    def fingerprint(self) -> str:
        """Equal for folders that hold the same rows."""
        return fingerprint([file.sha256 for manifest in self.parts.values() for file in manifest.files])

    @cached_property
    def tokenizer(self) -> WordPiece:
        wordpiece = WordPiece.load(next(iter(self.parts)) / TOKENIZER)
        if wordpiece.fingerprint != self.manifest.tokenizer:
            raise UserError(f"{self.folder}: its tokenizer folder was changed after the shards were cut; run "
                            "`electra shard` again with --overwrite")
        return wordpiece

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
        for part in self.parts:
            counts += np.load(part / COUNTS, allow_pickle=False)
        return counts

    def rows(self, prefix: str) -> Rows:
        return Rows([(part / file.name, file.rows) for part, manifest in self.parts.items() for file in manifest.files
                     if file.name.startswith(prefix) and file.name.endswith(".ids.npy")])

    def verify(self) -> None:
        """Every file is as it was written."""
        for part, manifest in self.parts.items():
            for file in manifest.files:
                with (part / file.name).open("rb") as stream:
                    found = hashlib.file_digest(stream, "sha256").hexdigest()
                if found != file.sha256:
                    raise UserError(f"{part / file.name}: damaged: its checksum is not the one in {MANIFEST}; run "
                                    "`electra shard` again with --overwrite")


def part_name(part: int, parts: int) -> str:
    return f"part-{part:05}-of-{parts:05}"


def part_folders(folder: Path) -> list[Path]:
    """The folder itself, or its parts, all of them."""
    if (folder / MANIFEST).is_file():
        return [folder]
    begun = sorted(folder.glob("part-*-of-*"))
    if not begun:
        if folder.is_file():
            raise UserError(f"{folder} is a file, not a folder of shards; text goes to --corpus, or is cut with "
                            f"`electra shard {folder} --tokenizer DIR --output-dir DIR`")
        state = "unfinished shards" if (folder / PROGRESS).is_file() else "no shards"
        raise UserError(f"{folder}: {state if folder.is_dir() else 'no such folder'}; run `electra shard CORPUS "
                        f"--tokenizer DIR --output-dir {folder}`")
    totals = {int(part.name.rpartition("-")[2]) for part in begun}
    if len(totals) > 1:
        raise UserError(f"{folder}: holds parts of {' and of '.join(map(str, sorted(totals)))}; keep one division and "
                        "remove the folders of the other")
    total = totals.pop()
    wanted = [folder / part_name(number, total) for number in range(1, total + 1)]
    if missing := [number for number, part in enumerate(wanted, start=1) if not (part / MANIFEST).is_file()]:
        raise UserError(f"{folder}: {len(missing)} of {total} parts are missing or unfinished; run `electra shard … "
                        f"--part {missing[0]}/{total}`{' and the others' if len(missing) > 1 else ''}")
    return wanted


def check_same_corpus(folder: Path, manifest: Manifest, *, first: Manifest) -> None:
    ours = dataclasses.asdict(manifest.settings) | {"part": 1}
    theirs = dataclasses.asdict(first.settings) | {"part": 1}
    if keys := differences(ours, theirs):
        raise UserError(f"{folder}: cut with another {', '.join(keys)} than {part_name(1, first.settings.parts)}; run "
                        "`electra shard` for the parts again with the same settings")


def combined(manifests: list[Manifest]) -> Manifest:
    """One manifest for all parts: counts added up, shares weighed by the rows they are shares of."""
    if len(manifests) == 1:
        return manifests[0]
    added = {name: sum(getattr(m, name) for m in manifests)
             for name in ("documents", "held_out_documents", "rows", "held_out_rows", "tokens", "long_words")}
    unknown = sum(m.unknown * m.tokens for m in manifests) / max(1, added["tokens"])
    fill = added["tokens"] / max(1, added["rows"] * manifests[0].length)
    return dataclasses.replace(manifests[0], **added, unknown=round(unknown, 6), fill=round(fill, 4),
                               settings=dataclasses.replace(manifests[0].settings, part=1, parts=1), files=[],
                               warnings=list(dict.fromkeys(w for m in manifests for w in m.warnings)))
