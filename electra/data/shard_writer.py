"""Rows reach the disk in shards, each whole or absent, with a note of how far the work has come."""

from __future__ import annotations

import dataclasses
import hashlib
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from electra import atomic
from electra.config import UserError
from electra.data.examples import LONG_WORD, Cuttings
from electra.data.manifest import (
    COUNTS,
    MANIFEST,
    PROGRESS,
    TOKENIZER,
    Manifest,
    ShardFile,
    ShardSettings,
)
from electra.data.sources import Report
from electra.data.wordpiece import WordPiece
from electra.files import parse_json, read_bounded_text
from electra.settings import differing_keys

UNKNOWN_ALARM = 0.01


@dataclass(kw_only=True)
class State:
    """What is on disk for good: all that a killed run needs to go on."""

    blocks: int = 0  # of the corpus, ours or another part's
    shards: int = 0
    documents: int = 0
    held_out_documents: int = 0
    long_words: int = 0
    tokens: int = 0
    files: list[ShardFile] = field(default_factory=list)


class Writer:
    """Gathers rows, and writes a shard whenever there are enough of them: rows to train on and rows
    held out together, so that a shard is everything that a run of blocks gave.
    """

    def __init__(
        self, folder: Path, settings: ShardSettings, wordpiece: WordPiece, state: State
    ) -> None:
        self.folder, self.settings, self.wordpiece, self.state = folder, settings, wordpiece, state
        self.gathered: list[Cuttings] = []
        self.gathered_bytes = 0
        self.counts = np.zeros(wordpiece.size, dtype=np.int64)

    @classmethod
    def begin(cls, folder: Path, settings: ShardSettings, wordpiece: WordPiece) -> Writer:
        folder.mkdir(parents=True, exist_ok=True)
        state = State()
        if (folder / PROGRESS).is_file():
            try:
                saved = parse_json(read_bounded_text(folder / PROGRESS))
                before = saved["settings"]
                state = State(
                    **saved["state"]
                    | {"files": [ShardFile(**file) for file in saved["state"]["files"]]}
                )
            except (OSError, ValueError, TypeError, LookupError):
                raise UserError(
                    f"{folder / PROGRESS} is damaged; start over with --overwrite"
                ) from None
            check_same_settings(folder, settings, before)
        elif strangers := rows_in(folder):
            raise UserError(
                f"{folder}: holds {strangers[0].name} but neither {MANIFEST} nor {PROGRESS}; "
                "choose "
                "another folder, or start over with --overwrite"
            )
        writer = cls(folder, settings, wordpiece, state)
        for file in state.files:
            if file.name.startswith("train-") and file.name.endswith(".ids.npy"):
                writer.count(np.load(folder / file.name, mmap_mode="r", allow_pickle=False))
        if not state.shards:
            wordpiece.copy_to(folder / TOKENIZER)
            writer.save()
        return writer

    def add(self, cuttings: Cuttings, number: int) -> None:
        self.gathered.append(cuttings)
        self.gathered_bytes += cuttings.train[0].nbytes + cuttings.held_out[0].nbytes
        self.state.documents += cuttings.documents
        self.state.held_out_documents += cuttings.held_out_documents
        self.state.long_words += cuttings.long_words
        self.state.blocks = number + 1
        if self.gathered_bytes >= self.settings.shard_bytes:
            self.flush()

    def flush(self) -> None:
        if not self.gathered:
            return
        for name in ("train", "held_out"):
            ids = np.concatenate([getattr(cuttings, name)[0] for cuttings in self.gathered])
            ends = np.concatenate([getattr(cuttings, name)[1] for cuttings in self.gathered])
            if len(ids):
                stem = f"{name.replace('_', '-')}-{self.state.shards:05}"
                self.state.files += [
                    self.write(f"{stem}.ids.npy", ids),
                    self.write(f"{stem}.ends.npy", ends),
                ]
            if name == "train":
                self.count(ids)
                self.state.tokens += int(ends[:, 1].sum(dtype=np.int64))
        self.state.shards += 1
        self.gathered, self.gathered_bytes = [], 0
        self.save()

    def write(self, name: str, rows: npt.NDArray[Any]) -> ShardFile:
        buffer = io.BytesIO()
        np.save(buffer, rows, allow_pickle=False)
        content = buffer.getbuffer()
        atomic.write(self.folder / name, content)
        return ShardFile(
            name=name,
            rows=len(rows),
            bytes=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
        )

    def save(self) -> None:
        atomic.write_json(
            self.folder / PROGRESS,
            {
                "settings": dataclasses.asdict(self.settings),
                "state": dataclasses.asdict(self.state),
            },
        )

    def count(self, ids: npt.NDArray[Any]) -> None:
        self.counts += np.bincount(ids.ravel(), minlength=len(self.counts))

    def finish(self, warnings: list[str], report: Report) -> Manifest:
        self.flush()
        special = [self.wordpiece.pad, self.wordpiece.cls, self.wordpiece.sep]
        self.counts[special] = 0  # text holds none of them; these are ours
        self.state.files.append(self.write(COUNTS, self.counts))
        manifest = self.manifest()
        for message in manifest_warnings(manifest):
            warnings.append(message)
            report(message)
        manifest = dataclasses.replace(manifest, warnings=warnings)
        atomic.write_json(self.folder / MANIFEST, dataclasses.asdict(manifest))
        (self.folder / PROGRESS).unlink()
        return manifest

    def manifest(self) -> Manifest:
        state = self.state
        rows, held_out_rows = (
            sum(f.rows for f in state.files if f.name.startswith(prefix) and ".ids." in f.name)
            for prefix in ("train-", "held-out-")
        )
        return Manifest(
            settings=self.settings,
            vocab_size=self.wordpiece.size,
            documents=state.documents,
            held_out_documents=state.held_out_documents,
            rows=rows,
            held_out_rows=held_out_rows,
            tokens=state.tokens,
            fill=round(state.tokens / max(1, rows * self.settings.length), 4),
            unknown=round(int(self.counts[self.wordpiece.unk]) / max(1, int(self.counts.sum())), 6),
            long_words=state.long_words,
            files=state.files,
        )


