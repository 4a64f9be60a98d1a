"""The part of a corpus that one of many machines cuts: its number, its folder and its files."""

from __future__ import annotations

import heapq
import os
from collections.abc import Sequence
from pathlib import Path

from electra.config import UserError
from electra.data.manifest import MANIFEST, Manifest, part_name
from electra.data.options import ShardOptions
from electra.data.sources import Source


def slurm_part() -> str | None:
    """Return the part i/N of this task in a Slurm array, or None outside of an array."""
    index = integer_variable("SLURM_ARRAY_TASK_ID")
    first = integer_variable("SLURM_ARRAY_TASK_MIN")
    step = integer_variable("SLURM_ARRAY_TASK_STEP")
    count = integer_variable("SLURM_ARRAY_TASK_COUNT")
    if index is None or not count:
        return None
    return f"{(index - (first or 0)) // (step or 1) + 1}/{count}"


def integer_variable(name: str) -> int | None:
    """Return an environment variable as an integer, or None where it is empty or not set."""
    text = os.environ.get(name)
    if not text:
        return None
    if not text.isdecimal():
        raise UserError(
            f"{name}={text!r} in the environment is not a whole number; unset it, or pass --part "
            "i/N"
        )
    return int(text)


def part_folder(output_dir: Path, options: ShardOptions) -> Path:
    """Return the folder of this part; raise UserError if the output folder holds parts of another
    division of the work.
    """
    number, total = options.part_numbers
    suffix = f"-of-{total:05}"
    others = [
        path.name
        for path in output_dir.glob("part-*-of-*")
        if total == 1 or not path.name.endswith(suffix)
    ]
    if others and not options.overwrite:
        raise UserError(
            f"{output_dir}: holds {others[0]}, of another division of the work; choose another "
            "folder, or remove those parts"
        )
    if total == 1:
        return output_dir
    if (output_dir / MANIFEST).is_file() and not Manifest.read(output_dir / MANIFEST).is_merged:
        raise UserError(
            f"{output_dir}: holds the whole corpus already, not parts of it; choose another folder"
        )
    return output_dir / part_name(number, total)


def select_sources(sources: Sequence[Source], options: ShardOptions) -> dict[int, Source]:
    """Return the sources that this part reads, by their index in the corpus."""
    if options.by_file:
        return assign_files(sources, options.part_numbers)
    return dict(enumerate(sources))


def assign_files(sources: Sequence[Source], part: tuple[int, int]) -> dict[int, Source]:
    """Return the files of one part, by their index in the corpus: the largest file first, each to
    the part with the fewest bytes so far.
    """
    number, total = part
    if len(sources) < total:
        raise UserError(
            f"by file, {len(sources)} files are too few for {total} parts; choose at most "
            f"{len(sources)} parts, or leave --by-file out: then every part reads the whole corpus "
            "and cuts its share"
        )
    # A heap of (bytes, part): equal loads in ascending order are one already.
    loads = [(0, reader) for reader in range(1, total + 1)]
    own = {}
    for index in sorted(range(len(sources)), key=lambda index: -sources[index].size):
        load, reader = heapq.heappop(loads)
        heapq.heappush(loads, (load + max(1, sources[index].size), reader))
        if reader == number:
            own[index] = sources[index]
    return dict(sorted(own.items()))
