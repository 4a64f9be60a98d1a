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
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from electra.config import UserError
from electra.data.dataset import MemmapDataset, load_integers
from electra.data.manifest import (
    COUNTS,
    MANIFEST,
    PART,
    PROGRESS,
    TOKENIZER,
    Manifest,
    merge_manifests,
    part_name,
    shard_command,
)
from electra.data.sources import CONTENT_HASH
from electra.data.wordpiece import WordPiece
from electra.settings import differing_keys, fingerprint


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
                    raise UserError(f"{path}: {found}; run {shard_command(path)}")
        return cls(folder=folder, manifest=merge_manifests(list(parts.values())), parts=parts)

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
    def train(self) -> MemmapDataset:
        return self.rows("train-")

    @cached_property
    def held_out(self) -> MemmapDataset:
        return self.rows("held-out-")

    @cached_property
    def counts(self) -> npt.NDArray[np.int64]:
        """[V] how often each entry occurs in the text of the rows to train on."""
        counts = np.zeros(self.manifest.vocab_size, dtype=np.int64)
        for part, manifest in self.parts.items():
            for file in manifest.files:
                if Path(file.name).name == COUNTS:
                    found = load_integers(part / file.name)
                    if found.shape != counts.shape:
                        raise UserError(
                            f"{part / file.name}: {found.shape} numbers for a vocabulary of "
                            f"{len(counts)}; "
                            "run `electra shard` again with --overwrite"
                        )
                    counts += found
        return counts

    def rows(self, prefix: str) -> MemmapDataset:
        return MemmapDataset(
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
                    f"{shard_command(path)}"
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
                {key: value for key, value in file.items() if key != CONTENT_HASH}
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
            f"{shard_command(folder / MANIFEST)} with the settings and the text of the others"
        )
