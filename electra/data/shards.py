"""Shards: memory-mapped files of one padded example per row, and a manifest of how they were made.

train-00000.ids.npy   [rows, T]  uint16 (uint32 where the vocabulary needs it)
train-00000.ends.npy  [rows, 2]  the ends of the first and the last segment, each with its [SEP]
held-out-00000.…                 likewise, for documents that are never trained on
counts.npy            [V] int64  occurrences of each entry in the training rows
tokenizer/                       the tokenizer of the rows
inputs.jsonl                     name, size and content hash of each file of the corpus
manifest.json                    settings, counts, checksums, also its own; written last
part-00001-of-00004/…            replaces the files where several machines shared the work;
                                 `merging` then adds a manifest for all parts
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from electra.config import UserError
from electra.data.dataset import MemmapDataset, load_integers
from electra.data.manifest import (
    COUNTS,
    MANIFEST,
    PART,
    PROGRESS,
    SHARD_AGAIN,
    TOKENIZER,
    Manifest,
    ShardFile,
    merge_manifests,
    part_name,
    shard_command,
)
from electra.data.manifest_checks import check_content, check_manifest
from electra.data.sources import CONTENT_HASH
from electra.data.wordpiece import WordPiece
from electra.settings import differing_keys, fingerprint


@dataclass(frozen=True, kw_only=True)
class Shards:
    """A complete corpus of rows: one folder, or all parts of one.

    Attributes
    ----------
    folder
        The folder that holds the shards.
    manifest
        Numbers of rows and tokens, length of rows, tokenizer, corpus.
    parts
        The manifest of each part; of one alone where the corpus was not cut in parts.
    """

    folder: Path
    manifest: Manifest
    parts: dict[Path, Manifest]

    @classmethod
    def open(cls, folder: str | Path) -> Shards:
        """Read the manifests and compare their numbers with the sizes of all files; `verify` reads
        every byte.
        """
        folder = Path(folder)
        parts = {part: Manifest.read(part / MANIFEST) for part in find_parts(folder)}
        manifests = list(parts.values())
        for part, manifest in parts.items():
            check_same_corpus(part, manifest, first=manifests[0])
            check_manifest(part, manifest)
        return cls(folder=folder, manifest=merge_manifests(manifests), parts=parts)

    @property
    def length(self) -> int:
        return self.manifest.length

    @property
    def fingerprint(self) -> str:
        """Return a hash that is equal for folders with the same rows."""
        return fingerprint([file.sha256 for _, file in self.files])

    @property
    def files(self) -> list[tuple[Path, ShardFile]]:
        """Return every file of every part, with its path."""
        files = []
        for part, manifest in self.parts.items():
            files += [(part / file.name, file) for file in manifest.files]
        return files

    @cached_property
    def tokenizer(self) -> WordPiece:
        return load_tokenizer(*next(iter(self.parts.items())))

    @cached_property
    def train(self) -> MemmapDataset:
        return self.dataset("train-")

    @cached_property
    def held_out(self) -> MemmapDataset:
        return self.dataset("held-out-")

    @cached_property
    def counts(self) -> npt.NDArray[np.int64]:
        """Return [V], the occurrences of each entry in the text of the training rows."""
        counts = np.zeros(self.manifest.vocab_size, dtype=np.int64)
        for path, _ in self.files:
            if path.name != COUNTS:
                continue
            part_counts = load_integers(path)
            if part_counts.shape != counts.shape:
                raise UserError(
                    f"{path}: {part_counts.shape} numbers for a vocabulary of {len(counts)}; "
                    "run `electra shard` again with --overwrite"
                )
            counts += part_counts
        return counts

    def dataset(self, prefix: str) -> MemmapDataset:
        """Return the rows of the files whose names start with a prefix."""
        files = []
        for path, file in self.files:
            if path.name.startswith(prefix) and path.name.endswith(".ids.npy"):
                files.append((path, file.rows))
        return MemmapDataset(files)

    def verify(
        self,
        *,
        first: int = 0,
        every: int = 1,
        progress: Callable[[float], None] = lambda fraction: None,
    ) -> None:
        """Check every byte of every file against its manifest, and every tokenizer.

        Processes that share the work check every `every`th file from their `first` on; the total
        of tokens is only compared by one that checks all files.
        """
        if first == 0:
            for part, manifest in self.parts.items():
                load_tokenizer(part, manifest)
        files = self.files[first::every]
        tokens = 0
        for number, (path, file) in enumerate(files, start=1):
            tokens += check_content(path, file, self.manifest)
            progress(number / len(files))
        if every == 1 and tokens != self.manifest.tokens:
            raise UserError(
                f"{self.folder}: {MANIFEST} says {self.manifest.tokens:,} tokens, but the rows "
                f"hold {tokens:,}; {SHARD_AGAIN}"
            )


def load_tokenizer(folder: Path, manifest: Manifest) -> WordPiece:
    """Load the tokenizer of shards; raise UserError if it is not the one that cut them."""
    tokenizer = WordPiece.load(folder / TOKENIZER)
    checksums = manifest.tokenizer_files
    is_same = tokenizer.fingerprint == manifest.tokenizer
    if checksums:
        is_same = is_same and tokenizer.checksums(folder / TOKENIZER) == checksums
    if not is_same or tokenizer.size != manifest.vocab_size:
        raise UserError(
            f"{folder}: its tokenizer folder was changed after the shards were cut; run "
            "`electra shard` again with --overwrite"
        )
    return tokenizer


def find_parts(folder: Path) -> list[Path]:
    """Return the folder itself, or the folders of all of its parts."""
    if (folder / MANIFEST).is_file():
        return [folder]
    totals = find_divisions(folder)
    if not totals:
        raise no_shards(folder)
    if len(totals) > 1:
        raise UserError(
            f"{folder}: holds parts of {' and of '.join(map(str, totals))}; keep one division and "
            "remove the folders of the other"
        )
    return require_parts(folder, totals[0])


def no_shards(folder: Path) -> UserError:
    """Return the error for a path without shards, with what it is instead."""
    if folder.is_file():
        return UserError(
            f"{folder} is a file, not a folder of shards; text goes to --corpus, or is cut with "
            f"`electra shard {folder} --tokenizer DIR --output-dir DIR`"
        )
    state = "no such folder"
    if (folder / PROGRESS).is_file():
        state = "unfinished shards"
    elif folder.is_dir():
        state = "no shards"
    return UserError(
        f"{folder}: {state}; run `electra shard CORPUS --tokenizer DIR --output-dir {folder}`"
    )


def find_divisions(folder: Path) -> list[int]:
    """Return the numbers N of the parts part-i-of-N in a folder."""
    matches = (PART.fullmatch(path.name) for path in folder.glob("part-*"))
    return sorted({int(match[2]) for match in matches if match})


def require_parts(folder: Path, total: int) -> list[Path]:
    """Return the folders of all parts; raise UserError if some are missing or unfinished."""
    parts = [folder / part_name(number, total) for number in range(1, total + 1)]
    missing = []
    for number, part in enumerate(parts, start=1):
        if not (part / MANIFEST).is_file():
            missing.append(number)
    if not missing:
        return parts
    numbers = ", ".join(map(str, missing[:10]))
    if len(missing) > 10:
        numbers += " …"
    command = f"`electra shard … --part {missing[0]}/{total}`"
    if len(missing) > 1:
        command += " and the others"
    raise UserError(
        f"{folder}: {len(missing)} of {total} parts are missing or unfinished: {numbers}; "
        f"run {command}"
    )


def check_same_corpus(folder: Path, manifest: Manifest, *, first: Manifest) -> None:
    """Raise UserError if a part was cut with other settings or from another text than the first."""
    by_file = manifest.settings.by_file and first.settings.by_file
    settings = comparable_settings(manifest, by_file=by_file)
    first_settings = comparable_settings(first, by_file=by_file)
    changes = []
    for key in differing_keys(settings, first_settings):
        if key == "inputs":
            changes.append("its text is another")
        else:
            changes.append(f"{key} is {settings[key]!r}, there {first_settings[key]!r}")
    if changes:
        raise UserError(
            f"{folder}: not cut as {part_name(1, first.settings.parts)}: "
            f"{'; '.join(changes)}; run {shard_command(folder / MANIFEST)} with the settings and "
            "the text of the others"
        )


def comparable_settings(manifest: Manifest, *, by_file: bool) -> dict[str, Any]:
    """Return the settings that all parts have in common. With by_file, they leave out the content
    hashes: a part hashes only the files that it reads.
    """
    settings = dataclasses.asdict(manifest.settings) | {"part": 1}
    if by_file:
        for file in settings["inputs"]:
            file.pop(CONTENT_HASH, None)
    return settings
