"""Encode examples as features, and cache those of large files on disk, bounded in size."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError

from electra import __version__, atomic
from electra.config import UserError
from electra.data.tables import Table
from electra.data.wordpiece import WordPiece
from electra.finetuning.recipe import FinetuneConfig
from electra.settings import fingerprint
from electra.tasks.classify import Classify
from electra.tasks.features import Features
from electra.tasks.task import AnyTask, Example

CACHED_FROM = 10_000  # examples; fewer are encoded as fast as they are looked up
MAX_CACHE_BYTES = 4_000_000_000
STALE_SECONDS = 3_600  # after which a file that is not complete belongs to a process that ended


@dataclass(frozen=True)
class FeatureEncoder:
    """Encodes the examples of one task, or reads their features from the cache."""

    task: AnyTask
    tokenizer: WordPiece
    config: FinetuneConfig
    say: Callable[[str], None]

    def encode(
        self, examples: Sequence[Example], tables: Sequence[Table], *, training: bool
    ) -> Features:
        """Return the features of the examples of these files. Report texts that were cut."""
        path = None
        if len(examples) >= CACHED_FROM:
            path = self.cache_path(tables, training=training)
        features = read_cached(path, self.say)
        if features is None:
            length = self.config.length
            features = self.task.features(
                examples, self.tokenizer, length=length, training=training
            )
            write_cached(features, path)
        self.report_cut(features, examples, tables)
        return features

    def cache_path(self, tables: Sequence[Table], *, training: bool) -> Path | None:
        """Return the path of these features; None where the code that encodes cannot be read."""
        code = code_fingerprint(self.task)
        if not code:
            return None
        key = {
            "version": __version__,
            "code": code,
            "task": self.task.settings(),
            "tokenizer": self.tokenizer.fingerprint,
            "length": self.config.length,
            "training": training,
            "max_train_examples": self.config.max_train_examples,
            "max_dev_examples": self.config.max_dev_examples,
            "dev_share": self.config.dev_share,
            "files": [table.fingerprint() for table in tables],
        }
        return cache_folder() / f"{fingerprint(key)}.safetensors"

    def report_cut(
        self, features: Features, examples: Sequence[Example], tables: Sequence[Table]
    ) -> None:
        """Report the texts that were cut, or refuse them where the settings say so."""
        cut = np.unique(features.examples[features.truncated])
        if not len(cut):
            return
        first, length = examples[cut[0]].where, self.config.length
        if self.config.too_long == "refuse":
            others = ""
            if len(cut) > 1:
                others = f", as {len(cut) - 1:,} more are"
            raise UserError(
                f"{first}: longer than {length} tokens{others}; raise --length, shorten the text, "
                "or let it be cut with --too-long cut"
            )
        remedy = ""
        if isinstance(self.task, Classify):
            remedy = "; --too-long window reads all of a text, in several rows"
        self.say(
            f"{', '.join(map(str, tables))}: {len(cut):,} of {len(examples):,} texts are longer "
            f"than {length} tokens and were cut, for example {first}{remedy}"
        )


def code_fingerprint(task: AnyTask) -> str:
    """Return a hash of the code that encodes; empty where it cannot be read, as in a notebook."""
    try:
        files = {
            Path(inspect.getfile(type(task))),
            *Path(inspect.getfile(Features)).parent.glob("*.py"),
        }
        return fingerprint(sorted(path.read_text(encoding="utf8") for path in files))
    except (OSError, TypeError):
        return ""


def cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "electra" / "features"


def read_cached(path: Path | None, say: Callable[[str], None]) -> Features | None:
    """Return the cached features; None where they are missing, or damaged, which is reported."""
    if path is None or not path.exists():
        return None
    try:
        features = Features.load(path)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        say(f"warning: {path}: cannot be used ({error}); the texts are encoded again")
        return None
    with suppress(OSError):  # the cache of another user
        os.utime(path)  # the least recently used are removed first
    return features


def write_cached(
    features: Features, path: Path | None, *, max_bytes: int = MAX_CACHE_BYTES
) -> None:
    """Write features to the cache, and remove the least recently used beyond its bound.

    A cache that cannot be written is ignored.
    """
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = atomic.sibling(path, str(os.getpid()))
        try:
            features.save(partial)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        remove_oldest(path.parent, max_bytes, keep=path)
    except (OSError, SafetensorError):
        return


def remove_oldest(folder: Path, max_bytes: int, *, keep: Path) -> None:
    """Remove the least recently used features beyond the bound, and what killed processes left."""
    for path in folder.glob(".*.safetensors.*"):
        if time.time() - path.stat().st_mtime > STALE_SECONDS:
            path.unlink(missing_ok=True)
    files = folder.glob("*.safetensors")
    size = 0
    for path in sorted(files, key=lambda path: path.stat().st_mtime, reverse=True):
        size += path.stat().st_size
        if size > max_bytes and path != keep:
            path.unlink(missing_ok=True)
