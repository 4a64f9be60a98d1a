"""Which files of a folder, or which splits of a data set on the hub, are for training, for choosing
and for testing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from electra.config import UserError
from electra.data.tables import Table, find_table, is_hub_name

Splits = dict[str, tuple[Table, ...]]

STEMS = {"train": ("train",), "dev": ("dev", "valid", "validation", "val"), "test": ("test",)}
ON_HUB = {"train": "train", "dev": "validation", "test": "test"}


def splits(
    data: str, *, stems: Mapping[str, Sequence[str]] = STEMS, on_hub: Mapping[str, str] = ON_HUB
) -> Splits:
    """The tables of each split there is; `stems` are how its files may be called, without what
    follows the dot.
    """
    if is_hub_name(data):
        whole = find_table(data)
        return {name: (replace(whole, split=split),) for name, split in on_hub.items()}
    folder = Path(data).expanduser()
    if not folder.is_dir():
        raise UserError(
            f"{data}: no such folder, nor a data set on the hub; single files are named with "
            "--train and "
            "--dev"
        )
    found = {name: files for name in stems if (files := split_files(folder, stems[name]))}
    if not found:
        wanted = "; ".join(f"{name}: {' or '.join(stems[name])}" for name in stems)
        raise UserError(
            f"{folder}: no file is called as a part of a data set is ({wanted}; .txt, .jsonl, … "
            "after it); "
            f"it holds {', '.join(sorted(path.name for path in folder.iterdir())[:8]) or 'nothing'}"
        )
    return found


def split_files(folder: Path, stems: Sequence[str]) -> tuple[Table, ...]:
    """train.txt, or all of train-00000-of-00002.parquet and its like: the files of the first stem
    that has some.
    """
    for stem in stems:
        called = re.compile(re.escape(stem) + r"(?P<part>-\d+-of-\d+)?(\.\w+){0,2}")
        found = {
            path: match
            for path in sorted(folder.iterdir())
            if path.is_file() and (match := called.fullmatch(path.name))
        }
        if len(found) > 1 and not all(match["part"] for match in found.values()):
            first, second, *_ = found
            raise UserError(
                f"{folder}: {first.name} and {second.name} could both be its {stem} data; move "
                "one away, "
                "or name files with --train and --dev"
            )
        if found:
            return tuple(find_table(path) for path in found)
    return ()
