"""Merge the parts of shards: check their settings and checksums, and write one manifest for all.

The rows stay in their files and in their order, so a run that was started on the parts can resume
on the merged shards.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

from electra import atomic
from electra.config import UserError
from electra.data.corpus import Progress, ignore_progress
from electra.data.manifest import MANIFEST, TOKENIZER, Manifest, ShardFile
from electra.data.shard_writer import manifest_warnings
from electra.data.shards import Shards
from electra.data.sources import CONTENT_HASH, Report, warn


def merge(
    output_dir: str | Path, *, progress: Progress = ignore_progress, report: Report = warn
) -> Manifest:
    """Check all parts in `output_dir` and write their common manifest; shards that were never
    divided are only checked.
    """
    folder = Path(output_dir)
    if (folder / MANIFEST).is_file() and Manifest.read(folder / MANIFEST).is_merged:
        (folder / MANIFEST).unlink()  # so that the parts are read and checked again
    shards = Shards.open(folder)
    shards.verify(progress=progress)
    if folder in shards.parts:
        return shards.manifest
    check_every_file_read_once(shards)
    new_warnings = manifest_warnings(shards.manifest)
    for message in new_warnings:
        report(message)
    atomic.check_links(folder / TOKENIZER, inside=folder)
    shards.tokenizer.copy_to(folder / TOKENIZER)
    manifest = dataclasses.replace(
        shards.manifest,
        warnings=common_warnings(shards) + new_warnings,
        files=relative_files(shards),
        tokenizer_files=shards.tokenizer.checksums(folder / TOKENIZER),
    )
    manifest.write(folder)
    return manifest


def common_warnings(shards: Shards) -> list[str]:
    """Return the warnings of the parts, without those that hold for a single part alone."""
    of_one_part: set[str] = set()
    for manifest in shards.parts.values():
        of_one_part.update(manifest_warnings(manifest))
    return [message for message in shards.manifest.warnings if message not in of_one_part]


def relative_files(shards: Shards) -> list[ShardFile]:
    """Return the files of all parts, named relative to the folder of the shards."""
    files = []
    for part, manifest in shards.parts.items():
        for file in manifest.files:
            files.append(dataclasses.replace(file, name=f"{part.name}/{file.name}"))
    return files


def check_every_file_read_once(shards: Shards) -> None:
    """Raise UserError unless, with by_file, exactly one part has read each file of the corpus.

    Each part chose its files by the sizes that it saw, which may have changed between parts.
    """
    if not shards.manifest.settings.by_file:
        return
    readers: Counter[int] = Counter()
    for part in shards.parts.values():
        readers.update(i for i, file in enumerate(part.settings.inputs) if CONTENT_HASH in file)
    for index, file in enumerate(shards.manifest.settings.inputs):
        if "size" in file and readers[index] != 1:
            raise UserError(
                f"{shards.folder}: {file['name']} was read by {readers[index]} parts, not by one; "
                "run `electra shard … --overwrite` for every part with the same version and the "
                "same text"
            )
