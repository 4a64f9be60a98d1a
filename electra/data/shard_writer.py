"""Write rows to disk in shards, each complete or absent, with a record of the progress."""

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
from electra.data.dataset import load_integers
from electra.data.examples import LONG_WORD, Ends, Examples, Ids
from electra.data.manifest import (
    COUNTS,
    MANIFEST,
    PROGRESS,
    TOKENIZER,
    Manifest,
    ShardFile,
    ShardSettings,
)
from electra.data.manifest_checks import check_checksum
from electra.data.options import OtherSettingsError, describe_changes
from electra.data.records import INPUTS, read_inputs, read_record, write_inputs, write_record
from electra.data.sources import Report
from electra.data.wordpiece import MAX_WORD_CHARACTERS, WordPiece

MAX_UNKNOWN = 0.01  # share of [UNK] in the text without a warning
MIN_FILL = 0.5  # share of the rows that is not padding without a warning
MANY_DOCUMENTS = 100  # fewer say little about the length of documents


@dataclass(kw_only=True)
class State:
    """What is on disk: all that an interrupted run needs to continue."""

    blocks: int = 0  # of the corpus, of this part or another
    shards: int = 0
    documents: int = 0
    held_out_documents: int = 0
    long_words: int = 0
    tokens: int = 0
    files: list[ShardFile] = field(default_factory=list)


class ShardWriter:
    """Collects rows and writes a shard whenever there are enough of them. Training and held-out
    rows are written together, so that a shard holds all rows of consecutive blocks.
    """

    def __init__(
        self, folder: Path, settings: ShardSettings, tokenizer: WordPiece, state: State
    ) -> None:
        self.folder = folder
        self.settings = settings
        self.tokenizer = tokenizer
        self.state = state
        self.buffer: list[Examples] = []
        self.buffer_bytes = 0
        self.counts = np.zeros(tokenizer.size, dtype=np.int64)
        self.inputs = write_inputs(folder, settings.inputs)

    @classmethod
    def open(cls, folder: Path, settings: ShardSettings, tokenizer: WordPiece) -> ShardWriter:
        """Start writing shards in a folder, or continue after the last complete one."""
        atomic.make_folder(folder)
        state = State()
        if (folder / PROGRESS).is_file():
            state, saved_settings = read_progress(folder / PROGRESS)
            check_same_settings(folder, settings, saved_settings)
        elif strangers := find_rows(folder):
            raise UserError(
                f"{folder}: holds {strangers[0].name} but neither {MANIFEST} nor {PROGRESS}; "
                "choose another folder, or start over with --overwrite"
            )
        writer = cls(folder, settings, tokenizer, state)
        for file in state.files:
            check_checksum(folder / file.name, file)
            if file.name.startswith("train-") and file.name.endswith(".ids.npy"):
                writer.count(load_integers(folder / file.name, mmap_mode="r"))
        if not state.shards:
            tokenizer.copy_to(folder / TOKENIZER)
            writer.save_progress()
        return writer

    def add(self, examples: Examples, number: int) -> None:
        """Add the rows of block `number`."""
        self.buffer.append(examples)
        self.buffer_bytes += examples.train[0].nbytes + examples.held_out[0].nbytes
        self.state.documents += examples.documents
        self.state.held_out_documents += examples.held_out_documents
        self.state.long_words += examples.long_words
        self.state.blocks = number + 1
        if self.buffer_bytes >= self.settings.shard_bytes:
            self.flush()

    @property
    def holds_rows(self) -> bool:
        """Whether any row is written or collected."""
        collected = (len(block.train[0]) + len(block.held_out[0]) for block in self.buffer)
        return bool(self.state.files) or any(collected)

    def flush(self) -> None:
        """Write the collected rows as one shard."""
        if not self.buffer:
            return
        ids, ends = self.write_rows("train", [examples.train for examples in self.buffer])
        self.count(ids)
        self.state.tokens += int(ends[:, 1].sum(dtype=np.int64))
        self.write_rows("held-out", [examples.held_out for examples in self.buffer])
        self.state.shards += 1
        self.buffer, self.buffer_bytes = [], 0
        self.save_progress()

    def write_rows(self, prefix: str, rows: list[tuple[Ids, Ends]]) -> tuple[Ids, Ends]:
        """Write and return the ids and ends of rows, if there are any."""
        ids = np.concatenate([block_ids for block_ids, _ in rows])
        ends = np.concatenate([block_ends for _, block_ends in rows])
        if len(ids):
            stem = f"{prefix}-{self.state.shards:05}"
            self.state.files.append(self.write_array(f"{stem}.ids.npy", ids))
            self.state.files.append(self.write_array(f"{stem}.ends.npy", ends))
        return ids, ends

    def write_array(self, name: str, rows: npt.NDArray[Any]) -> ShardFile:
        """Write an array atomically and return its entry in the manifest."""
        buffer = io.BytesIO()
        np.save(buffer, rows, allow_pickle=False)
        content = buffer.getbuffer()
        atomic.write(self.folder / name, content)
        checksum = hashlib.sha256(content).hexdigest()
        return ShardFile(name=name, rows=len(rows), bytes=len(content), sha256=checksum)

    def save_progress(self) -> None:
        """Record the settings and the complete shards."""
        progress = {
            "settings": self.settings.to_values(self.inputs),
            "state": dataclasses.asdict(self.state),
        }
        write_record(self.folder / PROGRESS, progress)

    def count(self, ids: npt.NDArray[Any]) -> None:
        """Count the occurrences of every id."""
        self.counts += np.bincount(ids.ravel(), minlength=len(self.counts))

    def finish(self, warnings: list[str], report: Report) -> Manifest:
        """Write the last shard, the token counts and the manifest."""
        self.flush()
        # The text holds none of these; pad_rows adds them.
        special = [self.tokenizer.pad, self.tokenizer.cls, self.tokenizer.sep]
        self.counts[special] = 0
        self.state.files.append(self.write_array(COUNTS, self.counts))
        manifest = self.manifest()
        for message in manifest_warnings(manifest):
            warnings.append(message)
            report(message)
        self.tokenizer.copy_to(self.folder / TOKENIZER)  # again: its checksums are of these bytes
        tokenizer_files = self.tokenizer.checksums(self.folder / TOKENIZER)
        manifest = dataclasses.replace(manifest, warnings=warnings, tokenizer_files=tokenizer_files)
        manifest.write(self.folder)
        (self.folder / PROGRESS).unlink()
        return manifest

    def manifest(self) -> Manifest:
        """Return the manifest of what has been written so far."""
        state = self.state
        rows = count_rows(state.files, "train-")
        unknown = int(self.counts[self.tokenizer.unk]) / max(1, int(self.counts.sum()))
        return Manifest(
            settings=self.settings,
            vocab_size=self.tokenizer.size,
            documents=state.documents,
            held_out_documents=state.held_out_documents,
            rows=rows,
            held_out_rows=count_rows(state.files, "held-out-"),
            tokens=state.tokens,
            fill=round(state.tokens / max(1, rows * self.settings.length), 4),
            unknown=round(unknown, 6),
            long_words=state.long_words,
            files=state.files,
        )


