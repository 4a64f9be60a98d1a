"""Parts become one: checked against each other and byte by byte, then vouched for by a single
manifest.

The rows stay where they are, in the order in which the parts alone are read: a run that has begun
goes on after it.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

from electra import atomic
from electra.config import UserError
from electra.data.corpus import Progress, ignore_progress
from electra.data.manifest import MANIFEST, TOKENIZER, Manifest
from electra.data.shard_writer import manifest_warnings
from electra.data.shards import Shards
from electra.data.sources import CONTENT_HASH, Report, warn


def merge(
    output_dir: str | Path, *, progress: Progress = ignore_progress, report: Report = warn
) -> Manifest:
    """Check all parts in `output_dir` and write their common manifest; shards that were never
    divided are checked.
    """
    folder = Path(output_dir)
    if (folder / MANIFEST).is_file() and Manifest.read(folder / MANIFEST).is_merged:
        (folder / MANIFEST).unlink()  # the parts are asked anew
    shards = Shards.open(folder)
    shards.verify(progress=progress)
    if folder in shards.parts:
        return shards.manifest
    check_every_file_read_once(shards)
    wrong = {
        warning for manifest in shards.parts.values() for warning in manifest_warnings(manifest)
    }  # of a part, not the whole
    found = manifest_warnings(shards.manifest)
    for message in found:
        report(message)
    manifest = dataclasses.replace(
        shards.manifest,
        warnings=[*(each for each in shards.manifest.warnings if each not in wrong), *found],
        files=[
            dataclasses.replace(file, name=f"{part.name}/{file.name}")
            for part, own in shards.parts.items()
            for file in own.files
        ],
    )
    shards.tokenizer.copy_to(folder / TOKENIZER)
    atomic.write_json(folder / MANIFEST, dataclasses.asdict(manifest))
    return manifest


def check_every_file_read_once(shards: Shards) -> None:
    """By file, each part chose its files by the sizes it saw; that they chose alike is not taken on
    trust.
    """
    if not shards.manifest.settings.by_file:
        return
    readers = Counter(
        place
        for part in shards.parts.values()
        for place, file in enumerate(part.settings.inputs)
        if CONTENT_HASH in file
    )
    for place, file in enumerate(shards.manifest.settings.inputs):
        if "size" in file and readers[place] != 1:
            raise UserError(
                f"{shards.folder}: {file['name']} was read by {readers[place]} parts, not by one; "
                "run "
                "`electra shard … --overwrite` for every part with the same version and the same "
                "text"
            )