def clear(folder: Path) -> None:
    """Only what we would have written goes, and first that which vouches for the rest."""
    for name in (MANIFEST, PROGRESS, COUNTS):
        (folder / name).unlink(missing_ok=True)
    for path in rows_in(folder):
        path.unlink()


def rows_in(folder: Path) -> list[Path]:
    return [*folder.glob("train-*.npy"), *folder.glob("held-out-*.npy")]


def check_same_settings(folder: Path, settings: ShardSettings, made_with: dict[str, Any]) -> None:
    ours = dataclasses.asdict(settings)
    made_with = {"by_file": False} | made_with  # as all were before there was a choice
    if keys := differing_keys(ours, made_with):
        shown = "; ".join(
            f"{key} was {made_with.get(key)!r}, now {ours.get(key)!r}"
            if key != "inputs"
            else "the text is another"
            for key in keys
        )
        raise UserError(
            f"{folder}: holds shards made otherwise: {shown}; choose another folder, or start "
            "over with "
            "--overwrite"
        )


def manifest_warnings(manifest: Manifest) -> list[str]:
    """What a user should hear before spending days on these shards."""
    found = []
    if manifest.unknown > UNKNOWN_ALARM:
        found.append(
            f"{manifest.unknown:.1%} of the text is [UNK]: the tokenizer does not know this "
            "language or "
            "script; train a vocabulary on this corpus with `electra vocab`"
        )
    if manifest.long_words:
        found.append(
            f"{manifest.long_words} words of more than {LONG_WORD} characters became [UNK]: text "
            "without "
            "white space must be segmented first; encoded data is best left out"
        )
    share = manifest.held_out_rows / max(1, manifest.rows + manifest.held_out_rows)
    if share > max(0.1, 2 * manifest.settings.held_out):
        found.append(
            f"{share:.0%} of the rows are held out, because there are only {manifest.documents} "
            "documents; "
            "separate documents by blank lines, or set held_out=0"
        )
    elif manifest.settings.held_out and not manifest.held_out_rows and manifest.settings.parts == 1:
        found.append(
            "nothing is held out, because there is only one document; separate documents by blank "
            "lines"
        )
    return found