def read_progress(path: Path) -> tuple[State, dict[str, Any]]:
    """Return the state and the settings of an interrupted run."""
    try:
        progress = read_record(path, remedy="")
        state, settings = dict(progress["state"]), dict(progress["settings"])
        state["files"] = [ShardFile(**file) for file in state["files"]]
        if isinstance(settings["inputs"], dict):
            settings["inputs"] = read_inputs(path.parent, settings["inputs"], remedy="")
        return State(**state), settings
    except (ValueError, TypeError, LookupError):
        raise UserError(f"{path} is damaged; start over with --overwrite") from None


def count_rows(files: list[ShardFile], prefix: str) -> int:
    """Count the rows in the files whose names start with a prefix."""
    return sum(file.rows for file in files if file.name.startswith(prefix) and ".ids." in file.name)


def remove_shards(folder: Path) -> None:
    """Remove the files that a ShardWriter writes, and first the manifest that lists them."""
    for name in (MANIFEST, PROGRESS, COUNTS, INPUTS):
        (folder / name).unlink(missing_ok=True)
    for path in find_rows(folder):
        path.unlink()


def find_rows(folder: Path) -> list[Path]:
    """Return the files of rows in a folder."""
    return [*folder.glob("train-*.npy"), *folder.glob("held-out-*.npy")]


def check_same_settings(folder: Path, settings: ShardSettings, saved: dict[str, Any]) -> None:
    """Raise UserError if the shards in a folder were made with other settings."""
    current = dataclasses.asdict(settings)
    # Absent in shards made before there was a choice.
    saved = {"by_file": False, "document": "blank-line"} | saved
    if changes := describe_changes(current, saved):
        raise OtherSettingsError(
            f"{folder}: holds shards with other settings: {changes}",
            "choose another folder, or start over with --overwrite",
        )


def manifest_warnings(manifest: Manifest) -> list[str]:
    """Return what a user should know before spending days on these shards."""
    messages = []
    if manifest.unknown > MAX_UNKNOWN:
        messages.append(
            f"{manifest.unknown:.1%} of the text is [UNK]; if the tokenizer was made for another "
            "language, train a vocabulary on this corpus with `electra vocab`; if it was made for "
            f"this one, look for words of more than {MAX_WORD_CHARACTERS} characters, which become "
            "[UNK], or choose a larger --vocab-size for a script of many characters"
        )
    if manifest.long_words:
        messages.append(
            f"runs of more than {LONG_WORD} characters without white space hold words that became "
            f"[UNK], {manifest.long_words} in all: segment such text first; encoded data is best "
            "left out"
        )
    if manifest.fill < MIN_FILL and manifest.documents >= MANY_DOCUMENTS:
        messages.append(short_documents_warning(manifest))
    more_documents = "separate documents by blank lines"
    if manifest.settings.document == "file":
        more_documents = "write one document a file, or leave out --document file"
    share = manifest.held_out_rows / max(1, manifest.rows + manifest.held_out_rows)
    if share > max(0.1, 2 * manifest.settings.held_out):
        messages.append(
            f"{share:.0%} of the rows are held out, because there are only {manifest.documents} "
            f"documents; {more_documents}, or set --held-out 0"
        )
    elif manifest.settings.held_out and not manifest.held_out_rows and manifest.settings.parts == 1:
        messages.append(
            f"nothing is held out, because there is only one document; {more_documents}"
        )
    return messages


def short_documents_warning(manifest: Manifest) -> str:
    """Return the warning that most of the rows is padding, which costs time in every step."""
    mean = manifest.tokens / max(1, manifest.documents - manifest.held_out_documents)
    remedy = "join texts that belong together, or shorten the rows with --length"
    names = [str(file.get("name", "")) for file in manifest.settings.inputs]
    if manifest.settings.document == "blank-line" and any(".txt" in name for name in names):
        remedy = "paragraphs of one .txt file become one document with --document file"
        if len(names) == 1:  # of a single document nothing can be held out
            remedy += ", once the text is divided into several files"
    return (
        f"rows are {manifest.fill:.0%} full: documents are short, {mean:.0f} tokens on average, "
        f"where a row has {manifest.length}; {remedy}"
    )
